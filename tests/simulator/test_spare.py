"""Nodes that could be given back, on clusters where that can be seen."""

import numpy as np

from simulator.worlds import a_trace, node, pod
from tessera.core.fleet import Fleet
from tessera.policy.outlook import outlook_of
from tessera.simulator.engine import Parts, Rules
from tessera.simulator.spare import spare_nodes
from tessera.simulator.stream import Stream


def spare(policy, nodes, *pods):
    fleet = Fleet(nodes)
    stream = Stream(np.arange(len(pods), dtype=np.int64))
    return spare_nodes(Parts(fleet, a_trace(nodes, *pods), stream, outlook_of(fleet)), Rules(policy))


def test_what_was_spread_is_packed_on_the_nodes_that_stay():
    # Four halves on four nodes: two nodes of one device hold them.
    nodes = [node(name) for name in "abcd"]
    found = spare("binpack", nodes, *[pod(500)] * 4)
    assert (found.kept, found.spare) == (2, ("d", "c"))
    # Spread leaves all four half full; packed anew by spread on two it holds as well.
    assert spare("spread", nodes, *[pod(500)] * 4).kept == 2


def test_nodes_that_are_needed_for_their_cores_stay():
    nodes = [node("a", 2), node("b", 2)]
    assert spare("binpack", nodes, pod(500, cpu=10_000), pod(500, cpu=10_000)).spare == ()


def test_only_what_was_held_has_to_be_held():
    # The second pod of two devices never found room: its place is not kept for it.
    nodes = [node("a", 2), node("b", 1)]
    found = spare("binpack", nodes, pod(1000, count=2), pod(1000, count=2))
    assert (found.kept, found.spare) == (1, ("b",))


def test_a_model_that_somebody_needs_stays():
    nodes = [node("a", 1), node("b", 1, model="T4"), node("c", 1)]
    found = spare("binpack", nodes, pod(400, models="T4"), pod(300))
    assert found.spare == ("c", "a")
