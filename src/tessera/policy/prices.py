"""P, prices: what so many milli left on one device are worth, given the workload that is to be expected.

A device is filled by a *load*, a multiset of shares that fit it together. The linear program ::

    maximise   sum over loads c of x_c * (milli of c)
    such that  sum of x_c <= devices,   sum of x_c * (shares of size v in c) <= demand of v

has for each size a price y_v, high where it is easily had in any gap. A share of size v is then worth v - y_v,
and r milli left on a device are worth the most valuable load that fits into r (a knapsack)::

    V(r) = max over loads c of at most r milli of sum of (v - y_v)

Demand is M scaled to 1.03 times the fleet. On the public openb trace V is 0 up to 190 milli, 270 at 320, 405 at
470 and 810 from 810 milli on: a gap that no usual share fits into is worth nothing.

Source: Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", 1961; our study of the
trace.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import gcd
from typing import Final

from tessera.core.units import WHOLE
from tessera.policy.simplex import Column, Prices, prices_of
from tessera.policy.target import Kind

FINE: Final = 1 << 20
"""Prices are whole numbers of this part of a milli."""

_DEMAND_PERCENT: Final = 103
_GRAIN: Final = 10
"""Sizes are rounded up to so many milli where there are many, which bounds the program to 100 rows."""

_MANY_SIZES: Final = 40


def worth_by_rest(kinds: Iterable[tuple[Kind, int]], devices: int) -> list[int]:
    """V(r) for r from 0 to 1000, in parts of ``FINE`` of a milli; all 0 where nothing is known of shares."""
    demand: Counter[int] = Counter()
    for kind, pods in kinds:
        if kind.count and 0 < kind.milli <= WHOLE:
            demand[kind.milli] += pods * kind.count
    if len(demand) > _MANY_SIZES:
        demand = _coarse(demand)
    asked = sum(size * count for size, count in demand.items())
    if not asked or not devices:
        return [0] * (WHOLE + 1)
    sizes = sorted(demand)
    room = devices * WHOLE * _DEMAND_PERCENT
    stock = [devices, *(demand[size] * room // (asked * 100) for size in sizes)]
    prices = prices_of(stock, lambda now: _best_load(sizes, now))
    worth, _ = _knapsack(sizes, [size * prices.unit - y for size, y in zip(sizes, prices.of[1:], strict=True)], 1)
    return [value * FINE // prices.unit for value in worth]


def _coarse(demand: Counter[int]) -> Counter[int]:
    coarse: Counter[int] = Counter()
    for size, count in demand.items():
        coarse[-(-size // _GRAIN) * _GRAIN] += count
    return coarse


def _best_load(sizes: Sequence[int], prices: Prices) -> Column | None:
    """The load that brings most at these prices, if that is more than its device costs."""
    grain = gcd(WHOLE, *sizes)
    worths = [size * prices.unit - y for size, y in zip(sizes, prices.of[1:], strict=True)]
    worth, last = _knapsack(sizes, worths, grain)
    if worth[-1] <= prices.of[0]:
        return None
    counts, rest = [0] * len(sizes), len(worth) - 1
    while last[rest] != _NOTHING:
        if last[rest] == _LESS:
            rest -= 1
        else:
            counts[last[rest]] += 1
            rest -= sizes[last[rest]] // grain
    return Column(sum(count * size for count, size in zip(counts, sizes, strict=True)), (1, *counts))


_NOTHING: Final = -1
_LESS: Final = -2


def _knapsack(sizes: Sequence[int], worths: Sequence[int], grain: int) -> tuple[list[int], list[int]]:
    """For each capacity in ``grain``: the greatest worth, and the size that was put in last to have it."""
    worth, last = [0], [_NOTHING]
    for room in range(1, WHOLE // grain + 1):
        best, choice = worth[room - 1], _LESS if last[room - 1] != _NOTHING else _NOTHING
        for i, size in enumerate(sizes):
            rest = room - size // grain
            if rest < 0:
                break
            if worth[rest] + worths[i] > best:
                best, choice = worth[rest] + worths[i], i
        worth.append(best)
        last.append(choice)
    return worth, last
