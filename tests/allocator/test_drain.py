"""Making room for a pod of whole devices: which node, who moves, who does not, and what is said of it."""

from dataclasses import replace

import pytest

from builders import a_claim, a_fleet, a_node, a_pod, a_share, whole
from tessera.allocator.drain import asks_whole, plan_drain
from tessera.allocator.ledger import Adopt, Ledger, Refused
from tessera.allocator.moves import (
    Drain,
    NoDrain,
    Reach,
    Stays,
    Tenant,
    Terms,
    Why,
    drain_lines,
    events_of,
    no_drain_lines,
    tenants_by_node,
)
from tessera.allocator.place import place
from tessera.core.request import Constraints, Request
from tessera.policy.rank import POLICIES

FULL = a_share(24576, 1000)


def placer(snapshot, pod):
    return place(snapshot, pod, POLICIES["binpack"])


def settled(fleet, *where, **marks):
    """A ledger with a pod for each (name, node, device index, MiB, milli, cpu), and the tenants by node."""
    ledger, pods = Ledger(fleet), {}
    for name, node, index, memory, milli, cpu in where:
        rules = Constraints(uuids_allowed=frozenset({f"{node}-{index}"}))
        fixed = a_pod(a_claim(a_share(memory, milli)), name=name, cpu_milli=cpu, constraints=rules)
        ledger.apply(Adopt(placer(ledger.snapshot(), fixed).placement))
        pods[name] = a_pod(a_claim(a_share(memory, milli)), name=name, cpu_milli=cpu)
    return ledger, tenants_by_node(ledger.entries, pods, **marks)


def plan_for(ledger, tenants, pod, most=8, reach=Reach.EQUAL):
    return plan_drain(ledger.snapshot(), pod, tenants, placer, Terms(most, reach))


TWO = a_fleet(a_node("n0", 2), a_node("n1", 2))
NEW = a_pod(a_claim(FULL, 2), name="new")
"""Two nodes of two devices, and a pod that wants both devices of one."""


def test_the_node_of_the_fewest_moves_is_freed():
    ledger, tenants = settled(TWO, ("a", "n0", 0, 1, 100, 0), ("b", "n0", 1, 1, 100, 0), ("c", "n1", 0, 1, 100, 0))
    plan = plan_for(ledger, tenants, NEW)
    assert isinstance(plan, Drain)
    assert (plan.placement.node, [(m.source.pod_uid, m.target.node) for m in plan.moves]) == ("n1", [("c", "n0")])
    assert plan.rivals == 1


def test_of_equally_many_moves_the_smallest_are_chosen():
    ledger, tenants = settled(TWO, ("large", "n0", 0, 1, 400, 0), ("small", "n1", 1, 1, 300, 0))
    plan = plan_for(ledger, tenants, NEW)
    assert isinstance(plan, Drain)
    assert [m.source.pod_uid for m in plan.moves] == ["small"]


def test_memory_counts_as_size_where_it_is_the_greater_part():
    ledger, tenants = settled(TWO, ("much-memory", "n0", 0, 12288, 100, 0), ("compute", "n1", 1, 1, 300, 0))
    plan = plan_for(ledger, tenants, NEW)
    assert isinstance(plan, Drain)
    assert [m.source.pod_uid for m in plan.moves] == ["compute"]


def test_a_pod_may_move_to_another_device_of_its_node():
    fleet = a_fleet(a_node("n0", 2))
    ledger, tenants = settled(fleet, ("a", "n0", 0, 1, 100, 0), ("b", "n0", 1, 1, 100, 0))
    plan = plan_for(ledger, tenants, a_pod(a_claim(FULL), name="new"))
    assert isinstance(plan, Drain)
    assert [(m.source.charges[0].uuid, m.target.charges[0].uuid) for m in plan.moves] == [("n0-0", "n0-1")]


def test_cpu_is_freed_too():
    """A device is free on n0, the only node that the pod may use, but too little CPU is."""
    fleet = a_fleet(a_node("n0", 2, cpu_milli=8), a_node("n1", 1, cpu_milli=8))
    ledger, tenants = settled(fleet, ("busy", "n0", 1, 1, 100, 5), ("calm", "n0", 1, 1, 100, 1))
    plan = plan_for(ledger, tenants, a_pod(a_claim(FULL), name="new", cpu_milli=4, node_name="n0"))
    assert isinstance(plan, Drain)
    assert [(m.source.pod_uid, m.target.node) for m in plan.moves] == [("busy", "n1")]


