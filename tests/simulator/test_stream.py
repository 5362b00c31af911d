"""Streams: how much arrives, in which order, and what is wrong with a recorded order."""

import numpy as np
import pytest

from simulator.worlds import a_trace, node, pod
from tessera.simulator.stream import as_listed, demands, poisson, recorded, sequence_problems, tuned

NODES = [node("a", 4), node("b", 4)]
TRACE = a_trace(NODES, pod(500), pod(250), pod(), pod(1000))
CAPACITY = 8000


@pytest.mark.parametrize("arrivals", [0.1, 0.5, 1.3, 20.0])
def test_tuned_demand_comes_as_near_to_the_goal_as_one_pod(arrivals):
    stream = tuned(TRACE, len(NODES), CAPACITY, arrivals, seed=3)
    asked = int(demands(TRACE)[stream.pods].sum())
    assert arrivals * CAPACITY - 1000 <= asked <= arrivals * CAPACITY


def test_where_more_is_wanted_every_pod_comes_once_before_any_comes_again():
    stream = tuned(TRACE, len(NODES), CAPACITY, 1.0, seed=3)
    assert sorted(stream.pods[:4].tolist()) == [0, 1, 2, 3]


def test_equal_seeds_give_equal_streams_and_others_do_not():
    one, same, other = (tuned(TRACE, 2, CAPACITY, 2.0, seed) for seed in (1, 1, 2))
    assert one.pods.tolist() == same.pods.tolist()
    assert one.pods.tolist() != other.pods.tolist()


def test_the_offered_load_is_what_would_be_held_if_all_were_placed():
    trace = a_trace(NODES, pod(500), pod(1000), lifetimes=[100, 300])
    stream = poisson(trace, 2, capacity=CAPACITY, load=0.8, lifetimes="trace", arrivals=400.0, seed=1)
    assert stream.times is not None
    assert stream.stays is not None
    held = float((demands(trace)[stream.pods] * stream.stays).sum() / stream.times[-1])
    assert held == pytest.approx(0.8 * CAPACITY, rel=0.05)
    assert set(stream.stays.tolist()) == {100.0, 300.0}


def test_a_pod_that_does_not_say_how_long_it_stays_stays_for_the_mean():
    trace = a_trace(NODES, pod(500), pod(1000), lifetimes=[100, None])
    stream = poisson(trace, 2, capacity=CAPACITY, load=0.8, lifetimes="trace", arrivals=4.0, seed=1)
    assert stream.stays is not None
    assert set(stream.stays.tolist()) == {100.0}


def test_as_listed_is_every_pod_once_and_nodes_in_their_order():
    stream = as_listed(TRACE)
    assert stream.pods.tolist() == [0, 1, 2, 3]
    assert stream.nodes is None


GOOD = {"seq1": np.array([3, 0], dtype=np.uint16), "nodes1": np.array([1, 0], dtype=np.uint16)}


def test_a_recorded_order_is_taken_as_it_is():
    assert not sequence_problems("s.npz", GOOD, [1], pods=4, nodes=2)
    stream = recorded(GOOD, 1)
    assert stream.pods.tolist() == [3, 0]
    assert stream.nodes is not None
    assert stream.nodes.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"seq1": np.array([0, 4])}, "seq1[1]", "4"),
        ({"seq1": np.array([-1, 0])}, "seq1[0]", "-1"),
        ({"nodes1": np.array([0, 0])}, "nodes1", "2"),
        ({"nodes1": np.array([0, 1, 2])}, "nodes1", "3"),
    ],
)
def test_rows_outside_of_trace_and_fleet_are_named(change, field, value):
    (problem,) = sequence_problems("s.npz", {**GOOD, **change}, [1], pods=4, nodes=2)
    assert (problem.source, problem.field, problem.value) == ("s.npz", field, value)


def test_a_seed_that_is_not_in_the_file_is_told_with_those_that_are():
    (problem,) = sequence_problems("s.npz", GOOD, [2], pods=4, nodes=2)
    assert "it has the seeds 1" in problem.remedy
