"""``fgd``: the node and device on which a pod makes the fragmentation grow least.

The formula of F_n(M) stands in :mod:`tessera.policy.target`. The score of a way to place a pod is::

    int(100 * sigmoid((F_before - F_after) / 1000))

with F in milli, and a node's score is that of its best device. The coarse, whole number is what makes it good:
ties go to the first node, and so nodes are filled one after the other. The same formula with a finer score is up
to three points of allocation worse.

This one policy computes with doubles, because it has to choose as the published simulator does, and that shows in
its last digits: where F does not change its two sums may differ by 1e-12, and then the score is 49 and not 50. The
sums of :func:`published_fragmentation` and their order are the simulator's. They are the same on every platform
all the same: IEEE 754 fixes the result of each addition and product, nothing is fused or reordered (no numpy
function that adds in an order of its own; the kernel is compiled for that), and there is no exponential, whose
last digit differs between libraries: the score is looked up in :data:`THRESHOLDS`. Everybody else computes
:func:`fragmentation` in whole numbers.

Source: Weng et al., USENIX ATC 2023 (as the target workload), and its simulator's plugin FGDScore.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol

import numpy as np

from tessera.core.fleet import Bools, Ints
from tessera.policy.outlook import Outlook
from tessera.policy.score import OUT, Ask, Scene, cpu_left, padded
from tessera.policy.target import Floats, Target

POINT: Final = 20_000
"""A hundredth of a node's fill, which is what a point of kube-scheduler's is (:mod:`tessera.policy.soft`)."""

_ROUNDED_TO_ZERO: Final = 1000 * 1.5 * 2.0**-52
"""A growth below this still has 50 points: 1 + exp of a thousandth of it is 2 when rounded to a double."""


def _threshold(points: int) -> float:
    """Decimal logarithms are rounded correctly, and so the same everywhere."""
    fall = float(1000 * (Decimal(points) / (100 - points)).ln())
    return fall if points != 50 else -_ROUNDED_TO_ZERO


THRESHOLDS: Final[Floats] = np.array([_threshold(points) for points in range(1, 100)], dtype=np.float64)
"""``THRESHOLDS[k - 1]`` is the fall of the fragmentation, in milli, from which on the score is at least ``k``."""

_CHUNK: Final = 2048
"""Nodes that are scored at once: bounds the memory that a pass over a large fleet takes to some ten MB."""

_FEW: Final = 64
"""The same where every kind of pod is looked at by itself; what a processor has near at hand is enough for it."""


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
    able = left[..., None] >= target.values
    waste = np.where(able, 0, left[..., None]).sum(axis=-2)[..., target.value]
    runs = able.sum(axis=-2)[..., target.value] >= target.count
    weight = target.weight[model, np.searchsorted(target.cpus, cpu, side="right")]
    weight = np.where(runs, weight.reshape(weight.shape[0], *[1] * (left.ndim - 2), -1), 0)
    found = idle * (target.total - weight.sum(axis=-1)) + (weight * waste).sum(axis=-1)
    return np.asarray(found, dtype=np.int64)


def published_fragmentation(target: Target, model: Ints, left: Ints, cpu: Ints) -> Floats:
    """F of each node in milli, added up as the published simulator does: digit by digit what it has.

    Six sums over the kinds, the most frequent first, by why a kind leaves something unused (what a kind that can
    run leaves counts as lack of devices); then the sum of the six. To sums that are not its own a kind adds 0.0.
    """
    kinds, idle = target.kinds, left.sum(axis=-1).astype(np.float64)
    each = (-1, *[1] * (left.ndim - 1))
    lost = kinds.chance.reshape(each) * idle
    enough = (cpu >= kinds.cpu[:, None]).reshape(len(lost), *each[:-1])
    alone, claims = kinds.group < 0, kinds.group >= 0
    runs, waste = _by_kind(target, left, kinds.group[claims])
    may = kinds.may[claims][:, model].reshape(len(runs), *each[:-1])
    able, short, whole = may & enough[claims], may & ~enough[claims], lost[claims]
    rest = np.where(runs, kinds.chance[claims].reshape(each) * waste, whole)
    lacks_both = _in_order(short & ~runs, whole)
    lacks_devices = _in_order(able, rest)
    lacks_cpu = _in_order(short & runs, whole)
    alone_fits, alone_lacks = _in_order(enough[alone], lost[alone]), _in_order(~enough[alone], lost[alone])
    wrong_model = _in_order(~may, whole)
    return lacks_both + lacks_devices + lacks_cpu + alone_fits + alone_lacks + wrong_model


def _by_kind(target: Target, left: Ints, groups: Ints) -> tuple[Bools, Ints]:
    """For kinds of these groups: whether they find devices enough, and the milli on devices with too little
    left.
    """
    able = left[..., None] >= target.values
    waste = np.where(able, 0, left[..., None]).sum(axis=-2)[..., target.value[groups]]
    runs = able.sum(axis=-2)[..., target.value[groups]] >= target.count[groups]
    return np.moveaxis(runs, -1, 0), np.moveaxis(waste, -1, 0)


def _in_order(counts: Bools, values: Floats) -> Floats:
    """The sum over the first axis of what counts: the first, and the second added to it, and so on. Every step is
    one that ``accumulate`` returns, so it cannot add in another order, as ``sum`` may.
    """
    terms = np.zeros((len(values) + 1, *values.shape[1:]))
    np.copyto(terms[1:], values, where=counts)
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], dtype=np.float64)


def fall(outlook: Outlook, found: Ways) -> Floats:
    """By how many milli the published F falls, for each node and way that is possible."""
    target, model = outlook.target, found.model
    before = published_fragmentation(target, model, found.before, found.cpu_before)
    first = _first_alike(found)
    row, way = np.nonzero(found.possible)
    wanted = np.zeros(first.shape, dtype=np.bool_)
    wanted[row, first[row, way]] = True
    row, way = np.nonzero(wanted)
    after = np.zeros(first.shape)
    after[row, way] = published_fragmentation(target, model[row], found.after[row, way], found.cpu_after[row])
    return np.asarray(before[:, None] - np.take_along_axis(after, first, axis=1), dtype=np.float64)


def _first_alike(found: Ways) -> Ints:
    """For each way the first that leaves a node in the same state: one that takes as much of a device as full."""
    nodes, count = found.asked.shape
    if count < 2:
        return np.zeros((nodes, count), dtype=np.int64)
    left, asked = found.before, found.asked
    alike = (left[:, :, None] == left[:, None, :]) & (asked[:, :, None] == asked[:, None, :])
    return np.asarray(alike.argmax(axis=2), dtype=np.int64)


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
        points = np.searchsorted(THRESHOLDS, fall(scene.outlook, found), side="right")
        return np.where(found.possible, points, OUT)

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """0 to 100 for each node, by its best device."""
        return best_ways(self, scene, ask, fits, nodes, _FEW)

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """The device first whose choice is scored best."""
        return order_by_ways(self, scene, ask, rows)


def best_ways(scorer: WayScorer, scene: Scene, ask: Ask, fits: Bools, nodes: Ints, at_once: int = _CHUNK) -> Ints:
    """The score of each node's best way."""
    best = np.full(len(nodes), OUT, dtype=np.int64)
    for start in range(0, len(nodes), at_once):
        part = slice(start, start + at_once)
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
