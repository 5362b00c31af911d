"""Laws of a fleet that changes: patched or made anew, it is the same, and so is the ledger on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_device, a_node
from laws.test_allocator_laws import MANY, place_all, same_usage
from laws.worlds import any_queue, nodes, pods
from tessera.allocator.ledger import Ledger, Release
from tessera.core.fleet import Fleet

COLUMNS = [
    "first",
    "node_of",
    "memory",
    "compute",
    "slots",
    "tflops",
    "index",
    "numa",
    "healthy",
    "cordoned",
    "model",
    "vendor",
    "mode",
    "cpu",
    "host_memory",
    "max_pods",
    "open",
    "node_memory",
    "node_compute",
]
NAMES = [
    "nodes",
    "devices",
    "node_names",
    "node_row",
    "device_row",
    "models",
    "vendors",
    "modes",
    "_all_of_eight",
    "_none_empty",
]


def same_fleet(left: Fleet, right: Fleet) -> bool:
    columns = all(np.array_equal(getattr(left, name), getattr(right, name)) for name in COLUMNS)
    return columns and all(getattr(left, name) == getattr(right, name) for name in NAMES)


@st.composite
def changed_worlds(draw: st.DrawFn) -> tuple[list, dict, list]:
    """A world, a change of it, and the world as it is after the change."""
    before = draw(nodes(most_nodes=4))
    other = {node.name: node for node in draw(nodes(most_nodes=6))}
    names = draw(st.sets(st.sampled_from([f"n{i}" for i in range(6)])))
    changes = {name: other.get(name) for name in sorted(names)}
    after = [changes.get(node.name, node) for node in before]
    known = {node.name for node in before}
    after += [node for name, node in changes.items() if name not in known]
    return before, changes, [node for node in after if node is not None]


@MANY
@given(changed_worlds())
def test_a_patched_fleet_equals_one_made_anew(case):
    before, changes, after = case
    assert same_fleet(Fleet(before).replaced(changes), Fleet(after))


@MANY
@given(changed_worlds(), any_queue(pods))
def test_a_ledger_moved_to_another_fleet_equals_one_rebuilt_there(case, queue):
    before, changes, after = case
    ledger, _ = place_all(Fleet(before), queue, "binpack")
    there = ledger.onto(Fleet(before).replaced(changes))
    rebuilt = Ledger.rebuilt(Fleet(after), [entry.placement for entry in ledger.entries.values()])
    assert same_usage(there.snapshot().usage, rebuilt.snapshot().usage)
    assert there.entries == ledger.entries


@MANY
@given(changed_worlds(), any_queue(pods))
def test_what_left_with_a_node_comes_back_with_it(case, queue):
    before, changes, _ = case
    start = Fleet(before)
    ledger, _ = place_all(start, queue, "spread")
    there_and_back = ledger.onto(start.replaced(changes)).onto(start)
    assert same_usage(there_and_back.snapshot().usage, ledger.snapshot().usage)


@MANY
@given(changed_worlds(), any_queue(pods))
def test_a_holder_released_on_the_other_fleet_leaves_nothing_there(case, queue):
    before, _, after = case
    ledger, placed = place_all(Fleet(before), queue, "binpack")
    there = ledger.onto(Fleet(after))
    for placement in placed:
        there.apply(Release(placement.pod_uid))
    empty = Ledger(Fleet(after))
    assert same_usage(there.snapshot().usage, empty.snapshot().usage)


def test_an_emptied_fleet_is_an_empty_fleet():
    start = Fleet([])
    assert same_fleet(start.replaced({}), start)
    assert same_usage(Ledger(start).onto(start).snapshot().usage, Ledger(start).snapshot().usage)


def test_two_nodes_cannot_have_one_device():
    fleet = Fleet([a_node("a", [a_device("g0")])])
    with pytest.raises(ValueError, match="unique"):
        fleet.replaced({"b": a_node("b", [a_device("g0")])})
