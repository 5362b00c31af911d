"""``fgd``: the node and device on which a pod makes the fragmentation grow least.

The formula of F_n(M) stands in :mod:`tessera.policy.target`. The score of a way to place a pod is::

    int(100 * sigmoid((F_before - F_after) / 1000))

with F in milli, and a node's score is that of its best device. The coarse, whole number is what makes it good:
ties go to the first node, and so nodes are filled one after the other. The same formula with a finer score is up
to three points of allocation worse.

Source: Weng et al., USENIX ATC 2023 (as the target workload), and its simulator's plugin FGDScore.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final, Protocol

import numpy as np

from tessera.core.fleet import Bools, Ints
from tessera.policy.outlook import Outlook
from tessera.policy.score import OUT, Ask, Scene, cpu_left, padded
from tessera.policy.target import ONE, Target

POINT: Final = 20_000
"""A hundredth of a node's fill, which is what a point of kube-scheduler's is (:mod:`tessera.policy.soft`)."""

_FINE: Final = 1 << 16

# Rounded far above the last digit of a logarithm, in which libraries of mathematics differ.
THRESHOLDS: Final[Ints] = np.array(
    [round(1000 * log(k / (100 - k)) * _FINE) * (ONE // _FINE) for k in range(1, 100)], dtype=np.int64
)
"""``THRESHOLDS[k - 1]`` is the fall of the fragmentation from which on the score is at least ``k``."""

_CHUNK: Final = 2048
"""Nodes that are scored at once: bounds the memory that a pass over a large fleet takes to some ten MB."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways to place a pod on some nodes: one line a node, one column a way.

    ``before`` and ``after`` are milli left (nodes x devices, nodes x ways x devices), ``cpu_*`` milli-cores left.
    ``asked`` is what is taken of devices in all, ``possible`` are the ways that exist.
    """

    nodes: Ints
    model: Ints
    before: Ints
    after: Ints
    cpu_before: Ints
    cpu_after: Ints
    asked: Ints
    possible: Bools


def ways(scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ways:
    """One way for each device, or (for none or several devices) one way: those with the least left."""
    fleet = scene.snapshot.fleet
    rows, real = padded(fleet, nodes)
    before = _at(scene.snapshot.usage.left, rows, real)
    fitting = np.asarray(_at(fits, rows, real), dtype=np.bool_)
    taken, possible = _choices(ask.count, before, fitting)
    takes = np.where(taken, _at(ask.takes, rows, real)[:, None, :], 0)
    cpu = cpu_left(scene.snapshot, nodes)
    return Ways(
        nodes=nodes,
        model=fleet.node_model[nodes],
        before=before,
        after=np.maximum(before[:, None, :] - takes, 0),
        cpu_before=cpu,
        cpu_after=np.maximum(cpu - ask.cpu_milli, 0),
        asked=np.asarray(takes.sum(axis=-1), dtype=np.int64),
        possible=possible,
    )


def _at(values: Ints | Bools, rows: Ints, real: Bools) -> Ints:
    """The values of these device rows, 0 where there is no device."""
    return np.where(real, values[rows], 0) if rows.size else np.zeros(rows.shape, dtype=np.int64)


def _choices(count: int, left: Ints, fitting: Bools) -> tuple[Bools, Bools]:
    """Which devices each way takes (nodes x ways x devices), and which ways exist."""
    nodes, devices = left.shape
    if count == 1:
        return np.broadcast_to(np.eye(devices, dtype=np.bool_), (nodes, devices, devices)), fitting
    taken = np.zeros((nodes, 1, devices), dtype=np.bool_)
    if count:
        tightest = np.argsort(np.where(fitting, left, CROWDED), axis=1, kind="stable")[:, :count]
        np.put_along_axis(taken[:, 0, :], tightest, values=True, axis=1)
    return taken, np.asarray((fitting.sum(axis=1) >= count)[:, None], dtype=np.bool_)


CROWDED: Final = 1 << 40
"""Sorts what does not fit behind whatever is left of a device."""


def fragmentation(target: Target, model: Ints, left: Ints, cpu: Ints) -> Ints:
    """F of each node, in parts of :data:`ONE` of a milli. ``left`` has one line a node; missing devices are 0."""
    idle = np.asarray(left.sum(axis=-1), dtype=np.int64)
    values = target.values
    able = left[..., None] >= values
    waste = np.where(able, 0, left[..., None]).sum(axis=-2)[..., target.value]
    runs = able.sum(axis=-2)[..., target.value] >= target.count
    weight = target.weight[model, np.searchsorted(target.cpus, cpu, side="right")]
    weight = np.where(runs, weight.reshape(weight.shape[0], *[1] * (left.ndim - 2), -1), 0)
    found = idle * (target.total - weight.sum(axis=-1)) + (weight * waste).sum(axis=-1)
    return np.asarray(found, dtype=np.int64)


def growth(outlook: Outlook, found: Ways) -> Ints:
    """By how much F grows, for each node and way."""
    before = fragmentation(outlook.target, found.model, found.before, found.cpu_before)
    return fragmentation(outlook.target, found.model, found.after, found.cpu_after) - before[:, None]


class WayScorer(Protocol):
    """Scores ways to place a pod."""

    def ways_scored(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """The score of each way on each node, ``OUT`` where there is none."""
        ...


class Fgd:
    """See the module."""

    worth = POINT

    def ways_scored(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """The score of each way on each node, ``OUT`` where there is none."""
        found = ways(scene, ask, fits, nodes)
        points = np.searchsorted(THRESHOLDS, -growth(scene.outlook, found), side="right")
        return np.where(found.possible, points, OUT)

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """0 to 100 for each node, by its best device."""
        return best_ways(self, scene, ask, fits, nodes)

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """The device first whose choice is scored best."""
        return order_by_ways(self, scene, ask, rows)


def best_ways(scorer: WayScorer, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
    """The score of each node's best way."""
    best = np.full(len(nodes), OUT, dtype=np.int64)
    for start in range(0, len(nodes), _CHUNK):
        part = slice(start, start + _CHUNK)
        best[part] = scorer.ways_scored(scene, ask, fits, nodes[part]).max(axis=1, initial=OUT)
    return best


def order_by_ways(scorer: WayScorer, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
    """Devices by the score of choosing them alone; where several are taken, those with the least left first."""
    if len(rows) < 2:
        return list(rows)
    if ask.count != 1:
        left = scene.snapshot.usage.left
        return sorted(rows, key=lambda row: int(left[row]))
    fleet = scene.snapshot.fleet
    node = int(fleet.node_of[rows[0]])
    fits = np.zeros(len(fleet.devices), dtype=np.bool_)
    fits[list(rows)] = True
    scores = scorer.ways_scored(scene, ask, fits, np.array([node]))[0].tolist()
    first = int(fleet.first[node])
    return sorted(rows, key=lambda row: -scores[row - first])


FGD: Final = Fgd()
