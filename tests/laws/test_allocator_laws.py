"""Laws of placing and booking, each checked over thousands of small worlds against an independent oracle."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.worlds import WORLDS, legal_somewhere, nodes, overlaps, rules_of_all_kinds, worlds
from tessera.allocator.fit import memo_of
from tessera.allocator.ledger import Adopt, Commit, Ledger, Refused, Release, Reserve
from tessera.allocator.place import place
from tessera.allocator.plan import decide
from tessera.allocator.rules import STATIC_RULES, passes
from tessera.allocator.single import OneNode
from tessera.core.fleet import Fleet, Usage
from tessera.core.placement import Charge, Placed, Placement, Rejected
from tessera.core.request import Pod
from tessera.policy.rank import POLICIES, SIGN

MANY = settings(max_examples=int(os.environ.get("TESSERA_LAW_EXAMPLES", "150")), deadline=None, derandomize=True)
FILLS = sorted(name for name, policy in POLICIES.items() if {policy.node, policy.device} <= SIGN.keys())
OTHERS = "others"
every_policy = pytest.mark.parametrize("policy", [*FILLS, OTHERS])


def drawn(policy: str, data: st.DataObject) -> str:
    """The policy, or one of those that weigh more than fill, which take longer: so they share their examples."""
    return data.draw(st.sampled_from(sorted(POLICIES.keys() - set(FILLS)))) if policy == OTHERS else policy


def place_all(fleet: Fleet, queue: tuple[Pod, ...], policy: str) -> tuple[Ledger, list[Placement]]:
    ledger, placed = Ledger(fleet), []
    for pod in queue:
        decision = decide(ledger.snapshot(), pod, POLICIES[policy])
        if isinstance(decision, Placed):
            ledger.apply(Reserve(decision.placement))
            ledger.apply(Commit(pod.uid))
            placed.append(decision.placement)
    return ledger, placed


def same_usage(left: Usage, right: Usage) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in Usage.__slots__)


@pytest.mark.parametrize("kind", sorted(WORLDS))
@every_policy
@MANY
@given(data=st.data())
def test_a_pod_is_placed_exactly_when_some_placement_is_legal(policy, kind, data):
    world, queue = data.draw(WORLDS[kind])
    policy = drawn(policy, data)
    fleet = Fleet(world)
    ledger, held, pods_on = Ledger(fleet), [], {}
    for pod in queue:
        legal = legal_somewhere(world, held, pods_on, pod)
        decision = decide(ledger.snapshot(), pod, POLICIES[policy])
        assert isinstance(decision, Placed) == legal
        if isinstance(decision, Placed):
            effects = ledger.apply(Reserve(decision.placement))
            assert not any(isinstance(e, Refused) for e in effects)
            held += [(c.uuid, c) for c in decision.placement.charges]
            pods_on[decision.placement.node] = pods_on.get(decision.placement.node, 0) + 1


@MANY
@given(case=worlds)
def test_no_device_is_ever_oversubscribed_in_any_dimension(case):
    world, queue = case
    _, placed = place_all(Fleet(world), queue, "binpack")
    by_device: dict[str, list[Charge]] = {}
    for placement in placed:
        for charge in placement.charges:
            by_device.setdefault(charge.uuid, []).append(charge)
    for node in world:
        assert node.max_pods is None or sum(p.node == node.name for p in placed) <= node.max_pods
        for device in node.devices:
            charges = by_device.get(device.uuid, [])
            assert sum(c.memory_mib for c in charges) <= device.memory_mib
            assert sum(c.compute_milli for c in charges) <= device.compute_milli
            assert sum(c.slots for c in charges) <= device.slots
            assert len(charges) == 1 or not any(c.exclusive for c in charges)


@MANY
@given(case=worlds)
def test_every_rejection_gives_every_node_exactly_one_reason_group(case):
    world, queue = case
    fleet = Fleet(world)
    ledger, _ = place_all(fleet, queue[:-1], "binpack")
    decision = decide(ledger.snapshot(), queue[-1], POLICIES["binpack"])
    if isinstance(decision, Rejected):
        named = [name for group in decision.groups for name in group.nodes]
        assert sorted(named) == sorted(node.name for node in world)
        assert all(group.shortfalls for group in decision.groups)


@MANY
@given(case=worlds)
def test_releasing_undoes_reserving(case):
    world, queue = case
    fleet = Fleet(world)
    ledger, placed = place_all(fleet, queue, "spread")
    for placement in placed:
        ledger.apply(Release(placement.pod_uid))
    assert same_usage(ledger.snapshot().usage, Usage.nothing(fleet))


@MANY
@given(case=worlds, order=st.randoms(use_true_random=False))
def test_the_order_of_independent_events_does_not_matter(case, order):
    world, queue = case
    fleet = Fleet(world)
    ledger, placed = place_all(fleet, queue, "binpack")
    shuffled = list(placed)
    order.shuffle(shuffled)
    assert same_usage(Ledger.rebuilt(fleet, shuffled).snapshot().usage, ledger.snapshot().usage)


@MANY
@given(case=worlds, gone=st.sets(st.integers(0, 4)))
def test_the_ledger_rebuilt_from_the_log_equals_the_live_one(case, gone):
    world, queue = case
    fleet = Fleet(world)
    ledger, placed = place_all(fleet, queue, "binpack")
    log = {p.pod_uid: p for p in placed}
    for uid in [p.pod_uid for i, p in enumerate(placed) if i in gone]:
        ledger.apply(Release(uid))
        del log[uid]
    rebuilt = Ledger.rebuilt(fleet, log.values())
    assert same_usage(rebuilt.snapshot().usage, ledger.snapshot().usage)
    assert rebuilt.entries.keys() == ledger.entries.keys()


@MANY
@given(case=worlds)
def test_a_snapshot_does_not_change_when_the_ledger_does(case):
    world, queue = case
    fleet = Fleet(world)
    ledger = Ledger(fleet)
    before = ledger.snapshot()
    for pod in queue:
        decision = decide(ledger.snapshot(), pod, POLICIES["binpack"])
        if isinstance(decision, Placed):
            ledger.apply(Adopt(decision.placement))
    assert same_usage(before.usage, Usage.nothing(fleet))


@MANY
@given(case=worlds)
def test_a_device_is_charged_the_peak_of_what_runs_together_on_it(case):
    world, queue = case
    _, placed = place_all(Fleet(world), queue, "binpack")
    by_uid = {pod.uid: pod for pod in queue}
    for placement in placed:
        for charge in placement.charges:
            granted = {
                name: [g.share for g in grants if g.uuid == charge.uuid]
                for name, grants in placement.grants.items()
            }
            together = [
                [share for name in alive for share in granted.get(name, [])]
                for alive in overlaps(by_uid[placement.pod_uid])
            ]
            assert charge.memory_mib == max(sum(s.memory_request for s in shares) for shares in together)
            assert charge.compute_milli == max(sum(s.compute_request for s in shares) for shares in together)
            assert charge.slots == max(len(shares) for shares in together)
            assert charge.exclusive == any(s.exclusive for shares in together for s in shares)


@pytest.mark.parametrize("policy", FILLS)
@MANY
@given(data=st.data())
def test_one_node_is_placed_without_arrays_exactly_as_with_them(policy, data):
    world, queue = data.draw(worlds)
    node = world[0]
    ledger, placed = Ledger(Fleet([node])), []
    for pod in queue:
        without = OneNode(node, placed).place(pod, POLICIES[policy])
        decision = place(ledger.snapshot(), pod, POLICIES[policy])
        assert without == (decision.placement if decision else None)
        if without is not None:
            ledger.apply(Adopt(without))
            placed.append(without)


@MANY
@given(case=st.tuples(nodes(), rules_of_all_kinds))
def test_rules_for_one_device_and_for_columns_rule_the_same_devices_out(case):
    world, rules = case
    fleet = Fleet(world)
    ruled = memo_of(fleet).ruled(rules)
    for (reason, column), (scalar_reason, rules_out) in zip(ruled.by_reason, STATIC_RULES, strict=True):
        assert reason == scalar_reason
        assert column.tolist() == [rules_out(device, rules) for device in fleet.devices]
    assert (~ruled.out).tolist() == [passes(device, rules) for device in fleet.devices]
