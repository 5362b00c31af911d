"""Counters and histograms of one process: numbers that hot code adds to and a scrape reads.

They are plain objects of one event loop, without locks; a label value that was bound once costs an addition.

Source: Prometheus, "Metric types": a bucket holds what is at most its bound, and all buckets before it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

Values = tuple[str, ...]
"""Label values, in the order of their names."""


class Counter:
    """A number that only grows; with label ``names``, one for each combination of values."""

    __slots__ = ("_children", "_names", "_value")

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._children: dict[Values, Counter] = {}
        self._value = 0.0

    def labels(self, *values: str) -> "Counter":
        """The number of these label values, from now on shown with 0. Raises ``ValueError`` for a wrong count."""
        return self._children.get(values) or self._children.setdefault(_checked(self._names, values), Counter())

    def inc(self, amount: float = 1.0) -> None:
        """Add to it. Raises ``ValueError`` for less than nothing, and where labels have to say to which."""
        if self._names or amount < 0:
            raise ValueError("a counter only grows, and one with labels through them alone")
        self._value += amount

    def rows(self) -> Iterator[tuple[Values, float]]:
        """Every number with its label values."""
        if not self._names:
            yield (), self._value
        for values, child in self._children.items():
            yield values, child._value


class Histogram:
    """How often values fell below each of some bounds, and their sum; with label ``names``, one for each."""

    __slots__ = ("_bounds", "_children", "_counts", "_names", "_sum")

    def __init__(self, bounds: Sequence[float], names: Sequence[str] = ()) -> None:
        self._bounds = tuple(map(float, bounds))
        if list(self._bounds) != sorted(set(self._bounds)) or not all(map(math.isfinite, self._bounds)):
            raise ValueError(f"bounds are finite and ascend, unlike {self._bounds}")
        self._names = tuple(names)
        self._children: dict[Values, Histogram] = {}
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def labels(self, *values: str) -> "Histogram":
        """The one of these label values, shown from now on. Raises ``ValueError`` for a wrong count."""
        found = self._children.get(values)
        return found or self._children.setdefault(_checked(self._names, values), Histogram(self._bounds))

    def observe(self, value: float) -> None:
        """Count a value. Raises ``ValueError`` where labels have to say where."""
        if self._names:
            raise ValueError("a histogram with labels counts through them alone")
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def rows(self) -> Iterator[tuple[Values, Sequence[tuple[str, int]], float]]:
        """Label values, the running counts by bound (``+Inf`` last), and the sum."""
        if not self._names:
            yield (), self._running(), self._sum
        for values, child in self._children.items():
            yield values, child._running(), child._sum

    def _running(self) -> Sequence[tuple[str, int]]:
        total, found = 0, []
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found


def _checked(names: Sequence[str], values: Values) -> Values:
    if not names or len(values) != len(names):
        raise ValueError(f"labels are {', '.join(names) or 'none'}; {len(values)} values were given")
    return values
