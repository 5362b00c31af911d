"""A small linear program solved exactly: which prices make the resources that are short worth what they bring.

Maximise the value of columns that are made on demand, in whole-number arithmetic, so that every machine finds the
same prices (a floating-point solver may stop at another of several optimal ones).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

MOST_PIVOTS: Final = 2_000
"""Ends a search that takes longer than any sensible workload's: some hundred steps."""


@dataclass(frozen=True, slots=True)
class Column:
    """Something that can be made: what one piece brings, and what it takes of each resource."""

    value: int
    takes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of one unit of each resource, times ``unit``."""

    of: tuple[int, ...]
    unit: int


Generator = Callable[[Prices], Column | None]
"""A column that brings more than its resources cost at these prices; ``None`` where there is none."""


class _Basis:
    """The inverse of the basis and the stock that it leaves, times ``unit`` (fraction-free, after Edmonds)."""

    def __init__(self, stock: Sequence[int]) -> None:
        size = len(stock)
        self.unit = 1
        self.values = [0] * size
        self.rows = [[amount, *(int(i == j) for j in range(size))] for i, amount in enumerate(stock)]

    def prices(self) -> Prices:
        used = [(value, row) for value, row in zip(self.values, self.rows, strict=True) if value]
        size = len(self.rows)
        return Prices(tuple(sum(value * row[j + 1] for value, row in used) for j in range(size)), self.unit)

    def enter(self, column: Column) -> bool:
        """Make as much of the column as there is room for; ``False`` where nothing limits it."""
        amounts = [(j + 1, amount) for j, amount in enumerate(column.takes) if amount]
        weights = [sum(row[j] * amount for j, amount in amounts) for row in self.rows]
        leaving = self._leaving(weights)
        if leaving is None:
            return False
        pivot, base = weights[leaving], self.rows[leaving]
        for i, (row, weight) in enumerate(zip(self.rows, weights, strict=True)):
            if i != leaving:
                self.rows[i] = [(pivot * x - weight * y) // self.unit for x, y in zip(row, base, strict=True)]
        self.unit, self.values[leaving] = pivot, column.value
        return True

    def _leaving(self, weights: Sequence[int]) -> int | None:
        """The row that runs out first; ties are settled by the whole row, so that no basis comes twice."""
        limits = [i for i, weight in enumerate(weights) if weight > 0]
        for j in range(len(self.rows) + 1):
            if len(limits) <= 1:
                break
            ratios = {i: Fraction(self.rows[i][j], weights[i]) for i in limits}
            least = min(ratios.values())
            limits = [i for i in limits if ratios[i] == least]
        return limits[0] if limits else None


def prices_of(stock: Sequence[int], generator: Generator) -> Prices:
    """The prices of the resources, of which there is so much (none negative), where what is made brings most.

    Best effort after ``MOST_PIVOTS`` steps. Raises ``ValueError`` for a column that takes of nothing.
    """
    basis = _Basis(stock)
    for _ in range(MOST_PIVOTS):
        prices = basis.prices()
        short = min(range(len(stock)), key=lambda j: prices.of[j])
        if prices.of[short] < 0:  # better to leave some of that resource lying
            column: Column | None = Column(0, tuple(int(j == short) for j in range(len(stock))))
        else:
            column = generator(prices)
        if column is None:
            return prices
        if not basis.enter(column):
            raise ValueError(f"a column of value {column.value} takes of no resource")
    return basis.prices()
