"""Reasons with numbers, and suggestions that are true."""

from dataclasses import replace

import pytest

from builders import a_claim, a_device, a_fleet, a_node, a_pod, a_share, whole
from tessera.allocator.explain import _SENTENCES, reject, sentence
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import place
from tessera.allocator.plan import plan
from tessera.allocator.suggest import Change, suggest
from tessera.core.placement import Placed, Reason, Rejected
from tessera.core.request import Constraints, ModelRule
from tessera.policy.rank import POLICIES


def holding(fleet, *pods):
    """A ledger in which these pods were placed."""
    ledger = Ledger(fleet)
    for pod in pods:
        decision = place(ledger.snapshot(), pod, POLICIES["binpack"])
        assert decision is not None
        ledger.apply(Adopt(decision.placement))
    return ledger.snapshot()


def reasons(snapshot, pod):
    return {
        tuple(g.nodes): [(s.reason, s.devices, s.asked, s.best) for s in g.shortfalls]
        for g in reject(snapshot, pod).groups
    }


def test_a_node_names_the_device_that_comes_nearest():
    snapshot = holding(a_fleet(a_node("a", [a_device("g0", 7168), a_device("g1", 6144, index=1)])))
    pod = a_pod(a_claim(a_share(8192, 0)))
    assert reasons(snapshot, pod) == {("a",): [(Reason.MEMORY, 2, 8192, 7168)]}
    assert sentence(reject(snapshot, pod).groups[0].shortfalls[0]) == (
        "2 devices short of memory (asked 8,192 MiB, largest free 7,168 MiB)"
    )


def test_nodes_with_the_same_reasons_share_a_group_and_the_largest_group_comes_first():
    fleet = a_fleet(a_node("a", [a_device("x", model="T4")]), *(a_node(n, 2) for n in ("b", "c")))
    pod = a_pod(a_claim(a_share(99999, 0)), constraints=Constraints(models_allowed=(ModelRule("A100"),)))
    groups = reject(holding(fleet), pod).groups
    assert [g.nodes for g in groups] == [("b", "c"), ("a",)]
    assert [s.reason for g in groups for s in g.shortfalls] == [Reason.MEMORY, Reason.MODEL]
    assert groups[1].shortfalls[0].detail == "T4"


def test_too_few_devices_says_how_many_fit_and_why_the_others_do_not():
    fleet = a_fleet(a_node("a", 3))
    snapshot = holding(fleet, a_pod(a_claim(whole()), name="w"))
    assert reasons(snapshot, a_pod(a_claim(a_share(1, 1), count=3))) == {
        ("a",): [(Reason.COUNT, 2, 3, 2), (Reason.HELD_EXCLUSIVELY, 1, None, None)]
    }
    assert reasons(snapshot, a_pod(a_claim(a_share(1, 1), count=9)))[("a",)][0] == (Reason.COUNT, 2, 9, 2)


@pytest.mark.parametrize(
    ("facts", "pod_facts", "reason"),
    [
        ({"cordoned": True}, {}, Reason.NODE_CORDONED),
        ({"cpu_milli": 1000}, {"cpu_milli": 2000}, Reason.NODE_CPU),
        ({"memory_mib": 1000}, {"memory_mib": 2000}, Reason.NODE_MEMORY),
        ({"max_pods": 0}, {}, Reason.NODE_PODS),
        ({}, {"node_name": "b"}, Reason.NODE_NAME),
        ({}, {"node_selector": (("k", "v"),)}, Reason.NODE_SELECTOR),
    ],
)
def test_what_the_node_itself_refuses_is_said_of_the_node(facts, pod_facts, reason):
    snapshot = holding(a_fleet(a_node("a", 1, **facts)))
    (group,) = reject(snapshot, a_pod(a_claim(a_share(1, 1)), **pod_facts)).groups
    assert [s.reason for s in group.shortfalls] == [reason]


def test_a_node_without_devices_says_so():
    assert reasons(holding(a_fleet(a_node("a", 0))), a_pod(a_claim(a_share(1, 1)))) == {
        ("a",): [(Reason.NO_DEVICE, 0, None, None)]
    }


