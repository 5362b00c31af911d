"""The fleet as a struct of arrays, and what is used of it; a snapshot is both, frozen.

A decision touches each array once instead of walking objects. Devices of one node are adjacent: those of node
``n`` are the rows ``first[n]`` to ``first[n + 1]``. Nothing here changes after it was made: usage is replaced,
not edited.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.device import Device, Node
from tessera.core.placement import Charge
from tessera.core.units import fill_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PLENTY: Final = 1 << 50
"""Stands for "the inventory does not say how much": more than anything can ask for, far from overflow."""


def _ints(values: Iterable[int]) -> Ints:
    array = np.fromiter(values, dtype=np.int64)
    array.setflags(write=False)
    return array


def _flags(values: Iterable[bool]) -> Bools:
    array = np.fromiter(values, dtype=np.bool_)
    array.setflags(write=False)
    return array


def _kinds(names: Iterable[str]) -> tuple[tuple[str, ...], Ints]:
    """The different names in order, and for each device the position of its own."""
    listed = list(names)
    kinds = tuple(sorted(set(listed)))
    rows = {kind: row for row, kind in enumerate(kinds)}
    return kinds, _ints(rows[name] for name in listed)


class Fleet:
    """All nodes and their devices. Raises ``ValueError`` where two nodes or two devices have one identity.

    Arrays over devices: ``node_of memory compute slots tflops index numa healthy cordoned`` (``numa`` is -1 and
    ``tflops`` 0 where unknown), and ``model vendor mode``, which are positions in ``models vendors modes``.
    Arrays over nodes: ``cpu host_memory max_pods open``.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.devices: tuple[Device, ...] = tuple(d for node in nodes for d in node.devices)
        self.node_names: tuple[str, ...] = tuple(node.name for node in self.nodes)
        self.node_row: dict[str, int] = {node.name: row for row, node in enumerate(self.nodes)}
        self.device_row: dict[str, int] = {device.uuid: row for row, device in enumerate(self.devices)}
        if len(self.node_row) != len(self.nodes) or len(self.device_row) != len(self.devices):
            raise ValueError("a fleet needs unique node names and device uuids")
        sizes = [len(node.devices) for node in self.nodes]
        self.first: Ints = _ints(np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))
        self.node_of: Ints = _ints(np.repeat(np.arange(len(self.nodes)), sizes))
        # The usual fleets: the flags of a node's eight devices are read as one word; no node is without devices.
        self._all_of_eight = bool(sizes) and set(sizes) == {8}
        self._none_empty = bool(sizes) and 0 < min(sizes) <= max(sizes) < 128
        self._fill_devices()
        self._fill_nodes()

    def _fill_devices(self) -> None:
        devices = self.devices
        self.memory: Ints = _ints(d.memory_mib for d in devices)
        self.compute: Ints = _ints(d.compute_milli for d in devices)
        self.slots: Ints = _ints(d.slots for d in devices)
        self.tflops: Ints = _ints(d.milli_tflops or 0 for d in devices)
        self.index: Ints = _ints(d.index for d in devices)
        self.numa: Ints = _ints(-1 if d.numa is None else d.numa for d in devices)
        self.healthy: Bools = _flags(d.healthy for d in devices)
        self.cordoned: Bools = _flags(d.cordoned for d in devices)
        self.models, self.model = _kinds(d.model for d in devices)
        self.vendors, self.vendor = _kinds(d.vendor for d in devices)
        self.modes, self.mode = _kinds(d.mode for d in devices)

    def _fill_nodes(self) -> None:
        nodes = self.nodes
        self.cpu: Ints = _ints(PLENTY if n.cpu_milli is None else n.cpu_milli for n in nodes)
        self.host_memory: Ints = _ints(PLENTY if n.memory_mib is None else n.memory_mib for n in nodes)
        self.max_pods: Ints = _ints(PLENTY if n.max_pods is None else n.max_pods for n in nodes)
        self.open: Bools = _flags(not n.cordoned for n in nodes)
        self.node_memory: Ints = self.per_node(self.memory)
        self.node_compute: Ints = self.per_node(self.compute)

    def per_node(self, values: NDArray[np.int64] | NDArray[np.bool_]) -> Ints:
        """The sum of a device array over each node; 0 for a node without devices."""
        ends = np.zeros(len(self.devices) + 1, dtype=np.int64)
        np.cumsum(values, out=ends[1:])
        return np.asarray(np.diff(ends[self.first]), dtype=np.int64)

    def nodes_with(self, devices: Bools, count: int) -> Bools:
        """The nodes that have at least ``count`` of these devices."""
        if count == 1 and self._all_of_eight:
            return np.asarray(devices.view(np.uint64) != 0, dtype=np.bool_)
        if self._none_empty:
            counts = np.add.reduceat(devices.view(np.int8), self.first[:-1])
            return np.asarray(counts >= count, dtype=np.bool_)
        return np.asarray(self.per_node(devices) >= count, dtype=np.bool_)

    def rows(self, node_row: int) -> range:
        """The device rows of a node."""
        return range(int(self.first[node_row]), int(self.first[node_row + 1]))


@dataclass(frozen=True, slots=True)
class Usage:
    """What is taken: arrays over devices, and (``node_*``, ``cpu``, ``host_memory``, ``pods``) over nodes.

    ``node_fill`` is how full a node is, in parts per million, memory and compute added; kept because every
    decision asks for it and a booking changes one node's.
    """

    memory: Ints
    compute: Ints
    slots: Ints
    exclusive: Ints
    node_memory: Ints
    node_compute: Ints
    node_fill: Ints
    cpu: Ints
    host_memory: Ints
    pods: Ints

    @staticmethod
    def nothing(fleet: Fleet) -> "Usage":
        """The usage of an empty fleet."""
        device, node = (np.zeros(n, dtype=np.int64) for n in (len(fleet.devices), len(fleet.nodes)))
        arrays = (*[device] * 4, *[node] * 6)
        return Usage(*(array.copy() for array in arrays))

    def thawed(self) -> "Usage":
        """A copy whose arrays may be written, for the one who owns it."""
        return Usage(*(getattr(self, name).copy() for name in self.__slots__))

    def frozen(self) -> "Usage":
        """The same arrays, no longer writable."""
        for name in self.__slots__:
            getattr(self, name).setflags(write=False)
        return self

    def book(self, fleet: Fleet, charges: Iterable[Charge], *, sign: int) -> None:
        """Add (``sign=1``) or take away (``-1``) charges in place; devices that are gone are left out."""
        for charge in charges:
            row = fleet.device_row.get(charge.uuid)
            if row is None:
                continue
            node = fleet.node_of[row]
            self.memory[row] += sign * charge.memory_mib
            self.compute[row] += sign * charge.compute_milli
            self.slots[row] += sign * charge.slots
            self.exclusive[row] += sign * int(charge.exclusive)
            self.node_memory[node] += sign * charge.memory_mib
            self.node_compute[node] += sign * charge.compute_milli
            memory = fill_of(int(self.node_memory[node]), int(fleet.node_memory[node]))
            self.node_fill[node] = memory + fill_of(int(self.node_compute[node]), int(fleet.node_compute[node]))

    def book_host(self, fleet: Fleet, node: str, cpu_milli: int, memory_mib: int, *, sign: int) -> None:
        """Add or take away a pod's CPU, memory and place on its node, in place."""
        row = fleet.node_row.get(node)
        if row is None:
            return
        self.cpu[row] += sign * cpu_milli
        self.host_memory[row] += sign * memory_mib
        self.pods[row] += sign


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fleet and what is used of it, at one moment; immutable."""

    fleet: Fleet
    usage: Usage
