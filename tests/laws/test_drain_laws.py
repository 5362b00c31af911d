"""Laws of making room: a plan is legal at every step, and one is found wherever a single move suffices.

The oracle moves each pod in turn to each set of devices there is, and asks whether the newcomer then fits.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_claim, a_device, a_node, a_pod, a_share, whole
from tessera.allocator.drain import plan_drain
from tessera.allocator.ledger import Adopt, Ledger, Refused
from tessera.allocator.moves import Drain, NoDrain, Reach, Tenant, Terms, Why, events_of
from tessera.allocator.place import place
from tessera.core.device import Node
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.placement import Placed
from tessera.core.request import Constraints, ModelRule, Pod
from tessera.policy.rank import POLICIES

MANY = settings(max_examples=int(os.environ.get("TESSERA_LAW_EXAMPLES", "100")), deadline=None, derandomize=True)


def placer(snapshot: Snapshot, pod: Pod) -> Placed | None:
    return place(snapshot, pod, POLICIES["spread"])


MODEL = st.sampled_from([*[()] * 6, (ModelRule("A"),), (ModelRule("B"),)])


@st.composite
def small_fleets(draw: st.DrawFn) -> list[Node]:
    """Two or three nodes of one to three devices, with little CPU and few places for pods."""
    return [
        a_node(
            f"n{n}",
            [
                a_device(f"n{n}-{i}", 4, index=i, model=draw(st.sampled_from(["A", "A", "B"])), slots=5)
                for i in range(draw(st.sampled_from([1, 2, 2, 2])))
            ],
            cpu_milli=draw(st.sampled_from([None, None, None, 6])),
            max_pods=draw(st.sampled_from([None, None, None, 3])),
            cordoned=draw(st.integers(0, 19)) == 19,
        )
        for n in range(draw(st.sampled_from([2, 3, 3])))
    ]


@st.composite
def small_pods(draw: st.DrawFn, name: str) -> Pod:
    """A share of one or two devices, mostly in part, or (rarely) a pod of CPU only."""
    cpu, rules = draw(st.integers(0, 3)), Constraints(models_allowed=draw(MODEL))
    if draw(st.integers(0, 9)) == 9:
        bare = a_pod(name=name, cpu_milli=max(cpu, 1))
        return replace(bare, containers=a_pod(a_claim(a_share(1))).containers)
    small = [a_share(1, 250), a_share(1, 250), a_share(2, 500), a_share(1)]
    share = draw(st.sampled_from([*small, *small, *small, a_share(4, 1000), whole()]))
    return a_pod(a_claim(share, draw(st.sampled_from([1, 1, 1, 2]))), name=name, cpu_milli=cpu, constraints=rules)


@st.composite
def newcomers(draw: st.DrawFn) -> Pod:
    """A pod of one to three whole devices."""
    share = draw(st.sampled_from([a_share(4, 1000), a_share(1, 1000), whole()]))
    rules = Constraints(models_allowed=draw(MODEL))
    return a_pod(
        a_claim(share, draw(st.sampled_from([1, 1, 2, 2]))),
        name="new",
        cpu_milli=draw(st.integers(0, 3)),
        constraints=rules,
    )


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Node], list[Tenant], Pod]:
    """A fleet, pods on it wherever they fit (not where a policy would put them), and a newcomer."""
    world = draw(small_fleets())
    ledger, tenants = Ledger(Fleet(world)), []
    devices = sum(len(node.devices) for node in world)
    for n in range(draw(st.integers(devices, devices + 2))):
        pod = draw(small_pods(f"p{n}"))
        ways = list(every_place(ledger.snapshot(), pod))
        # Most go where nobody is, so that the newcomer seldom fits.
        ways = [w for w in ways if is_alone(ledger, w)] or ways
        if ways:
            placed = ways[draw(st.integers(0, len(ways) - 1))]
            ledger.apply(Adopt(placed.placement))
            kept, priority = draw(st.integers(0, 6)), draw(st.sampled_from([0, 0, 0, 1, 2]))
            tenants.append(Tenant(pod, placed.placement, priority, committed=kept != 5, marked=kept == 6))
    return world, tenants, draw(newcomers())


def is_alone(ledger: Ledger, placed: Placed) -> bool:
    """Whether the pod would be the first on one of its devices."""
    taken = {charge.uuid for entry in ledger.entries.values() for charge in entry.placement.charges}
    return any(charge.uuid not in taken for charge in placed.placement.charges)


def every_place(snapshot: Snapshot, pod: Pod) -> Iterator[Placed]:
    """Every node and set of devices that can host the pod, by asking for each of them by name."""
    assert pod.request is not None
    count = pod.request.claims[0].count if pod.request.claims else 0
    for node in snapshot.fleet.nodes:
        for chosen in combinations(node.devices, count):
            uuids = frozenset(device.uuid for device in chosen)
            rules = replace(pod.request.constraints, uuids_allowed=uuids)
            named = replace(pod, node_name=node.name, request=replace(pod.request, constraints=rules))
            placed = placer(snapshot, named)
            if placed is not None:
                yield placed


def ledger_of(world: list[Node], tenants: list[Tenant]) -> Ledger:
    return Ledger.rebuilt(Fleet(world), (tenant.placement for tenant in tenants))


def by_node(tenants: list[Tenant]) -> dict[str, list[Tenant]]:
    return {name: [t for t in tenants if t.placement.node == name] for name in {t.placement.node for t in tenants}}


def may_move(tenant: Tenant, reach: Reach) -> bool:
    """Whether the pod may be moved for one of priority 1: from the rule, and not taken from the code."""
    reached = {Reach.LOWER: tenant.priority < 1, Reach.EQUAL: tenant.priority <= 1, Reach.ANY: True}[reach]
    alone = any(charge.exclusive for charge in tenant.placement.charges)
    return reached and tenant.committed and not tenant.marked and not alone


def one_move_helps(world: list[Node], tenants: list[Tenant], pod: Pod, reach: Reach) -> bool:
    """Whether some single pod that may be moved can go somewhere so that the newcomer fits; all ways are tried."""
    for tenant in tenants:
        if not may_move(tenant, reach):
            continue
        others = ledger_of(world, [t for t in tenants if t is not tenant])
        for way in every_place(others.snapshot(), tenant.pod):
            others.apply(Adopt(way.placement))
            if placer(others.snapshot(), pod) is not None:
                return True
            others = ledger_of(world, [t for t in tenants if t is not tenant])
    return False


REACHES = st.sampled_from(list(Reach))


@MANY
@given(scene=scenes(), most=st.integers(1, 3), reach=REACHES)
def test_a_plan_is_legal_at_every_step_and_makes_the_pod_fit(scene, most, reach):
    world, tenants, pod = scene
    ledger = ledger_of(world, tenants)
    plan = plan_drain(ledger.snapshot(), pod, by_node(tenants), placer, Terms(most, reach), priority=1)
    if isinstance(plan, NoDrain):
        return
    effects = [effect for event in events_of(plan) for effect in ledger.apply(event)]
    assert not [effect for effect in effects if isinstance(effect, Refused)]
    assert pod.uid in ledger.entries


@MANY
@given(scene=scenes(), most=st.sampled_from([1, 1, 1, 2]), reach=REACHES)
def test_a_plan_moves_at_most_so_many_and_nobody_who_stays(scene, most, reach):
    world, tenants, pod = scene
    snapshot = ledger_of(world, tenants).snapshot()
    plan = plan_drain(snapshot, pod, by_node(tenants), placer, Terms(most, reach), priority=1)
    if isinstance(plan, NoDrain):
        return
    moved = {move.source.pod_uid for move in plan.moves}
    assert 1 <= len(moved) == len(plan.moves) <= most
    assert all(may_move(tenant, reach) for tenant in tenants if tenant.pod.uid in moved)


@MANY
@given(scene=scenes(), reach=REACHES)
def test_a_plan_is_found_exactly_where_one_move_suffices(scene, reach):
    world, tenants, pod = scene
    snapshot = ledger_of(world, tenants).snapshot()
    plan = plan_drain(snapshot, pod, by_node(tenants), placer, Terms(1, reach), priority=1)
    fits = placer(snapshot, pod) is not None
    assert isinstance(plan, Drain) == (not fits and one_move_helps(world, tenants, pod, reach))
    assert fits == (isinstance(plan, NoDrain) and plan.why is Why.FITS)


@MANY
@given(scene=scenes())
def test_what_is_not_known_is_not_moved(scene):
    """Leaving a pod out of the tenants is as good as marking it to stay."""
    world, tenants, pod = scene
    snapshot = ledger_of(world, tenants).snapshot()
    marked = [replace(t, marked=True) if n == 0 else t for n, t in enumerate(tenants)]
    known = [t for n, t in enumerate(tenants) if n != 0]
    terms = Terms(2, Reach.ANY)
    left_out = plan_drain(snapshot, pod, by_node(known), placer, terms)
    kept = plan_drain(snapshot, pod, by_node(marked), placer, terms)
    assert isinstance(left_out, Drain) == isinstance(kept, Drain)
