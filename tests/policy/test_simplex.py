"""Prices of a small linear program, worked out by hand."""

from fractions import Fraction

import pytest

from tessera.policy.simplex import Column, Prices, prices_of


def offering(*columns: Column):
    """A generator of the column of these that gains most at the prices."""

    def best(prices: Prices) -> Column | None:
        def gain(column: Column) -> int:
            paid = sum(take * price for take, price in zip(column.takes, prices.of, strict=True))
            return column.value * prices.unit - paid

        found = max(columns, key=gain)
        return found if gain(found) > 0 else None

    return best


def exact(prices: Prices) -> list[Fraction]:
    return [Fraction(price, prices.unit) for price in prices.of]


def test_what_is_plenty_costs_nothing_and_what_is_short_costs_what_it_brings():
    """3 units of wood, 100 of iron; a chair brings 5 for one of each: wood is worth 5, iron 0."""
    assert exact(prices_of([3, 100], offering(Column(5, (1, 1))))) == [5, 0]


def test_two_things_share_two_resources():
    """max 3x + 2y with x + y <= 4 and x + 3y <= 6: x = 3, y = 1; prices p + q = 3, p + 3q = 2 have q < 0.

    So y is not worth its place: only x is made, 4 of it, and the first resource alone has a price, 3.
    """
    assert exact(prices_of([4, 6], offering(Column(3, (1, 1)), Column(2, (1, 3))))) == [3, 0]


def test_prices_are_exact_fractions():
    """max x + y with 2x + y <= 3 and x + 2y <= 3: both are made once; 2p + q = 1 = p + 2q, a third each."""
    assert exact(prices_of([3, 3], offering(Column(1, (2, 1)), Column(1, (1, 2))))) == [Fraction(1, 3)] * 2


def test_nothing_in_stock_still_has_a_price():
    assert exact(prices_of([0], offering(Column(7, (1,))))) == [7]


def test_a_column_that_takes_of_nothing_is_refused():
    with pytest.raises(ValueError, match="takes of no resource"):
        prices_of([1], lambda _: Column(1, (0,)))
