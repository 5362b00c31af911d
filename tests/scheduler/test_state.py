"""What the scheduler holds, whatever happens to pods. Rows are those of the list of users' pains."""

import random

import msgspec
import pytest

from scheduler.world import (
    GIB,
    a_pod,
    a_state,
    allocation_of,
    bind,
    bound,
    devices_of,
    exclusively,
    free_memory,
    gpus,
    place,
    run_pod,
    share,
)
from tessera.scheduler.audit import drift_of
from tessera.scheduler.holdings import Phase
from tessera.scheduler.state import (
    DOUBT_SECONDS,
    Bindable,
    Everywhere,
    NoticeKind,
    NotOurs,
    Nowhere,
    Outcome,
    Unclear,
)

# filter


def test_filter_reserves_what_it_answers() -> None:
    state = a_state({"n0": 1})
    assert place(state, a_pod("a", share(16 * GIB))) == "n0"
    assert place(state, a_pod("b", share(16 * GIB))) is None
    assert free_memory(state, "n0-0") == 8 * GIB


def test_filter_answers_only_a_node_that_was_named() -> None:
    state = a_state({"n0": 8, "n1": 1})
    assert place(state, a_pod("a", share()), ["n1", "unknown"]) == "n1"


def test_a_second_filter_replaces_the_reservation_of_the_first() -> None:
    state = a_state({"n0": 1, "n1": 1})
    pod = a_pod("a", share(20 * GIB))
    assert place(state, pod, ["n0"]) == "n0"
    assert place(state, pod, ["n1"]) == "n1"
    assert free_memory(state, "n0-0") == 24 * GIB


def test_a_filter_that_finds_no_room_ends_the_reservation() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share())
    place(state, pod)
    assert place(state, pod, []) is None
    assert len(state.holdings) == 0


def test_a_pod_that_asks_for_nothing_is_not_ours() -> None:
    assert a_state().filter(a_pod("a"), ["n0"], 0.0) == NotOurs()


def test_a_pod_that_slipped_past_admission_is_refused_everywhere() -> None:
    verdict = a_state().filter(a_pod("a", resources={"nvidia.com/gpu": "1"}), ["n0"], 0.0)
    assert verdict == Everywhere(
        "the pod was created before Tessera's webhook admitted it: delete and create it again"
    )


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (a_pod("a", share(), annotations={"tessera.dev/request": "{"}), "is no request"),
        (a_pod("a", share(), annotations={"tessera.dev/request": '{"v":9,"claims":[]}'}), "version 9"),
        (a_pod("a", share(), tickets={}), "has no ticket for containers main"),
        (a_pod("a", share(), share(containers="b"), tickets={"main": 3, "b": 3}), "two containers"),
        (a_pod("a", share(), resources={"tessera.dev/ticket-f": "33"}), "which is no ticket"),
    ],
)
def test_a_request_that_admission_cannot_have_written_is_refused_with_what_is_wrong(
    pod: object, words: str
) -> None:
    verdict = a_state().filter(pod, ["n0"], 0.0)  # type: ignore[arg-type]
    assert isinstance(verdict, Everywhere)
    assert words in verdict.why


# tickets


def test_a_ticket_that_waits_on_a_node_is_a_reason_against_it() -> None:
    state = a_state({"n0": 4, "n1": 1})
    assert place(state, a_pod("a", share(), ticket=7), ["n0"]) == "n0"
    assert place(state, a_pod("b", share(), ticket=7)) == "n1"
    verdict = state.filter(a_pod("c", share(), ticket=7), ["n0"], 0.0)
    assert isinstance(verdict, Nowhere)
    assert verdict.barred["n0"] == "ticket 7 is in use there by a container that has not started yet"


def test_a_ticket_is_free_again_when_the_kubelet_has_taken_the_pod_in() -> None:
    state = a_state({"n0": 4})
    first = a_pod("a", share(), ticket=7)
    place(state, first)
    seen = bind(state, first, "n0")
    state.saw_pod(first, seen, 0.0)
    assert place(state, a_pod("b", share(), ticket=7)) is None
    state.freed = False
    state.saw_pod(seen, msgspec.structs.replace(seen, admitted=True), 0.0)
    assert state.freed
    assert place(state, a_pod("b", share(), ticket=7)) == "n0"


