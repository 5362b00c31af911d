"""Which containers of a pod run at the same time."""

import pytest

from tessera.core.request import Container, ContainerKind, phases

INIT, SIDE, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.mark.parametrize(
    ("declared", "together"),
    [
        ([("a", APP)], [{"a"}]),
        ([("a", APP), ("b", APP)], [{"a", "b"}]),
        ([("i", INIT), ("a", APP)], [{"i"}, {"a"}]),
        ([("s", SIDE), ("a", APP)], [{"s", "a"}]),
        ([("s", SIDE), ("i", INIT), ("a", APP)], [{"s", "i"}, {"s", "a"}]),
        ([("i", INIT), ("s", SIDE), ("a", APP)], [{"i"}, {"s", "a"}]),
        ([("i", INIT), ("s", SIDE), ("j", INIT), ("t", SIDE), ("a", APP)], [{"i"}, {"s", "j"}, {"s", "t", "a"}]),
    ],
)
def test_an_init_container_overlaps_only_the_sidecars_declared_before_it(declared, together):
    found = phases([Container(name, kind) for name, kind in declared])
    assert [set(phase) for phase in found] == together
