"""Which device models are short, worked out by hand."""

from tessera.policy.protection import bottleneck, scarcity

ONLY_A, ONLY_B, EITHER = frozenset({0}), frozenset({1}), frozenset({0, 1})


def test_a_model_that_is_asked_for_beyond_what_is_free_is_the_bottleneck():
    assert bottleneck([100, 100], {ONLY_A: 120, ONLY_B: 80}) == {0}
    assert bottleneck([100, 100], {ONLY_A: 100, ONLY_B: 80}) == frozenset()


def test_demand_that_may_go_elsewhere_makes_room():
    """What wants either moves to B: A holds its 90, B 50 + 30."""
    assert bottleneck([100, 100], {EITHER: 50, ONLY_A: 90, ONLY_B: 30}) == frozenset()


def test_both_are_short_where_what_may_go_elsewhere_finds_no_room_there():
    """210 want 200: more of either would serve more, since what wants either can move."""
    assert bottleneck([100, 100], {EITHER: 50, ONLY_A: 90, ONLY_B: 70}) == {0, 1}


def test_a_price_is_the_part_of_the_demands_around_the_expected_at_which_a_model_is_short():
    """80 expected of 100 free: short at 1.3, 1.4 and 1.5 times that, three of the eight factors."""
    assert scarcity([100, 50], {ONLY_A: 80}, unit=8) == [3, 0]


def test_without_pods_that_name_models_nothing_is_protected():
    assert scarcity([100, 50], {}, unit=8) == [0, 0]
