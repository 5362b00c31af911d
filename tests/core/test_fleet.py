"""The fleet's identities and the immutability of snapshots."""

import numpy as np
import pytest

from builders import a_device, a_fleet, a_node
from tessera.core.fleet import Usage
from tessera.core.placement import Charge


def test_two_devices_with_one_uuid_are_no_fleet():
    with pytest.raises(ValueError, match="unique"):
        a_fleet(a_node("a", [a_device("g")]), a_node("b", [a_device("g")]))


def test_two_nodes_with_one_name_are_no_fleet():
    with pytest.raises(ValueError, match="unique"):
        a_fleet(a_node("a", 0), a_node("a", 0))


def test_sums_over_nodes_count_nodes_without_devices_as_nothing():
    fleet = a_fleet(a_node("a", 0), a_node("b", 2, 100), a_node("c", 0), a_node("d", 1, 7), a_node("e", 0))
    assert fleet.per_node(fleet.memory).tolist() == [0, 200, 0, 7, 0]


@pytest.mark.parametrize("sizes", [(8, 8, 8), (1, 3, 2), (0, 2, 0, 1), (8, 0), ()])
def test_nodes_with_enough_devices_are_counted_alike_whatever_the_fleet_looks_like(sizes):
    """Three ways of counting stand behind this: eights as one word, none empty, any fleet."""
    fleet = a_fleet(*(a_node(f"n{i}", size) for i, size in enumerate(sizes)))
    chosen = np.arange(len(fleet.devices)) % 3 == 0
    rows = [fleet.rows(row) for row in range(len(sizes))]
    for count in (1, 2, 3):
        expected = [sum(bool(chosen[r]) for r in devices) >= count for devices in rows]
        assert fleet.nodes_with(chosen, count).tolist() == expected


def test_a_frozen_usage_refuses_to_change():
    fleet = a_fleet(a_node("a", 1))
    frozen = Usage.nothing(fleet).frozen()
    with pytest.raises(ValueError, match="read-only"):
        frozen.book(fleet, [Charge("a-0", 1, 1, 1, exclusive=False)], sign=1)


def test_charges_on_devices_that_are_gone_touch_nothing():
    fleet = a_fleet(a_node("a", 1))
    usage = Usage.nothing(fleet)
    usage.book(fleet, [Charge("gone", 5, 5, 5, exclusive=True)], sign=1)
    nothing = Usage.nothing(fleet)
    assert all(np.array_equal(getattr(usage, name), getattr(nothing, name)) for name in Usage.__slots__)


def test_what_is_left_of_a_device_is_the_less_of_memory_and_compute_and_nothing_where_nobody_else_may_go():
    """1000 MiB each. 300 MiB and 200 milli taken leave 700; an exclusive holder leaves nothing."""
    sick = a_device("sick", 1000, index=2, healthy=False)
    devices = [a_device("shared", 1000, index=0), a_device("held", 1000, index=1), sick]
    fleet = a_fleet(a_node("a", [*devices, a_device("two", 1000, index=3, slots=2)]))
    usage = Usage.nothing(fleet)
    assert usage.left.tolist() == [1000, 1000, 0, 1000]
    charges = [
        Charge("shared", 300, 200, 1, exclusive=False),
        Charge("held", 10, 10, 1, exclusive=True),
        Charge("two", 10, 10, 2, exclusive=False),
    ]
    usage.book(fleet, charges, sign=1)
    assert usage.left.tolist() == [700, 0, 0, 0]
    assert usage.moved(fleet, fleet).left.tolist() == [700, 0, 0, 0]
    usage.book(fleet, charges, sign=-1)
    assert usage.left.tolist() == [1000, 1000, 0, 1000]