def test_one_pod_gives_the_device_and_another_the_cpu():
    """On n0 ``small`` is on the only device and ``busy``, which has none, takes the CPU; n1 has room for both."""
    fleet = a_fleet(a_node("n0", 1, cpu_milli=8), a_node("n1", 1, cpu_milli=8))
    ledger, tenants = settled(fleet, ("small", "n0", 0, 1, 100, 0))
    bare = a_pod(name="busy", cpu_milli=6, request=Request(()))
    busy = Tenant(bare, placer(ledger.snapshot(), replace(bare, node_name="n0")).placement)
    ledger.apply(Adopt(busy.placement))
    tenants["n0"].append(busy)
    plan = plan_for(ledger, tenants, a_pod(a_claim(FULL), name="new", cpu_milli=4, node_name="n0"))
    assert isinstance(plan, Drain)
    assert [(m.source.pod_uid, m.target.node) for m in plan.moves] == [("small", "n1"), ("busy", "n1")]


def test_nobody_moves_where_not_everybody_finds_a_place():
    """Both nodes have two shares of 600; each device has room for none beside its own."""
    ledger, tenants = settled(
        TWO,
        *((f"{node}{i}", node, i, 1, 600, 0) for node in ("n0", "n1") for i in (0, 1)),
    )
    plan = plan_for(ledger, tenants, NEW)
    assert isinstance(plan, NoDrain)
    assert (plan.why, dict(plan.nodes)) == (Why.NOWHERE, {Why.NOWHERE: 2})


def test_more_moves_than_allowed_are_said_and_not_made():
    ledger, tenants = settled(
        TWO,
        *((f"p{i}", "n0", i % 2, 1, 100, 0) for i in range(4)),
        *((f"q{i}", "n1", 0, 1, 100, 0) for i in (0, 1, 2)),
    )
    plan = plan_for(ledger, tenants, NEW, most=2)
    assert isinstance(plan, NoDrain)
    assert (plan.why, plan.nearest, dict(plan.nodes)) == (Why.TOO_MANY, 3, {Why.TOO_MANY: 2})
    assert no_drain_lines(plan) == (
        "every node needs more moves than are allowed",
        "2 nodes in need of more moves",
        "the nearest node needs 3 moves",
    )
    allowed = plan_for(ledger, tenants, NEW, most=3)
    assert isinstance(allowed, Drain)
    assert len(allowed.moves) == 3


@pytest.mark.parametrize(
    ("reach", "priority", "moves"),
    [
        (Reach.LOWER, -1, True),
        (Reach.LOWER, 0, False),
        (Reach.EQUAL, 0, True),
        (Reach.EQUAL, 1, False),
        (Reach.ANY, 9, True),
    ],
)
def test_only_who_is_within_reach_moves(reach, priority, moves):
    fleet = a_fleet(a_node("n0", 1), a_node("n1", 1))
    ledger, tenants = settled(
        fleet, ("a", "n0", 0, 1, 100, 0), ("b", "n1", 0, 1, 100, 0), priorities={"a": priority, "b": 99}
    )
    plan = plan_for(ledger, tenants, a_pod(a_claim(FULL), name="new"), reach=reach)
    assert isinstance(plan, Drain) == moves


def test_what_must_stay_is_named():
    fleet = a_fleet(*(a_node(f"n{i}", 1) for i in range(3)))
    ledger, pods = Ledger(fleet), {}
    for name, share in (("marked", a_share(1, 100)), ("alone", whole()), ("stranger", a_share(1, 100))):
        pods[name] = a_pod(a_claim(share), name=name, node_name=f"n{len(pods)}")
        ledger.apply(Adopt(placer(ledger.snapshot(), pods[name]).placement))
    del pods["stranger"]
    tenants = tenants_by_node(ledger.entries, pods, marked=frozenset({"marked"}))
    plan = plan_for(ledger, tenants, a_pod(a_claim(FULL), name="new"), reach=Reach.ANY)
    assert isinstance(plan, NoDrain)
    assert (plan.why, dict(plan.stays)) == (Why.HELD, {Stays.MARKED: 1, Stays.EXCLUSIVE: 1, Stays.FOREIGN: 1})
    assert "in the way: 1 holds its devices exclusively, 1 marked to stay, 1 not ours" in no_drain_lines(plan)


def test_a_reservation_is_not_moved():
    fleet = a_fleet(a_node("n0", 1), a_node("n1", 1))
    ledger, tenants = settled(fleet, ("a", "n0", 0, 1, 100, 0), ("b", "n1", 0, 1, 950, 0))
    bound = tenants["n0"][0]
    waiting = {**tenants, "n0": [Tenant(bound.pod, bound.placement, committed=False)]}
    pod = a_pod(a_claim(FULL), name="new")
    assert isinstance(plan_for(ledger, waiting, pod), NoDrain)


