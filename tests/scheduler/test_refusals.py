"""Why not, in words that kube-scheduler can count together."""

import msgspec
import pytest

from scheduler.world import GIB, a_pod, a_state, exclusively, gpus, place, request_text, run_pod, share
from tessera.core.request import Constraints, ModelRule
from tessera.scheduler.offers import NO_TICKETS, USED_UP, withheld
from tessera.scheduler.refusals import CHANGED, NO_AGENT, NO_DEVICE, REMEMBERED, Refusals, grouped
from tessera.scheduler.state import Nowhere, State
from tessera.wire.kube.names import REQUEST


def reasons(
    state: State, pod: object, names: list[str], refusals: Refusals | None = None, now: float = 0.0
) -> dict[str, str]:
    verdict = state.filter(pod, names, now)  # type: ignore[arg-type]
    assert isinstance(verdict, Nowhere)
    return (refusals or Refusals()).reasons(verdict, names, state.holdings.ledger, now)


def test_row_6_the_reason_names_the_largest_free_device() -> None:
    state = a_state({"n0": 2}, memory=7 * GIB)
    assert reasons(state, a_pod("a", share(8 * GIB)), ["n0"]) == {
        "n0": "GPU memory: asked 8,192 MiB, largest free 7,168 MiB"
    }


def test_nodes_that_refuse_alike_say_it_alike() -> None:
    state = a_state({"n0": 1, "n1": 1, "n2": 1})
    run_pod(state, a_pod("x", share(10 * GIB)), ["n1"])
    said = reasons(state, a_pod("a", share(30 * GIB)), ["n0", "n1", "n2"])
    assert set(said.values()) == {"GPU memory: asked 30,720 MiB, largest free 24,576 MiB"}


def test_a_node_without_inventory_and_one_without_devices_are_told_apart() -> None:
    state = a_state({"n0": 1})
    state.saw_gpu_node("bare", gpus("bare", 0))
    state.rebuild()
    said = reasons(state, a_pod("a", exclusively(2)), ["n0", "bare", "unknown"])
    assert said == {
        "n0": "GPUs: asked 2, at most 1 fit on one node",
        "bare": "no GPU on this node",
        "unknown": NO_AGENT,
    }


def test_row_2_a_device_that_somebody_has_alone_is_named_so() -> None:
    state = a_state({"n0": 1})
    run_pod(state, a_pod("x", exclusively()))
    assert reasons(state, a_pod("a", share(1)), ["n0"]) == {"n0": "GPU held exclusively by another pod"}


def test_a_device_that_the_agent_marks_is_named_so() -> None:
    state = a_state({"n0": 1})
    marked = gpus("n0", 1)
    state.saw_gpu_node(
        "n0", msgspec.structs.replace(marked, devices=(msgspec.structs.replace(marked.devices[0], foreign="a/b"),))
    )
    state.rebuild()
    assert reasons(state, a_pod("a", share(1)), ["n0"]) == {"n0": "GPU held by another device plugin"}


def test_a_model_that_is_not_allowed_is_named() -> None:
    constraints = Constraints(models_allowed=(ModelRule("H100"),))
    pod = a_pod("a", share(1), annotations={REQUEST: request_text([share(1)], constraints)})
    assert reasons(a_state(), pod, ["n0"]) == {"n0": "GPU model not allowed (A100)"}


def test_a_ticket_that_waits_there_is_the_reason_where_there_is_room() -> None:
    state = a_state({"n0": 4})
    place(state, a_pod("x", share(), ticket=7))
    assert reasons(state, a_pod("a", share(), ticket=7), ["n0"]) == {
        "n0": "ticket 7 is in use there by a container that has not started yet"
    }


def test_too_little_room_is_the_reason_also_where_a_ticket_waits() -> None:
    state = a_state({"n0": 1})
    place(state, a_pod("x", exclusively(), ticket=7))
    assert reasons(state, a_pod("a", share(), ticket=7), ["n0"]) == {"n0": "GPU held exclusively by another pod"}