def test_a_pods_own_ticket_does_not_bar_it() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(), ticket=7)
    place(state, pod)
    assert place(state, pod) == "n0"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"phase": "Pending", "containerStatuses": [{"name": "main"}]},
        {"phase": "Pending", "initContainerStatuses": [{"name": "init"}]},
    ],
)
def test_a_bound_pod_with_any_container_status_is_admitted(status: dict[str, object]) -> None:
    assert a_pod("a", share(), node="n0", status=status).admitted
    assert not a_pod("a", share(), status=status).admitted


# binding


def test_a_binding_that_failed_gives_everything_back() -> None:  # row 15
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    place(state, pod)
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.end_bind(bindable, Outcome.FAILED, 0.0)
    assert free_memory(state, "n0-0") == 24 * GIB
    assert state.freed


def test_a_binding_without_an_answer_keeps_the_place_and_is_offered_again() -> None:
    state = a_state({"n0": 1, "n1": 1})
    pod = a_pod("a", share(20 * GIB))
    place(state, pod, ["n0"])
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.end_bind(bindable, Outcome.DOUBTFUL, 0.0)
    assert place(state, pod) == "n0"
    assert isinstance(state.filter(pod, ["n1"], 1.0), Unclear)
    again = state.begin_bind(pod.uid, pod.key, "n0", 1.0)
    assert isinstance(again, Bindable)
    assert again.text == bindable.text


def test_a_refusal_after_a_lost_answer_may_mean_that_the_pod_is_bound_and_frees_nothing() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    place(state, pod)
    for outcome in (Outcome.DOUBTFUL, Outcome.FAILED):  # the second is told that the pod is assigned already
        bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
        assert isinstance(bindable, Bindable)
        state.end_bind(bindable, outcome, 0.0)
    assert free_memory(state, "n0-0") == 4 * GIB
    state.expire(DOUBT_SECONDS)
    assert free_memory(state, "n0-0") == 24 * GIB


def test_a_doubt_ends_by_time() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    place(state, pod)
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.end_bind(bindable, Outcome.DOUBTFUL, 10.0)
    assert not state.expire(9.9 + DOUBT_SECONDS)
    assert [held.node for held in state.expire(10.0 + DOUBT_SECONDS)] == ["n0"]


def test_a_doubt_ends_with_the_sight_of_the_bound_pod() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    place(state, pod)
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.end_bind(bindable, Outcome.DOUBTFUL, 0.0)
    state.saw_pod(pod, bound(pod, "n0", bindable.text), 1.0)
    held = state.holdings.get(pod.uid)
    assert held is not None
    assert held.phase is Phase.BOUND
    assert not drift_of(state)


def test_while_a_binding_is_on_its_way_the_pod_is_placed_nowhere_else() -> None:
    state = a_state({"n0": 1, "n1": 1})
    pod = a_pod("a", share())
    place(state, pod, ["n0"])
    assert isinstance(state.begin_bind(pod.uid, pod.key, "n0", 0.0), Bindable)
    assert isinstance(state.filter(pod, ["n1"], 0.0), Unclear)
    assert isinstance(state.begin_bind(pod.uid, pod.key, "n0", 0.0), str)


def test_a_pod_is_seen_bound_before_the_answer_to_its_binding() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    place(state, pod)
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.saw_pod(pod, bound(pod, "n0", bindable.text), 0.0)
    state.end_bind(bindable, Outcome.DOUBTFUL, 0.0)
    assert not state.holdings.open()
    assert free_memory(state, "n0-0") == 4 * GIB


def test_a_pod_that_is_gone_before_the_answer_to_its_binding_holds_nothing() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    state.saw_pod(None, pod, 0.0)
    place(state, pod)
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.saw_pod(pod, None, 0.0)
    state.end_bind(bindable, Outcome.DONE, 0.0)
    assert len(state.holdings) == 0
    assert free_memory(state, "n0-0") == 24 * GIB


def test_a_bind_after_the_reservation_ended_takes_the_place_if_it_is_still_free() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    state.saw_pod(None, pod, 0.0)
    place(state, pod)
    assert len(state.expire(1e6)) == 1
    assert isinstance(state.begin_bind(pod.uid, pod.key, "n0", 1e6), Bindable)


