"""The curve of a run: what was held while how much had arrived. What the columns are: :mod:`tessera.simulator`.

Source: the analysis of the openb experiments: demand is rounded to whole percent of the cluster, each value to two
decimals, and the mean of a percent's values once more; a percent without an arrival takes those beside it. Where
those have none either (a pod of a small cluster may be many percent), the last value before stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tessera.core.fleet import Ints
from tessera.simulator.fragmentation import Workload

_HUNDREDTHS: Final = 100 * 100


@dataclass(frozen=True, slots=True)
class Point:
    """Percent that had arrived, was held, could not be used by the target workload; the last of what was idle."""

    arrived: int
    allocation: float
    fragmentation: float | None = None
    ratio: float | None = None


def curve(
    capacity: int, arrived: Ints, used: Ints, fragmented: Ints | None = None, workload: Workload | None = None
) -> tuple[Point, ...]:
    """A point for each whole percent, from the milli after each arrival; capacity is in milli too."""
    if not capacity or not len(arrived):
        return ()
    percent = np.rint(arrived * 100 / capacity).astype(np.int64)
    held = np.rint(used * _HUNDREDTHS / capacity).astype(np.int64)
    columns = [held]
    if fragmented is not None and workload is not None:
        total = max(workload.total, 1)
        columns.append(np.rint(fragmented * (_HUNDREDTHS / (capacity * total))).astype(np.int64))
        idle = np.maximum(capacity - used, 1)
        columns.append(np.rint(fragmented / (idle * total) * _HUNDREDTHS).astype(np.int64))
    means = [_means(percent, column) for column in columns]
    points: list[Point] = []
    for at in range(int(percent[-1]) + 1):
        found = _around(means, at)
        if found is not None:
            points.append(Point(at, *found))
        elif points:
            points.append(replace(points[-1], arrived=at))
    return tuple(points)


def _means(percent: Ints, values: Ints) -> dict[int, tuple[int, int]]:
    """Sum and number of the values of each percent."""
    order = np.argsort(percent, kind="stable")
    keys, starts, lengths = np.unique(percent[order], return_index=True, return_counts=True)
    totals = np.add.reduceat(values[order], starts)
    return {int(k): (int(t), int(n)) for k, t, n in zip(keys, totals, lengths, strict=True)}


def _around(means: Sequence[dict[int, tuple[int, int]]], at: int) -> tuple[float, ...] | None:
    """The mean of each column at a percent, or over the percents beside it."""
    near = [at] if at in means[0] else [p for p in (at - 1, at + 1) if p in means[0]]
    if not near:
        return None
    found = []
    for column in means:
        total, count = (sum(part) for part in zip(*(column[p] for p in near), strict=True))
        found.append(round(total / count) / 100)
    return tuple(found)


def at_percent(points: Sequence[Point], percent: int) -> Point | None:
    """The point of this percent."""
    return next((point for point in points if point.arrived == percent), None)


def first_percent(capacity: int, arrived: Ints, nodes: Sequence[int]) -> float | None:
    """How much had arrived (percent, two decimals) when the first pod was rejected; ``None`` if none was."""
    row = next((i for i, node in enumerate(nodes) if node < 0), None)
    return None if row is None or not capacity else round(int(arrived[row]) * 100 / capacity, 2)