def test_who_holds_only_memory_need_not_leave_a_pod_of_all_compute():
    fleet = a_fleet(a_node("n0", 1), a_node("n1", 1))
    ledger, tenants = settled(
        fleet, ("memory", "n0", 0, 1000, 0, 0), ("compute", "n0", 0, 1000, 100, 0), ("b", "n1", 0, 1000, 900, 0)
    )
    plan = plan_for(ledger, tenants, a_pod(a_claim(a_share(1000, 1000)), name="new"))
    assert isinstance(plan, Drain)
    assert [m.source.pod_uid for m in plan.moves] == ["compute"]


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (a_pod(a_claim(a_share(1, 100)), name="new"), Why.NOT_WHOLE),
        (a_pod(a_claim(FULL), name="new"), Why.FITS),
        (a_pod(a_claim(FULL, 3), name="new"), Why.NO_NODE),
    ],
)
def test_where_moving_is_not_the_answer_that_is_said(pod, why):
    ledger, tenants = settled(TWO, ("a", "n0", 0, 1, 100, 0))
    plan = plan_for(ledger, tenants, pod)
    assert isinstance(plan, NoDrain)
    assert plan.why is why


def test_it_is_off_unless_asked_for():
    ledger, tenants = settled(TWO, ("a", "n0", 0, 1, 100, 0), ("b", "n1", 0, 1, 100, 0))
    assert plan_drain(ledger.snapshot(), NEW, tenants, placer, Terms()) == NoDrain(Why.OFF)


@pytest.mark.parametrize("most", [-1, 9])
def test_more_than_eight_moves_cannot_be_asked_for(most):
    with pytest.raises(ValueError, match=f"most_moves={most}: write 0"):
        Terms(most)


def test_devices_of_one_numa_node_are_freed_together():
    """Devices 0 and 1 are on NUMA node 0, 2 and 3 on 1: freeing 0 and 2 would be fewer moves and no help."""
    node = a_node("n0", [a.__class__(**{**_fields(a), "numa": a.index // 2}) for a in a_node("n0", 4).devices])
    fleet = a_fleet(node, a_node("n1", 2))
    ledger, tenants = settled(
        fleet,
        ("a", "n0", 0, 1, 100, 0),
        ("b", "n0", 2, 1, 100, 0),
        ("c", "n0", 2, 1, 100, 0),
        ("d", "n0", 3, 1, 100, 0),
        ("e", "n0", 1, 1, 100, 0),
        ("f", "n1", 0, 1, 800, 0),
    )
    pod = a_pod(a_claim(FULL, 2), name="new", constraints=Constraints(one_numa=True))
    plan = plan_for(ledger, tenants, pod)
    assert isinstance(plan, Drain)
    assert sorted(m.source.pod_uid for m in plan.moves) == ["a", "e"]


def _fields(device):
    return {name: getattr(device, name) for name in device.__slots__}


def test_the_events_are_taken_by_the_ledger_one_by_one():
    ledger, tenants = settled(TWO, ("a", "n0", 0, 1, 100, 0), ("b", "n1", 0, 1, 300, 0))
    plan = plan_for(ledger, tenants, NEW)
    assert isinstance(plan, Drain)
    effects = [effect for event in events_of(plan) for effect in ledger.apply(event)]
    assert not [e for e in effects if isinstance(e, Refused)]
    assert ledger.entries["a"].committed
    assert ledger.entries["a"].placement.node == "n1"
    assert ledger.entries["new"].placement.node == "n0"


def test_a_plan_is_explained():
    ledger, tenants = settled(TWO, ("a", "n0", 0, 1, 100, 0), ("b", "n1", 1, 1, 300, 0))
    plan = plan_for(ledger, tenants, NEW)
    assert isinstance(plan, Drain)
    assert drain_lines(plan) == (
        "default/new fits on n0 [0, 1] after 1 move"
        " (the fewest and smallest that work; 1 other node could be freed too)",
        "default/a: n0 [0] -> n1 [1]",
    )


def test_whole_devices_are_asked_for_by_memory_by_compute_or_exclusively():
    assert asks_whole(a_pod(a_claim(whole())))
    assert asks_whole(a_pod(a_claim(a_share(1, 1000))))
    assert asks_whole(a_pod(a_claim(a_share(1, 100)), constraints=Constraints(idle_device=True)))
    assert not asks_whole(a_pod(a_claim(whole(), containers="a"), a_claim(a_share(1, 100), containers="b")))
    assert not asks_whole(a_pod(request=Request(())))