def test_a_bind_after_the_reservation_ended_fails_where_the_place_is_taken() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    state.saw_pod(None, pod, 0.0)
    place(state, pod)
    state.expire(1e6)
    assert place(state, a_pod("b", share(20 * GIB))) == "n0"
    why = state.begin_bind(pod.uid, pod.key, "n0", 1e6)
    assert isinstance(why, str)
    assert "n0 has no room for it any more" in why


def test_a_bind_to_another_node_than_was_chosen_is_refused() -> None:
    state = a_state({"n0": 1, "n1": 1})
    pod = a_pod("a", share())
    place(state, pod, ["n0"])
    assert isinstance(state.begin_bind(pod.uid, pod.key, "n1", 0.0), str)


def test_a_device_that_broke_after_filter_is_not_bound_to() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share())
    place(state, pod)
    state.saw_gpu_node("n0", gpus("n0", 1, healthy=False))
    state.rebuild()
    assert len(state.holdings) == 0
    assert isinstance(state.begin_bind(pod.uid, pod.key, "n0", 0.0), str)


# the ends of pods


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(phase: str) -> None:
    state = a_state({"n0": 1})
    pod = run_pod(state, a_pod("a", share(20 * GIB)))
    state.saw_pod(pod, msgspec.structs.replace(pod, finished=True), 0.0)
    assert free_memory(state, "n0-0") == 24 * GIB


def test_a_pod_that_is_being_deleted_holds_until_it_is_gone() -> None:  # row 12
    state = a_state({"n0": 1})
    pod = run_pod(state, a_pod("a", share(20 * GIB)))
    leaving = msgspec.structs.replace(pod, leaving=True)
    state.saw_pod(pod, leaving, 0.0)
    assert place(state, a_pod("b", share(5 * GIB))) is None
    state.saw_pod(leaving, None, 0.0)
    assert place(state, a_pod("b", share(5 * GIB))) == "n0"


def test_an_unbound_pod_that_is_deleted_gives_its_reservation_back() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    state.saw_pod(None, pod, 0.0)
    place(state, pod)
    state.saw_pod(pod, None, 0.0)
    assert free_memory(state, "n0-0") == 24 * GIB


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    state = a_state({"n0": 1})
    first = run_pod(state, a_pod("a", share(20 * GIB), uid="first"))
    second = a_pod("a", share(10 * GIB), uid="second")
    state.saw_pod(first, second, 0.0)
    assert free_memory(state, "n0-0") == 24 * GIB
    assert place(state, second) == "n0"
    assert devices_of(state, "first") == set()


def test_an_allocation_copied_to_the_next_pod_of_the_name_is_not_believed() -> None:
    state = a_state({"n0": 2})
    first = run_pod(state, a_pod("a", share(20 * GIB), uid="first"))
    copy = bound(a_pod("a", share(20 * GIB), uid="second"), "n0", allocation_of(first))
    state.saw_pod(first, copy, 0.0)
    assert [notice.kind for notice in state.take_notices()] == [NoticeKind.FORGED]
    assert devices_of(state, "second") == set()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 1, 1, 2, 2), (1, 0, 1, 2), (2,), (1, 2)])
def test_lost_doubled_and_late_events_end_alike(order: tuple[int, ...]) -> None:  # row 14
    state = a_state({"n0": 1})
    pod = a_pod("a", share(20 * GIB))
    after = run_pod(a_state({"n0": 1}), pod)
    steps = [(None, pod), (pod, after), (after, None)]
    for at in order:
        state.saw_pod(*steps[at], 0.0)
    assert len(state.holdings) == 0
    assert free_memory(state, "n0-0") == 24 * GIB


# forged and foreign


def forged(text: str, *, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"uuid":"n0-0"', '"uuid":"n1-0"'),
        ('"memory":20480', '"memory":1'),
        ('"node":"n0"', '"node":"n1"'),
        ('"containers":{"main"', '"containers":{"other"'),
        ('"v":1', '"v":2'),
        ('"memory":[20480,20480]', '"memory":[1,1]'),
    ],
)
def test_an_allocation_that_we_cannot_have_written_is_reported_and_counts_as_a_whole_device(
    old: str, new: str
) -> None:
    state = a_state({"n0": 1, "n1": 1})
    pod = a_pod("a", share(20 * GIB))
    text = allocation_of(run_pod(a_state({"n0": 1}), pod))
    state.saw_pod(None, bound(pod, "n0", forged(text, old=old, new=new)), 0.0)
    assert [notice.kind for notice in state.take_notices()] == [NoticeKind.FORGED]
    assert devices_of(state, pod.uid) == set()
    assert place(state, a_pod("b", share(1)), ["n0"]) is None
    assert place(state, a_pod("b", share(1)), ["n1"]) == "n1"
    assert not drift_of(state)


