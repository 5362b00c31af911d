"""What rests are worth, on workloads small enough to work out by hand."""

from tessera.policy.prices import FINE, worth_by_rest
from tessera.policy.target import Kind


def milli(worth: list[int], *rests: int) -> list[int]:
    return [round(worth[rest] / FINE) for rest in rests]


def test_a_rest_that_no_usual_share_fits_is_worth_nothing():
    """Only shares of 700 come, more than there are devices (1.03 / 0.7): each device holds one, and is worth
    700."""
    worth = worth_by_rest([(Kind(0, 700, 1), 5)], devices=100)
    assert milli(worth, 0, 300, 699, 700, 1000) == [0, 0, 0, 700, 700]


def test_shares_that_fill_the_holes_of_others_anyway_lend_no_worth_to_a_hole():
    """Of 100 devices' worth, 140 pods ask for 700 and 20 for 250: a hole of 300 is left on every device that
    holds a 700, far more holes than small shares. One hole more is worth nothing, a device is worth its 700.
    """
    worth = worth_by_rest([(Kind(0, 700, 1), 140), (Kind(0, 250, 1), 20)], devices=100)
    assert milli(worth, 250, 300, 700, 950, 1000) == [0, 0, 700, 700, 700]


def test_holes_are_worth_something_where_small_shares_are_many():
    """One 700 to ten of 250 fill more than the devices: a device holds 700 + 250 or four of 250, so that one 700
    less makes room for three of 250, each of which is worth a third of it. A device is worth four of them.
    """
    worth = worth_by_rest([(Kind(0, 700, 1), 10), (Kind(0, 250, 1), 100)], devices=100)
    assert milli(worth, 249, 250, 500, 1000) == [0, 233, 467, 933]


def test_worth_grows_with_the_rest_and_never_above_it():
    worth = worth_by_rest([(Kind(0, size, 1), 3) for size in range(7, 1000, 13)], devices=50)
    assert worth == sorted(worth)
    assert all(value <= rest * FINE for rest, value in enumerate(worth))


def test_nothing_is_worth_anything_where_nothing_is_known():
    assert set(worth_by_rest([], devices=10)) == {0}
    assert set(worth_by_rest([(Kind(4000, 0, 0), 9)], devices=10)) == {0}
    assert set(worth_by_rest([(Kind(0, 500, 1), 1)], devices=0)) == {0}
