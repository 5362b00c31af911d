"""The fragmentation and FGD's score, worked out by hand, and the trap that its coarse score avoids."""

from math import exp

import numpy as np
import pytest

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger
from tessera.core.request import Constraints, Pod, Request
from tessera.policy.fragment import FGD, THRESHOLDS, fragmentation, growth, published_fragmentation, ways
from tessera.policy.outlook import outlook_of
from tessera.policy.rank import POLICIES
from tessera.policy.score import Ask, Scene
from tessera.policy.target import ONE, Kind, Target, target_of


def milli(values: np.ndarray) -> list[float]:
    return (values / ONE).round(3).tolist()


def both(target: Target, model: np.ndarray, left: np.ndarray, cpu: np.ndarray) -> list[float]:
    """F in whole numbers and in doubles, which agree but for their last digits."""
    found = milli(fragmentation(target, model, left, cpu))
    assert published_fragmentation(target, model, left, cpu).round(3).tolist() == found
    return found


def test_what_the_next_pod_cannot_use_is_fragmented():
    """M: 600 milli with probability 3/4, CPU alone with 1/4. A node with 500 and 900 milli left:
    600 can run there, and leaves the 500 unusable; CPU alone uses none of the 1400. 0.75 * 500 + 0.25 * 1400 =
    725.
    """
    target = target_of([(Kind(0, 600, 1), 3), (Kind(1000, 0, 0), 1)], ("A100",))
    left = np.array([[500, 900], [500, 500]])
    cpu, model = np.array([8000, 8000]), np.array([0, 0])
    assert both(target, model, left, cpu) == [725, 1000]  # the second cannot run it at all


def test_a_node_without_the_cpu_or_of_another_model_is_fragmented_whole():
    target = target_of([(Kind(4000, 500, 1, ("T4",)), 1)], ("A100", "T4"))
    left = np.array([[1000], [1000], [1000]])
    assert both(target, np.array([1, 1, 0]), left, np.array([4000, 3999, 4000])) == [0, 1000, 1000]


def test_a_pod_of_several_devices_needs_as_many_with_enough_left():
    target = target_of([(Kind(0, 1000, 2), 1)], ("A100",))
    left = np.array([[1000, 1000, 300], [1000, 300, 300]])
    assert both(target, np.array([0, 0]), left, np.array([0, 0])) == [300, 1600]


def test_a_full_device_serves_nobody_not_even_a_pod_that_asks_for_nothing_of_it():
    target = target_of([(Kind(0, 0, 2), 1)], ("A100",))
    left = np.array([[0, 400, 300], [0, 0, 300]])
    assert both(target, np.array([0, 0]), left, np.array([0, 0])) == [0, 300]


def test_chances_are_those_among_the_kinds_of_the_target_the_most_frequent_first():
    """5 of 20 pods are of other kinds: 10 and 5 of 15. Equals come by kind, the greater first."""
    kinds = target_of([(Kind(1, 500, 1), 5), (Kind(2, 0, 0), 10)], ("A100",), of_pods=20).kinds
    assert kinds.chance.tolist() == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert kinds.group.tolist() == [-1, 0]
    equal = target_of([(Kind(1, 500, 1), 5), (Kind(2, 0, 0), 5)], ("A100",)).kinds
    assert equal.cpu.tolist() == [2, 1]


def test_the_score_is_a_hundred_times_the_sigmoid_of_the_fall_cut_to_a_whole_number():
    """sigmoid(0) = 0.5; 100 * sigmoid(1) = 73.1; 100 * sigmoid(-2) = 11.9."""
    assert points(0, 1000, -2000, -0.001) == [50, 73, 11, 49]
    falls = [step * 7.3 for step in range(-1100, 1101)]
    assert points(*falls) == [int(100 / (1 + exp(-fall / 1000))) for fall in falls]


def points(*falls: float) -> list[int]:
    return np.searchsorted(THRESHOLDS, np.array(falls, dtype=np.float64), side="right").tolist()


