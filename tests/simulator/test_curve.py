"""Curves: means over the arrivals of a percent, as the published analysis takes them."""

import numpy as np

from tessera.simulator.curve import Point, curve, first_percent


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_point_is_the_mean_of_the_arrivals_that_round_to_its_percent():
    # 49.6 and 50.4 % round to 50; 30 and 40 % were held then: 35 % in the mean.
    points = curve(1000, ints(496, 504, 700), ints(300, 400, 650))
    assert points[0] == Point(49, 35.0)
    assert points[1] == Point(50, 35.0)
    assert points[-1] == Point(70, 65.0)


def test_a_percent_without_arrivals_takes_those_beside_it_and_else_the_last():
    points = {p.arrived: p.allocation for p in curve(1000, ints(100, 120, 200), ints(100, 100, 160))}
    assert points == {
        9: 10.0,
        10: 10.0,
        11: 10.0,
        12: 10.0,
        **dict.fromkeys(range(13, 19), 10.0),
        19: 16.0,
        20: 16.0,
    }


def test_each_value_is_rounded_before_the_mean_and_the_mean_once_more():
    # 1 of 30,000 is 0.0033 %: 0.00; 2 are 0.01 (0.0067). Their mean 0.005 goes to the even neighbour.
    points = curve(30_000, ints(1, 2), ints(1, 2))
    assert points == (Point(0, 0.0),)


def test_the_first_rejection_is_told_in_percent_that_had_arrived():
    assert first_percent(1000, ints(100, 300, 612), [0, 4, -1]) == 61.2
    assert first_percent(1000, ints(100, 300), [0, 4]) is None


def test_nothing_gives_no_curve():
    assert curve(0, ints(), ints()) == ()
