"""Rows of the list of users' pains that the scheduler's state alone can show: who holds what at every stage of a
pod's life, and what a decision costs. Rows 1-22 and 75-82 on the allocator: test_placement_pains.py.
"""

import sys
from collections.abc import Callable

import msgspec
import pytest

from builders import a_claim, a_device, a_fleet, a_node, a_share
from builders import a_pod as an_asking_pod
from scheduler.world import (
    GIB,
    a_pod,
    a_state,
    bind,
    devices_of,
    exclusively,
    gpus,
    place,
    run_pod,
    share,
)
from tessera.allocator.explain import sentence
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import place as place_once
from tessera.allocator.plan import decide
from tessera.core.placement import Rejected
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.core.units import Milli
from tessera.policy.rank import POLICIES
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.refusals import Refusals
from tessera.scheduler.state import Bindable, Nowhere, Outcome, State


def reasons(state: State, pod: PodFacts) -> set[str]:
    """Why no node takes the pod."""
    names = list(state.fleet.node_names)
    verdict = state.filter(pod, names, 0.0)
    assert isinstance(verdict, Nowhere), verdict
    return set(Refusals().reasons(verdict, names, state.holdings.ledger, 0.0).values())


def test_row_12_what_a_leaving_pod_holds_is_free_only_once_it_is_gone() -> None:
    """24,576 MiB, of which a pod that leaves has 16,384 and another 1,536: one of three pods of 5,120 fits."""
    state = a_state({"n0": 1})
    leaving = run_pod(state, a_pod("leaving", share(16 * GIB)))
    run_pod(state, a_pod("stays", share(1536)))
    gone = msgspec.structs.replace(leaving, leaving=True)
    state.saw_pod(leaving, gone, 0.0)
    assert [place(state, a_pod(f"p{i}", share(5 * GIB))) for i in range(3)] == ["n0", None, None]
    state.saw_pod(gone, None, 0.0)
    assert [place(state, a_pod(f"p{i}", share(5 * GIB))) for i in range(1, 3)] == ["n0", "n0"]


def test_row_20_a_pod_gets_the_device_that_was_kept_for_it_or_none() -> None:
    state = a_state({"n0": 2})
    pods = [a_pod(name, exclusively()) for name in "ab"]
    for pod in pods:
        state.saw_pod(None, pod, 0.0)
        assert place(state, pod) == "n0"
    kept = {pod.uid: devices_of(state, pod.uid) for pod in pods}
    third = a_pod("c", exclusively())
    state.saw_pod(None, third, 0.0)
    assert place(state, third) is None
    assert isinstance(state.begin_bind(third.uid, third.key, "n0", 0.0), str)
    for pod in pods[::-1]:
        bind(state, pod, "n0")
        assert devices_of(state, pod.uid) == kept[pod.uid]
    assert kept["uid-a"].isdisjoint(kept["uid-b"])


# row 84: nothing is locked, so nothing of a pod that went stands in anybody's way


def _seen(state: State, pod: PodFacts) -> PodFacts:
    state.saw_pod(None, pod, 0.0)
    return pod


def _chosen(state: State, pod: PodFacts) -> PodFacts:
    assert place(state, _seen(state, pod)) == "n0"
    return pod


def _begun(state: State, pod: PodFacts) -> Bindable:
    found = state.begin_bind(_chosen(state, pod).uid, pod.key, "n0", 0.0)
    assert isinstance(found, Bindable)
    return found


def _binding(state: State, pod: PodFacts) -> PodFacts:
    _begun(state, pod)
    return pod


def _doubtful(state: State, pod: PodFacts) -> PodFacts:
    state.end_bind(_begun(state, pod), Outcome.DOUBTFUL, 0.0)
    return pod


def _bound(state: State, pod: PodFacts) -> PodFacts:
    after = bind(state, _chosen(state, pod), "n0")
    state.saw_pod(pod, after, 0.0)
    return after


STAGES: dict[str, Callable[[State, PodFacts], PodFacts]] = {
    "seen": _seen,
    "chosen": _chosen,
    "binding": _binding,
    "doubtful": _doubtful,
    "bound": _bound,
    "running": run_pod,
}


@pytest.mark.parametrize("stage", STAGES)
def test_row_84_a_pod_that_is_killed_at_any_stage_blocks_nobody(stage: str) -> None:
    """At the very same moment (0.0), and with the very same ticket."""
    state = a_state({"n0": 1})
    last = STAGES[stage](state, a_pod("dead", exclusively(), ticket=5))
    state.saw_pod(last, None, 0.0)
    assert place(state, a_pod("next", exclusively(), ticket=5)) == "n0"


# row 85


