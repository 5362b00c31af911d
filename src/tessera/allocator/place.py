"""Place one pod: the best node that can host it and the devices on it, or the reasons why none can.

1. nodes that are open to the pod at all; 2. nodes on which every claim finds enough devices by itself;
3. those in the policy's order; 4. on the first one where all claims fit together, the devices.
Step 4 is exact, so a pod is placed exactly when some legal placement exists. Deterministic.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tessera.allocator.fit import Need, fitting, memo_of, open_nodes
from tessera.allocator.grants import group_of, placement_of
from tessera.allocator.rules import constraints_of
from tessera.allocator.search import LocalClaim, LocalDevice, Rules, SearchLimit, search
from tessera.core.fleet import Bools, Ints, Snapshot
from tessera.core.placement import Placed
from tessera.core.request import Constraints, Pod, Request, phases
from tessera.policy.outlook import Outlook, usual_outlook
from tessera.policy.rank import Policy
from tessera.policy.score import Ask, Scene
from tessera.policy.scorers import SCORERS


@dataclass(frozen=True, slots=True)
class Prospect:
    """A pod against a snapshot: what each claim needs, where each fits alone, and which nodes are left."""

    snapshot: Snapshot
    pod: Pod
    request: Request
    needs: tuple[Need, ...]
    rules: tuple[Constraints, ...]
    fits: tuple[Bools, ...]
    open: Bools
    hosts: Bools


def blank(snapshot: Snapshot, pod: Pod) -> Prospect:
    """A pod of which it is not known yet where it fits: nowhere. Raises ``ValueError`` for one without a
    request.
    """
    request = pod.request
    if request is None:
        raise ValueError(f"pod {pod.key} asks for no accelerator")
    fleet = snapshot.fleet
    memo = memo_of(fleet)
    needs = tuple(memo.need(claim.share) for claim in request.claims)
    rules = tuple(constraints_of(claim, request.constraints) for claim in request.claims)
    fits = tuple(np.zeros(len(fleet.devices), dtype=np.bool_) for _ in request.claims)
    nowhere = np.zeros(len(fleet.nodes), dtype=np.bool_)
    return Prospect(snapshot, pod, request, needs, rules, fits, nowhere, nowhere)


def prospect(snapshot: Snapshot, pod: Pod) -> Prospect:
    """Steps 1 and 2 for all nodes at once. Raises ``ValueError`` for a pod that has no request."""
    found = blank(snapshot, pod)
    fits = tuple(fitting(snapshot, need, rule) for need, rule in zip(found.needs, found.rules, strict=True))
    open_ = open_nodes(snapshot, pod)
    hosts = open_.copy()
    for claim, fit in zip(found.request.claims, fits, strict=True):
        hosts &= snapshot.fleet.nodes_with(fit, claim.count)
    return replace(found, fits=fits, open=open_, hosts=hosts)


def place(snapshot: Snapshot, pod: Pod, policy: Policy, outlook: Outlook | None = None) -> Placed | None:
    """The placement that the policy likes best, or ``None`` where no node can host the pod.

    ``outlook`` is what is expected to come; where nothing is said, what is usual.
    """
    found = prospect(snapshot, pod)
    ranking = policy.preferring(found.request.preference)
    rows = np.flatnonzero(found.hosts)
    scene = Scene(snapshot, outlook or usual_outlook(snapshot.fleet))
    main, ask = ask_of(found)
    scores = SCORERS[ranking.node].scores(scene, ask, fits_of(found, main), rows)
    return first_of(found, Orderer(scene, ask, ranking), in_order(rows, scores))


def ask_of(found: Prospect) -> tuple[int, Ask]:
    """What a policy sees of the pod, and which claim that is: the one that takes most in all; -1 where none is."""
    pod, claims = found.pod, found.request.claims
    if not claims:
        return -1, Ask(
            np.zeros(len(found.snapshot.fleet.devices), dtype=np.int64), 0, pod.weighed_cpu_milli, pod.memory_mib
        )
    sizes = [claim.count * int(need.takes.max(initial=0)) for claim, need in zip(claims, found.needs, strict=True)]
    main = sizes.index(max(sizes))
    return main, Ask(found.needs[main].takes, claims[main].count, pod.weighed_cpu_milli, pod.memory_mib)


def fits_of(found: Prospect, main: int) -> Bools:
    """On which devices a share of that claim fits."""
    return found.fits[main] if main >= 0 else np.zeros(len(found.snapshot.fleet.devices), dtype=np.bool_)


class Order(Protocol):
    """The devices of a node in order of preference."""

    def __call__(self, rows: Sequence[int]) -> list[int]:
        """Device rows of one node, given in the fleet's order, the preferred ones first."""
        ...