def test_containers_that_only_fit_apart_are_told_so():
    two = (a_claim(a_share(20000, 0), containers="x"), a_claim(a_share(20000, 0), containers="y"))
    assert reasons(holding(a_fleet(a_node("a", 1))), a_pod(*two))[("a",)][0][0] == Reason.COMBINATION


def test_numa_is_the_reason_only_where_it_is():
    devices = [a_device(f"g{i}", index=i, numa=i) for i in range(2)]
    pod = a_pod(a_claim(a_share(1, 1), count=2), constraints=Constraints(one_numa=True))
    assert reasons(holding(a_fleet(a_node("a", devices))), pod)[("a",)][0][0] == Reason.NUMA


def test_every_reason_has_words():
    assert set(_SENTENCES) == set(Reason)


def test_lower_memory_is_suggested_to_the_mib():
    snapshot = holding(a_fleet(a_node("a", 2)), a_pod(a_claim(a_share(4096, 100)), name="p0"))
    pod = a_pod(a_claim(a_share(30000, 100), count=2))
    first = suggest(snapshot, pod)[0]
    assert (first.change, first.value, first.text) == (Change.MEMORY, 20480, "lower memory to 20,480 MiB")


def test_another_model_is_suggested_with_the_nodes_that_have_it():
    nodes = [a_node(n, [a_device(n, model="A100")]) for n in ("a", "b", "c")]
    pod = a_pod(a_claim(a_share(1, 1)), constraints=Constraints(models_allowed=(ModelRule("H100"),)))
    (only,) = suggest(holding(a_fleet(*nodes)), pod)
    assert only.text == "any of these 3 nodes (a, b, c) if model A100 were allowed"
    assert only.nodes == ("a", "b", "c")


def test_a_whole_device_is_told_what_share_would_fit():
    snapshot = holding(a_fleet(a_node("a", 1)), a_pod(a_claim(a_share(6144, 250)), name="p0"))
    (only,) = suggest(snapshot, a_pod(a_claim(whole())))
    assert (only.change, only.value) == (Change.SHARING, 750)


@pytest.mark.parametrize(
    ("change", "asked", "value", "at"),
    [
        # Two devices of 24,576 MiB, 5,000 MiB and 300 milli of the first are taken.
        (Change.MEMORY, a_claim(a_share(24000, 100), 2), 19576, lambda v: a_claim(a_share(v, 100), 2)),
        (Change.COMPUTE, a_claim(a_share(1000, 900), 2), 700, lambda v: a_claim(a_share(1000, v), 2)),
        (Change.COUNT, a_claim(a_share(24000, 900), 2), 1, lambda v: a_claim(a_share(24000, 900), v)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_suggested_number_places_the_pod_and_one_more_does_not(change, asked, value, at):
    snapshot = holding(a_fleet(a_node("a", 2)), a_pod(a_claim(a_share(5000, 300)), name="p0"))
    assert {s.change: s.value for s in suggest(snapshot, a_pod(asked))}[change] == value
    assert place(snapshot, a_pod(at(value)), POLICIES["binpack"]) is not None
    assert place(snapshot, a_pod(at(value + 1)), POLICIES["binpack"]) is None


def test_cpu_that_is_too_much_is_suggested_lower():
    snapshot = holding(a_fleet(a_node("a", 1, cpu_milli=4000)))
    (only,) = suggest(snapshot, a_pod(a_claim(a_share(1, 1)), cpu_milli=8000))
    assert (only.change, only.value) == (Change.CPU, 4000)


def test_a_plan_counts_each_placement_for_the_next_and_gives_verdicts_in_order():
    pods = [a_pod(a_claim(a_share(20000, 0)), name=f"p{i}") for i in range(3)]
    verdicts = plan(
        [*pods, replace(pods[0], name="cpu", uid="cpu", request=None)], a_fleet(a_node("a", 2)), POLICIES["spread"]
    )
    assert [type(v.decision) for v in verdicts] == [Placed, Placed, Rejected, type(None)]
    assert verdicts[2].suggestions[0].text == "lower memory to 4,576 MiB"
