"""Small worlds for laws, and an oracle that decides them by trying everything.

Sizes are tiny on purpose (memory 0-4, compute 0-1000 in quarters, 0-3 devices): off-by-one faults show there
and hide among realistic sizes.
"""

from collections.abc import Callable
from itertools import combinations, product

from hypothesis import strategies as st

from builders import a_claim, a_device, a_node, a_pod, a_share
from tessera.core.device import Node
from tessera.core.placement import Charge
from tessera.core.request import Claim, Constraints, ContainerKind, ModelRule, Pod

QUARTERS = st.sampled_from([0, 250, 500, 750, 1000])


@st.composite
def nodes(draw: st.DrawFn, most_nodes: int = 3, most_devices: int = 3) -> list[Node]:
    """Up to three nodes of up to three small devices."""
    made = []
    for n in range(draw(st.integers(1, most_nodes))):
        devices = [
            a_device(
                f"n{n}-{i}",
                draw(st.integers(0, 4)),
                index=i,
                model=draw(st.sampled_from(["A", "B"])),
                slots=draw(st.integers(1, 3)),
                numa=draw(st.sampled_from([None, 0, 1])),
                healthy=draw(st.booleans()) or draw(st.booleans()),
                cordoned=draw(st.integers(0, 5)) == 0,
            )
            for i in range(draw(st.integers(0, most_devices)))
        ]
        made.append(a_node(f"n{n}", devices, max_pods=draw(st.sampled_from([None, 1, 2]))))
    return made


KINDS = st.sampled_from([ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR])
CONSTRAINTS = st.builds(
    Constraints,
    models_allowed=st.sampled_from([(), (), (ModelRule("a"),)]),
    one_numa=st.integers(0, 2).map(lambda n: n == 0),
    idle_device=st.integers(0, 5).map(lambda n: n == 0),
    distinct_devices=st.integers(0, 2).map(lambda n: n == 0),
    same_device=st.sampled_from([(), (), (("c0", "c1"),)]),
)


UUIDS = st.frozensets(st.sampled_from([f"n{n}-{i}" for n in range(2) for i in range(3)] + ["gone"]), max_size=3)
MODELS = st.lists(st.builds(ModelRule, st.sampled_from(["a", "A", "b", "c"]), st.booleans()), max_size=2).map(
    tuple
)
rules_of_all_kinds = st.builds(
    Constraints,
    vendor=st.sampled_from([None, "nvidia", "other"]),
    models_allowed=MODELS,
    models_denied=MODELS,
    uuids_allowed=UUIDS,
    uuids_denied=UUIDS,
    indices=st.frozensets(st.integers(0, 3), max_size=2),
    modes=st.sampled_from([frozenset(), frozenset({"shared"}), frozenset({"mig"})]),
)
"""Constraints on a device's own facts."""