def test_a_fall_of_the_last_digit_is_a_point_less_from_where_a_sigmoid_of_doubles_shows_it():
    """exp(x) of a very small x is 1 + x, which is 1 + 2**-52 for x < 1.5 * 2**-52; 2 + 2**-52 is 2 in doubles."""
    last_digits = [-step * 2.0**-46 for step in range(100)]
    assert points(*last_digits) == [int(100 / (1 + exp(-fall / 1000))) for fall in last_digits]
    assert points(-2 * 2.0**-43, -3 * 2.0**-43) == [50, 49]


def test_the_published_sums_differ_in_the_last_digit_where_f_does_not_change():
    """M: 1/2, 1/3 and 1/6, each a whole device, and the second 4 cores. A node with 700 milli left on each of 8
    devices can run none of them, with its cores or without: F is 5600. Added up by reason it is once
    (1/2 + 1/3) + 1/6 of it, once 1/3 + (1/2 + 1/6).
    """
    target = target_of([(Kind(0, 1000, 1), 3), (Kind(4000, 1000, 1), 2), (Kind(0, 1000, 2), 1)], ("A100",))
    left, cpu = np.full((2, 8), 700), np.array([4000, 3000])
    found = published_fragmentation(target, np.array([0, 0]), left, cpu).tolist()
    half, third, sixth = 5600 / 2, (2 / 6) * 5600, (1 / 6) * 5600
    assert found == [(half + third) + sixth, third + (half + sixth)]
    assert found[0] != found[1]
    assert points(found[0] - found[1]) == [49]


def test_the_trap_a_few_milli_of_difference_are_a_tie_which_the_first_node_wins():
    """A finer score would be up to three points of allocation worse: it nibbles at every node (95.23 to 92.14 % on
    openb). Half of M wants 400 milli and half a whole device. A pod of 10 milli takes half of 10 from what is lost
    where 500 are left, all of 10 where 300 are: nothing to leave the first node for.
    """
    fleet = a_fleet(a_node("a", 1, 1000), a_node("b", 1, 1000))
    ledger, outlook = Ledger(fleet), outlook_of(fleet, {Kind(0, 400, 1): 1, Kind(0, 1000, 1): 1})
    index = Index(ledger, POLICIES["fgd"], outlook)
    for node, taken in (("a", 500), ("b", 700)):
        pod = a_pod(a_claim(a_share(taken, taken)), name=node, node_name=node)
        ledger.apply(Adopt(index.place(pod).placement))
    scene = Scene(ledger.view(), outlook)
    ask, fits, nodes = Ask(np.array([10, 10]), 1, 0, 0), np.ones(2, dtype=np.bool_), np.arange(2)
    assert milli(-growth(outlook, ways(scene, ask, fits, nodes))[:, 0]) == [5, 10]
    assert FGD.scores(scene, ask, fits, nodes).tolist() == [50, 50]
    assert index.place(a_pod(a_claim(a_share(10, 10)))).placement.node == "a"


def test_ties_go_to_the_first_node_and_the_lowest_device():
    """On equal nodes everything is a tie, so that they are filled one after the other."""
    fleet = a_fleet(*(a_node(name, 2, 1000) for name in "abc"))
    ledger = Ledger(fleet)
    index = Index(ledger, POLICIES["fgd"], outlook_of(fleet, {Kind(0, 1000, 1): 1}))
    where = []
    for serial in range(6):
        placed = index.place(a_pod(a_claim(a_share(1000, 1000)), name=f"p{serial}"))
        ledger.apply(Adopt(placed.placement))
        where.append((placed.placement.node, placed.placement.charges[0].uuid))
    assert where == [(n, f"{n}-{i}") for n in "abc" for i in range(2)]


def test_a_pod_without_claims_takes_cpu_of_a_node_whose_devices_cannot_use_it():
    """Node a has no devices, b has an idle one whose pods need all of b's CPU."""
    fleet = a_fleet(a_node("b", 1, cpu_milli=4000), a_node("a", 0, cpu_milli=4000))
    ledger = Ledger(fleet)
    index = Index(ledger, POLICIES["fgd"], outlook_of(fleet, {Kind(4000, 1000, 1): 1}))
    pod = Pod("default", "cpu", "cpu", (), Request((), Constraints()), cpu_milli=1000)
    placed = index.place(pod)
    assert (placed.placement.node, placed.placement.charges, placed.placement.cpu_milli) == ("a", (), 1000)