def test_whole_device_users_without_us_are_counted_by_the_idlest_devices() -> None:
    state = a_state({"n0": 3})
    ours = run_pod(state, a_pod("a", share(20 * GIB)))
    stranger = a_pod(
        "s", resources={"nvidia.com/gpu": "2"}, node="n0", spec={"schedulerName": "default-scheduler"}
    )
    state.saw_pod(None, stranger, 0.0)
    (notice,) = state.take_notices()
    assert notice.kind is NoticeKind.UNADMITTED
    assert place(state, a_pod("b", share(5 * GIB))) is None
    assert place(state, a_pod("b", share(4 * GIB))) == "n0"
    assert devices_of(state, "uid-b") == devices_of(state, ours.uid)
    assert not drift_of(state)


def test_a_stranger_that_was_there_before_the_inventory_is_reported_once_it_comes() -> None:
    state = a_state({"n0": 0})
    state.saw_pod(None, a_pod("s", resources={"nvidia.com/gpu": "1"}, node="n0"), 0.0)
    assert not state.take_notices()
    state.saw_gpu_node("n0", gpus("n0", 1))
    for _ in range(2):
        state.rebuild()
    assert [notice.kind for notice in state.take_notices()] == [NoticeKind.UNADMITTED]
    assert place(state, a_pod("a", share(1))) is None


def test_what_is_set_aside_does_not_depend_on_the_order_of_events() -> None:
    stranger = a_pod("s", resources={"nvidia.com/gpu": "1"}, node="n0")
    pod = a_pod("a", share(20 * GIB))
    after = run_pod(a_state({"n0": 2}), pod)
    states = [a_state({"n0": 2}) for _ in range(2)]
    for event in (after, stranger):
        states[0].saw_pod(None, event, 0.0)
    for event in (stranger, after):
        states[1].saw_pod(None, event, 0.0)
    (first,), (second,) = states[0].holdings.aside("n0"), states[1].holdings.aside("n0")
    assert first == second
    assert [charge.uuid for charge in first.charges] == ["n0-1"]
    assert not drift_of(states[1])


def test_a_stranger_that_ends_gives_its_devices_back() -> None:
    state = a_state({"n0": 1})
    stranger = a_pod("s", resources={"nvidia.com/gpu": "1"}, node="n0")
    state.saw_pod(None, stranger, 0.0)
    assert place(state, a_pod("a", share())) is None
    state.saw_pod(stranger, None, 0.0)
    assert place(state, a_pod("a", share())) == "n0"


def test_what_the_agent_marks_as_foreign_is_not_counted_twice() -> None:
    state = a_state({"n0": 2})
    state.saw_pod(None, a_pod("s", resources={"nvidia.com/gpu": "1"}, node="n0"), 0.0)
    marked = gpus("n0", 2)
    devices = (msgspec.structs.replace(marked.devices[0], foreign="team/s"), marked.devices[1])
    state.saw_gpu_node("n0", msgspec.structs.replace(marked, devices=devices))
    state.rebuild()
    assert place(state, a_pod("a", exclusively())) == "n0"
    assert devices_of(state, "uid-a") == {"n0-1"}
    assert place(state, a_pod("b", share(1))) is None


def test_a_pod_bound_past_us_is_held_and_reported() -> None:
    state = a_state({"n0": 1})
    pod = a_pod("a", share(), node="n0")
    state.saw_pod(None, pod, 0.0)
    assert [notice.kind for notice in state.take_notices()] == [NoticeKind.UNADMITTED]
    assert place(state, a_pod("b", share(1))) is None


def test_an_allocation_taken_off_a_running_pod_does_not_free_its_device() -> None:
    state = a_state({"n0": 1})
    pod = run_pod(state, a_pod("a", share(10 * GIB)))
    state.saw_pod(pod, msgspec.structs.replace(pod, allocation=None, request=None), 0.0)
    assert place(state, a_pod("b", share(1))) is None
    assert not drift_of(state)