def test_row_85_a_ticket_is_not_handed_on_however_long_the_kubelet_takes() -> None:
    state = a_state({"n0": 2, "n1": 1})
    first = a_pod("first", share(), ticket=9)
    state.saw_pod(None, first, 0.0)
    assert place(state, first, ["n0"]) == "n0"
    stalled = bind(state, first, "n0")
    state.saw_pod(first, stalled, 0.0)
    second = a_pod("second", share(), ticket=9)
    for now in (1.0, 121.0, 6 * 60.0, 7 * 86_400.0):
        state.expire(now)
        assert place(state, second, ["n0"], now) is None
        assert place(state, second, ["n0", "n1"], now) == "n1"
    state.saw_pod(stalled, msgspec.structs.replace(stalled, admitted=True), 0.0)
    assert place(state, second, ["n0"]) == "n0"


# rows 87 and 90: what a decision costs, without a clock


def calls_of(work: Callable[[], object]) -> int:
    """How many calls of Python and of C something takes: the same on every machine."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def a_busy_state(nodes: int, pods_each: int) -> State:
    """So many nodes with a device each that has so many pods of a hundredth."""
    state = a_state({f"n{i}": 1 for i in range(nodes)})
    for node in range(nodes):
        for number in range(pods_each):
            run_pod(state, a_pod(f"p{node}-{number}", share(200)), [f"n{node}"])
    return state


def cost_of_a_decision(nodes: int, pods_each: int) -> int:
    """Calls of the third of three placements of one request on 20 nodes that kube-scheduler names."""
    state, names = a_busy_state(nodes, pods_each), [f"n{i}" for i in range(20)]
    asking = [a_pod(f"new{i}", share(100)) for i in range(3)]
    for pod in asking:
        state.saw_pod(None, pod, 0.0)
    for pod in asking[:2]:
        assert place(state, pod, names)
    return calls_of(lambda: place(state, asking[2], names))


def test_rows_87_and_90_a_decision_costs_the_same_with_ten_times_the_pods_or_nodes() -> None:
    cost = cost_of_a_decision(20, 2)
    assert cost_of_a_decision(20, 20) <= cost * 1.05
    assert cost_of_a_decision(200, 2) <= cost * 1.05


# defects of others (the list of KAI's complaints, section 6)


def test_kai_2_what_is_left_of_a_device_is_told_to_the_mib() -> None:
    """24 x 2,000 MiB on 46,068 MiB: 23 fit, and 68 MiB are left."""
    state = a_state({"n0": 1}, memory=46_068)
    placed = [place(state, a_pod(f"p{i}", share(2000))) for i in range(24)]
    assert placed == ["n0"] * 23 + [None]
    assert reasons(state, a_pod("p23", share(2000))) == {"GPU memory: asked 2,000 MiB, largest free 68 MiB"}


def test_kai_3_a_device_without_a_known_memory_is_never_given_away_without_a_limit() -> None:
    state = a_state({"n0": 1}, memory=0)
    part = MemoryFraction(Milli(1))
    compute = ComputeMilli(Milli(10))
    for claim in (share(1), a_claim(ShareSpec(part, part, compute, compute)), exclusively()):
        assert place(state, a_pod("p", claim)) is None
        assert reasons(state, a_pod("q", claim)) == {"GPU whose memory is not known"}


def test_kai_6_a_node_without_an_inventory_keeps_nobody_from_another() -> None:
    state = a_state({"good": 1})
    state.saw_gpu_node("blind", msgspec.structs.replace(gpus("blind", 0), message="the driver does not answer"))
    state.rebuild()
    assert place(state, a_pod("p", share()), ["blind", "good"]) == "good"
    waiting = a_pod("q", exclusively())
    names = ["blind", "nowhere"]
    verdict = state.filter(waiting, names, 0.0)
    assert isinstance(verdict, Nowhere)
    told = Refusals().reasons(verdict, names, state.holdings.ledger, 0.0)
    assert set(told) == set(names)
    assert all("no GPU" in why for why in told.values()), told


# row 13, as far as an agent knows who else uses a device


def test_row_13_a_device_that_another_plugin_gave_away_is_passed_by_and_told() -> None:
    fleet = a_fleet(a_node("a", [a_device("g1", index=1, cordoned=True), a_device("g0")]))
    ledger = Ledger(fleet)
    pods = [an_asking_pod(a_claim(a_share(16 * GIB, 0)), name=n) for n in "pq"]
    placed = place_once(ledger.snapshot(), pods[0], POLICIES["binpack"])
    assert placed is not None
    assert {charge.uuid for charge in placed.placement.charges} == {"g0"}
    ledger.apply(Adopt(placed.placement))
    refused = decide(ledger.snapshot(), pods[1], POLICIES["binpack"])
    assert isinstance(refused, Rejected)
    said = {sentence(shortfall) for shortfall in refused.groups[0].shortfalls}
    assert said == {"1 cordoned device", "1 device short of memory (asked 16,384 MiB, largest free 8,192 MiB)"}
