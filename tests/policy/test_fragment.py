"""The fragmentation and FGD's score, worked out by hand, and the trap that its coarse score avoids."""

import numpy as np

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger
from tessera.core.request import Constraints, Pod, Request
from tessera.policy.fragment import FGD, THRESHOLDS, fragmentation, growth, ways
from tessera.policy.outlook import outlook_of
from tessera.policy.rank import POLICIES
from tessera.policy.score import Ask, Scene
from tessera.policy.target import ONE, Kind, target_of


def milli(values: np.ndarray) -> list[float]:
    return (values / ONE).round(3).tolist()


def test_what_the_next_pod_cannot_use_is_fragmented():
    """M: 600 milli with probability 3/4, CPU alone with 1/4. A node with 500 and 900 milli left:
    600 can run there, and leaves the 500 unusable; CPU alone uses none of the 1400. 0.75 * 500 + 0.25 * 1400 =
    725.
    """
    target = target_of([(Kind(0, 600, 1), 3), (Kind(1000, 0, 0), 1)], ("A100",))
    left = np.array([[500, 900], [500, 500]])
    cpu, model = np.array([8000, 8000]), np.array([0, 0])
    assert milli(fragmentation(target, model, left, cpu)) == [725, 1000]  # the second cannot run it at all


def test_a_node_without_the_cpu_or_of_another_model_is_fragmented_whole():
    target = target_of([(Kind(4000, 500, 1, ("T4",)), 1)], ("A100", "T4"))
    left = np.array([[1000], [1000], [1000]])
    found = fragmentation(target, np.array([1, 1, 0]), left, np.array([4000, 3999, 4000]))
    assert milli(found) == [0, 1000, 1000]


def test_a_pod_of_several_devices_needs_as_many_with_enough_left():
    target = target_of([(Kind(0, 1000, 2), 1)], ("A100",))
    left = np.array([[1000, 1000, 300], [1000, 300, 300]])
    assert milli(fragmentation(target, np.array([0, 0]), left, np.array([0, 0]))) == [300, 1600]


def test_the_score_is_a_hundred_times_the_sigmoid_of_the_fall_cut_to_a_whole_number():
    """sigmoid(0) = 0.5; 100 * sigmoid(1) = 73.1; 100 * sigmoid(-2) = 11.9."""
    falls = np.array([0, 1000 * ONE, -2000 * ONE, 1 - ONE // 1000])
    assert np.searchsorted(THRESHOLDS, falls, side="right").tolist() == [50, 73, 11, 49]


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