def test_words_are_remembered_for_a_second_and_while_nothing_changed() -> None:
    state, refusals = a_state({"n0": 1, "n1": 1}), Refusals()
    for now in (0.0, 0.5, 100.0):
        reasons(state, a_pod("a", share(30 * GIB)), ["n0"], refusals, now)
    assert refusals.passes == 1
    reasons(state, a_pod("b", share(30 * GIB)), ["n0", "n1"], refusals, 100.1)
    assert refusals.passes == 2
    run_pod(state, a_pod("x", share(10 * GIB)), ["n0"])
    reasons(state, a_pod("a", share(30 * GIB)), ["n0", "n1"], refusals, 100.2)
    assert refusals.passes == 2
    said = reasons(state, a_pod("a", share(30 * GIB)), ["n0"], refusals, 101.2)
    assert (refusals.passes, said["n0"]) == (3, "GPU memory: asked 30,720 MiB, largest free 14,336 MiB")


def test_words_of_another_fleet_are_forgotten() -> None:
    state, refusals = a_state({"n0": 1}), Refusals()
    reasons(state, a_pod("a", share(30 * GIB)), ["n0"], refusals)
    state.saw_gpu_node("n0", gpus("n0", 1, memory=12 * GIB))
    state.rebuild()
    said = reasons(state, a_pod("a", share(30 * GIB)), ["n0"], refusals)
    assert said == {"n0": "GPU memory: asked 30,720 MiB, largest free 12,288 MiB"}


def test_no_more_than_so_many_requests_are_remembered() -> None:
    state, refusals = a_state({"n0": 1}), Refusals()
    for size in range(REMEMBERED + 5):
        reasons(state, a_pod("a", share(30 * GIB + size)), ["n0"], refusals)
    assert len(refusals._known) == REMEMBERED


def test_a_node_that_has_room_by_now_says_that_it_changed() -> None:
    state = a_state({"n0": 1})
    ask = state.requests.ask(a_pod("a", share()))
    said = Refusals().reasons(Nowhere(ask, {}), ["n0"], state.holdings.ledger, 0.0)  # type: ignore[arg-type]
    assert said == {"n0": CHANGED}


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (2, "Tessera's agent hands out no devices on this node: libtessera.so is damaged"),
        (0, "no GPU on this node: libtessera.so is damaged"),
    ],
)
def test_where_an_agent_hands_out_nothing_its_own_words_are_told(devices: int, why: str) -> None:
    """kai 6, row 6: a driver that fails on one node is told to the pods that might have gone there."""
    state = a_state({"n0": 2})
    state.saw_node("n0", {})
    state.saw_gpu_node("n0", msgspec.structs.replace(gpus("n0", devices), message="libtessera.so is damaged"))
    state.rebuild()
    assert reasons(state, a_pod("a", share(GIB)), ["n0"]) == {"n0": why}
    state.saw_gpu_node("n0", gpus("n0", 2))
    state.rebuild()
    assert reasons(state, a_pod("a", share(GIB)), ["n0"]) == {"n0": NO_TICKETS}


def test_what_an_agent_says_is_no_reason_while_it_hands_out_devices() -> None:
    state = a_state({"n0": 1})
    said = msgspec.structs.replace(gpus("n0", 1), message="device 1 is set aside: it is lost")
    state.saw_gpu_node("n0", said)
    state.rebuild()
    assert reasons(state, a_pod("a", share(30 * GIB)), ["n0"]) == {
        "n0": "GPU memory: asked 30,720 MiB, largest free 24,576 MiB"
    }


def test_an_agent_that_says_much_is_cut_short() -> None:
    assert withheld("x" * 1000) == f"Tessera's agent hands out no devices on this node: {'x' * 160}..."


def test_reasons_are_counted_the_commonest_first() -> None:
    assert grouped(["b", "a", "b", "c"]) == (("b", 2), ("a", 1), ("c", 1))


def test_nodes_without_devices_are_told_last_however_many_they_are() -> None:
    assert grouped([NO_AGENT, NO_DEVICE, NO_AGENT, "full"]) == (("full", 1), (NO_AGENT, 2), (NO_DEVICE, 1))


def test_no_reason_has_a_comma_of_prose() -> None:
    """kube-scheduler writes commas between reasons; those with figures have their own all the same."""
    assert not [words for words in (NO_AGENT, NO_DEVICE, NO_TICKETS, *USED_UP) if "," in words]