@st.composite
def crowded(draw: st.DrawFn) -> list[Node]:
    """One node of one to three roomy devices, so that what refuses is contention and nothing else."""
    devices = [
        a_device(
            f"g{i}", draw(st.integers(2, 4)), index=i, slots=draw(st.integers(1, 3)), numa=draw(st.integers(0, 1))
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    return [a_node("n0", devices, max_pods=draw(st.sampled_from([None, None, 2])))]


@st.composite
def plain_pods(draw: st.DrawFn, name: str = "p") -> Pod:
    """A pod of one small claim without constraints, one in four exclusive."""
    share = a_share(
        draw(st.integers(0, 2)), draw(st.sampled_from([0, 0, 250, 500])), exclusive=draw(st.integers(0, 3)) == 0
    )
    return a_pod(a_claim(share, draw(st.sampled_from([1, 1, 2]))), name=name)


@st.composite
def layered_pods(draw: st.DrawFn, name: str = "p") -> Pod:
    """A pod of two to four containers of all kinds with a device each and no constraints."""
    count = draw(st.integers(2, 4))
    claims = [a_claim(a_share(draw(st.integers(1, 3)), draw(QUARTERS)), 1, f"c{c}") for c in range(count)]
    return a_pod(*claims, name=name, kinds={f"c{c}": draw(KINDS) for c in range(count)})


@st.composite
def pods(draw: st.DrawFn, name: str = "p", most_claims: int = 3) -> Pod:
    """A pod of up to three claims with mixed container kinds and constraints."""
    count = draw(st.integers(1, most_claims))
    claims = [
        a_claim(
            a_share(draw(st.integers(0, 3)), draw(QUARTERS), exclusive=draw(st.integers(0, 5)) == 0),
            draw(st.integers(1, 2)),
            f"c{c}",
        )
        for c in range(count)
    ]
    kinds = {f"c{c}": draw(KINDS) for c in range(count)}
    return a_pod(*claims, name=name, kinds=kinds, constraints=draw(CONSTRAINTS))


def any_queue(one_pod: Callable[..., st.SearchStrategy[Pod]], most: int = 5) -> st.SearchStrategy[tuple[Pod, ...]]:
    """Up to ``most`` pods of one kind, named p0, p1, ..."""
    return st.integers(1, most).flatmap(lambda n: st.tuples(*(one_pod(name=f"p{i}") for i in range(n))))


@st.composite
def ruled_pods(draw: st.DrawFn, name: str = "p") -> Pod:
    """A pod of one to three small claims under one rule across devices or containers."""
    count = draw(st.integers(1, 3))
    claims = [
        a_claim(a_share(draw(st.integers(0, 2)), 250), draw(st.integers(1, 2)), f"c{c}") for c in range(count)
    ]
    rule = draw(st.sampled_from(["one_numa", "distinct_devices", "same_device"]))
    constraints = Constraints(**{rule: (("c0", "c1", "c2"),) if rule == "same_device" else True})
    return a_pod(*claims, name=name, constraints=constraints)


WORLDS = {
    "varied": st.tuples(nodes(), any_queue(pods)),
    "simple pods": st.tuples(crowded(), any_queue(plain_pods, 7)),
    "pods of many containers": st.tuples(crowded(), any_queue(layered_pods, 3)),
    "pods under rules": st.tuples(crowded(), any_queue(ruled_pods, 4)),
}
"""Kinds of fleets and queues: varied, or crowded in one particular way so that contention decides."""

worlds = st.one_of(*WORLDS.values())


def overlaps(pod: Pod) -> list[set[str]]:
    """The sets of containers that run together, written down from the rule and not taken from the code:
    all app containers with all sidecars; each init container with the sidecars declared before it.
    """
    names = [c.name for c in pod.containers]
    sidecars = [c.name for c in pod.containers if c.kind is ContainerKind.SIDECAR]
    apps = {c.name for c in pod.containers if c.kind is ContainerKind.APP}
    together = [apps | set(sidecars)]
    for c in pod.containers:
        if c.kind is ContainerKind.INIT:
            together.append({c.name} | {s for s in sidecars if names.index(s) < names.index(c.name)})
    return together


def legal_somewhere(world: list[Node], held: list[tuple[str, Charge]], pods_on: dict[str, int], pod: Pod) -> bool:
    """Whether any assignment of devices on any node is legal; every one is tried."""
    assert pod.request is not None
    claims = pod.request.claims
    for node in world:
        if node.max_pods is not None and pods_on.get(node.name, 0) + 1 > node.max_pods:
            continue
        sets = [list(combinations(range(len(node.devices)), claim.count)) for claim in claims]
        if any(_legal(node, held, pod, choice) for choice in product(*sets)):
            return True
    return False


def _legal(node: Node, held: list[tuple[str, Charge]], pod: Pod, choice: tuple[tuple[int, ...], ...]) -> bool:
    assert pod.request is not None
    request, rules = pod.request, pod.request.constraints
    for claim, chosen in zip(request.claims, choice, strict=True):
        numas = {node.devices[j].numa for j in chosen}
        if rules.one_numa and claim.count > 1 and (None in numas or len(numas) > 1):
            return False
    if rules.distinct_devices and len({j for c in choice for j in c}) < sum(map(len, choice)):
        return False
    for group in rules.same_device:
        taken = [
            set(c)
            for claim, c in zip(request.claims, choice, strict=True)
            if not set(group).isdisjoint(claim.containers)
        ]
        if any(t != taken[0] for t in taken):
            return False
    return all(_device_stays_sound(node, held, pod, choice, j) for j in range(len(node.devices)))


def _device_stays_sound(
    node: Node, held: list[tuple[str, Charge]], pod: Pod, choice: tuple[tuple[int, ...], ...], j: int
) -> bool:
    assert pod.request is not None
    device, rules = node.devices[j], pod.request.constraints
    mine = [claim for claim, c in zip(pod.request.claims, choice, strict=True) if j in c]
    if not mine:
        return True
    others = [charge for uuid, charge in held if uuid == device.uuid]
    busy, used = sum(c.slots for c in others), sum(c.compute_milli for c in others)
    if not device.healthy or device.cordoned or any(c.exclusive for c in others):
        return False
    if rules.models_allowed and device.model != "A":
        return False
    if busy and (rules.idle_device or any(c.share.exclusive for c in mine)):
        return False
    if used >= 1000 and any(c.share.compute_request.milli == 0 for c in mine):
        return False
    return all(_phase_fits(device.memory_mib, device.slots, others, alive, mine) for alive in overlaps(pod))


def _phase_fits(memory: int, slots: int, others: list[Charge], alive: set[str], mine: list[Claim]) -> bool:
    now = [claim for claim in mine if not alive.isdisjoint(claim.containers)]
    if any(claim.share.exclusive for claim in now) and len(now) > 1:
        return False
    return (
        sum(c.memory_mib for c in others) + sum(c.share.memory_request.mib for c in now) <= memory
        and sum(c.compute_milli for c in others) + sum(c.share.compute_request.milli for c in now) <= 1000
        and sum(c.slots for c in others) + len(now) <= slots
    )