@dataclass(frozen=True, slots=True)
class Orderer:
    """The order that a policy has."""

    scene: Scene
    ask: Ask
    policy: Policy

    def __call__(self, rows: Sequence[int]) -> list[int]:
        """As :class:`Order` says."""
        return SCORERS[self.policy.device].order(self.scene, self.ask, rows)


def first_of(found: Prospect, order: Order, rows: Iterable[int]) -> Placed | None:
    """The placement on the first of these nodes where all claims fit together."""
    fleet = found.snapshot.fleet
    tried: set[tuple[object, ...]] = set()
    for node_row in rows:
        device_rows = _rows_on(found, node_row, order, tried)
        if device_rows is not None:
            chosen = [[fleet.devices[row] for row in taken] for taken in device_rows]
            return Placed(placement_of(found.pod, fleet.node_names[node_row], found.request.claims, chosen))
    return None


def in_order(rows: Ints, scores: Ints) -> Iterator[int]:
    """``rows`` by score, best first; the first is found without sorting the rest."""
    if not len(rows):
        return
    best = int(np.argmax(scores))
    yield int(rows[best])
    for i in np.argsort(-scores, kind="stable"):
        if i != best:
            yield int(rows[i])


def _rows_on(
    found: Prospect, node_row: int, order: Order, tried: set[tuple[object, ...]]
) -> tuple[tuple[int, ...], ...] | None:
    """Device rows for every claim on this node. Nodes alike one that failed are not searched again."""
    claims, constraints = found.request.claims, found.request.constraints
    rows = found.snapshot.fleet.rows(node_row)
    if not claims:
        return ()
    if len(claims) == 1 and not constraints.one_numa:
        fits = found.fits[0][rows.start : rows.stop].tolist()
        fitting_rows = [row for row, fit in zip(rows, fits, strict=True) if fit]
        return (tuple(order(fitting_rows)[: claims[0].count]),)
    problem = local_problem(found.snapshot, found, node_row)
    if problem in tried:
        return None
    try:
        chosen = search(*problem[:3], [row - rows.start for row in order(rows)], problem[3])
    except SearchLimit:
        chosen = None
    if chosen is None:
        tried.add(problem)
        return None
    return tuple(tuple(rows.start + j for j in taken) for taken in chosen)


Problem = tuple[tuple[LocalDevice, ...], tuple[LocalClaim, ...], int, Rules]


def local_problem(snapshot: Snapshot, found: Prospect, node_row: int) -> Problem:
    """The packing problem of one node, as :mod:`tessera.allocator.search` takes it."""
    fleet, usage, constraints = snapshot.fleet, snapshot.usage, found.request.constraints
    rows = fleet.rows(node_row)
    devices = tuple(
        LocalDevice(
            memory=int(fleet.memory[r] - usage.memory[r]),
            compute=int(fleet.compute[r] - usage.compute[r]),
            slots=int(fleet.slots[r] - usage.slots[r]),
            numa=int(fleet.numa[r]),
            idle=bool(usage.slots[r] == 0),
        )
        for r in rows
    )
    life = phases(found.pod.containers)
    claims = tuple(
        LocalClaim(
            count=claim.count,
            needs=tuple((int(n.memory[r]), int(n.compute[r])) if fit[r] else None for r in rows),
            phases=tuple(p for p, alive in enumerate(life) if not alive.isdisjoint(claim.containers)),
            exclusive=n.exclusive,
            group=group_of(claim, constraints.same_device),
        )
        for claim, n, fit in zip(found.request.claims, found.needs, found.fits, strict=True)
    )
    return devices, claims, len(life), Rules(constraints.one_numa, constraints.distinct_devices)