# the inventory changes under running pods


def test_a_device_that_vanishes_and_comes_back_is_held_as_before() -> None:
    state = a_state({"n0": 2})
    run_pod(state, a_pod("a", share(20 * GIB)))
    state.saw_gpu_node("n0", None)
    state.rebuild()
    assert place(state, a_pod("b", share()), ["n0"]) is None
    state.saw_gpu_node("n0", gpus("n0", 2))
    state.rebuild()
    assert free_memory(state, "n0-0") == 4 * GIB
    assert not drift_of(state)


def test_a_node_that_shrinks_below_what_is_held_takes_nobody_else() -> None:
    state = a_state({"n0": 1})
    run_pod(state, a_pod("a", share(20 * GIB)))
    state.saw_gpu_node("n0", gpus("n0", 1, memory=16 * GIB))
    state.rebuild()
    assert free_memory(state, "n0-0") == -4 * GIB
    assert place(state, a_pod("b", share(1))) is None
    assert not drift_of(state)


def test_a_device_that_moved_to_another_node_is_nobodys_word_any_more() -> None:
    state = a_state({"n0": 1, "n1": 1})
    pod = run_pod(state, a_pod("a", share(20 * GIB)), ["n0"])
    state.saw_gpu_node("n0", gpus("x", 1))
    state.saw_gpu_node("n1", gpus("n0", 1))
    state.rebuild()
    assert [notice.kind for notice in state.take_notices()] == [NoticeKind.FORGED]
    assert devices_of(state, pod.uid) == set()
    assert not drift_of(state)
    state.saw_gpu_node("n1", gpus("n1", 1))
    state.saw_gpu_node("n0", gpus("n0", 1))
    state.rebuild()
    assert devices_of(state, pod.uid) == {"n0-0"}
    assert not drift_of(state)


def test_a_device_that_two_nodes_claim_is_one_device() -> None:
    state = a_state({"n0": 1})
    state.saw_gpu_node("n1", gpus("n0", 1))
    state.rebuild()
    assert state.inventory.doubled == {"n0-0": "n1"}
    assert place(state, a_pod("a", share()), ["n1"]) is None
    assert place(state, a_pod("a", share()), ["n0"]) == "n0"


# restarts


def test_a_restart_from_the_pods_holds_the_same() -> None:
    state = a_state({"n0": 4, "n1": 4})
    pods = [run_pod(state, a_pod(f"p{i}", share((i % 3 + 1) * GIB))) for i in range(12)]
    fresh = a_state({"n0": 4, "n1": 4})
    for pod in random.Random(3).sample(pods, len(pods)):
        fresh.saw_pod(None, pod, 0.0)
    for name in ("memory", "compute", "slots", "exclusive", "node_fill"):
        assert getattr(fresh.view().usage, name).tolist() == getattr(state.view().usage, name).tolist()


def test_a_restart_keeps_what_may_still_become_bound_and_nothing_else() -> None:
    state = a_state({"n0": 3})
    run_pod(state, a_pod("bound", exclusively()))
    place(state, a_pod("reserved", exclusively()))
    doubtful = a_pod("doubtful", exclusively())
    place(state, doubtful)
    bindable = state.begin_bind(doubtful.uid, doubtful.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.restart()
    assert {uid for uid, _ in state.holdings.items()} == {doubtful.uid}
    state.end_bind(bindable, Outcome.DONE, 0.0)
    state.saw_pod(None, bound(doubtful, "n0", bindable.text), 0.0)
    assert not state.holdings.open()


def test_a_repair_ends_a_drift() -> None:
    state = a_state({"n0": 2})
    pod = run_pod(state, a_pod("a", share(20 * GIB)))
    waiting = a_pod("b", share(5 * GIB))
    state.saw_pod(None, waiting, 0.0)
    place(state, waiting)
    state.view().usage.memory[0] += 1
    assert len(drift_of(state)) == 1
    state.repair(0.0)
    assert not drift_of(state)
    assert devices_of(state, pod.uid) == {"n0-0"}
    assert devices_of(state, waiting.uid) == {"n0-1"}
