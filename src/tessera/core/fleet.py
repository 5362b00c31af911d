"""The fleet as a struct of arrays, and what is used of it; a snapshot is both, frozen.

A decision touches each array once instead of walking objects. Devices of one node are adjacent: those of node
``n`` are the rows ``first[n]`` to ``first[n + 1]``. Nothing here changes after it was made: usage is replaced,
not edited.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.device import Device, Node
from tessera.core.placement import Charge, Placement
from tessera.core.units import MILLION, WHOLE, fill_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PLENTY: Final = 1 << 50
"""Stands for "the inventory does not say how much": more than anything can ask for, far from overflow."""


Fact = Callable[[Any], Any]

_OF_DEVICE: Final[Mapping[str, Fact]] = {
    "memory": attrgetter("memory_mib"),
    "compute": attrgetter("compute_milli"),
    "slots": attrgetter("slots"),
    "tflops": lambda device: device.milli_tflops or 0,
    "index": attrgetter("index"),
    "numa": lambda device: -1 if device.numa is None else device.numa,
    "healthy": attrgetter("healthy"),
    "cordoned": attrgetter("cordoned"),
}
_OF_NODE: Final[Mapping[str, Fact]] = {
    "cpu": lambda node: PLENTY if node.cpu_milli is None else node.cpu_milli,
    "host_memory": lambda node: PLENTY if node.memory_mib is None else node.memory_mib,
    "max_pods": lambda node: PLENTY if node.max_pods is None else node.max_pods,
    "open": lambda node: not node.cordoned,
}
_KINDS: Final[Mapping[str, tuple[str, Fact]]] = {
    "model": ("models", attrgetter("model")),
    "vendor": ("vendors", attrgetter("vendor")),
    "mode": ("modes", attrgetter("mode")),
}
_FLAGS: Final = frozenset({"healthy", "cordoned", "open"})


def _type_of(column: str) -> Any:
    return np.bool_ if column in _FLAGS else np.int64


def _frozen(array: Any) -> Any:
    array.setflags(write=False)
    return array


def _spliced(old: Any, origins: Ints, fresh: Iterable[Any]) -> Any:
    """The rows of ``old`` that ``origins`` names, and where it names none, the next of ``fresh``."""
    array = old[np.maximum(origins, 0)] if len(old) else np.zeros(len(origins), dtype=old.dtype)
    array[origins < 0] = np.fromiter(fresh, dtype=old.dtype)
    return _frozen(array)


class Fleet:
    """All nodes and their devices. Raises ``ValueError`` where two nodes or two devices have one identity.

    Arrays over devices: ``node_of memory compute slots tflops index numa healthy cordoned`` (``numa`` is -1 and
    ``tflops`` 0 where unknown), and ``model vendor mode``, which are positions in ``models vendors modes``.
    Arrays over nodes: ``cpu host_memory max_pods open``, and ``node_model``, the model of the first device (0
    where there is none).
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._name(nodes)
        for name, of in _OF_DEVICE.items():
            setattr(self, name, _frozen(np.fromiter(map(of, self.devices), dtype=_type_of(name))))
        for name, of in _OF_NODE.items():
            setattr(self, name, _frozen(np.fromiter(map(of, self.nodes), dtype=_type_of(name))))
        for name, (kinds, kind_of) in _KINDS.items():
            listed = list(map(kind_of, self.devices))
            found = tuple(sorted(set(listed)))
            rows = {kind: row for row, kind in enumerate(found)}
            setattr(self, kinds, found)
            setattr(self, name, _frozen(np.fromiter((rows[kind] for kind in listed), dtype=np.int64)))
        self._sum_up()

    memory: Ints
    compute: Ints
    slots: Ints
    tflops: Ints
    index: Ints
    numa: Ints
    healthy: Bools
    cordoned: Bools
    models: tuple[str, ...]
    model: Ints
    vendors: tuple[str, ...]
    vendor: Ints
    modes: tuple[str, ...]
    mode: Ints
    cpu: Ints
    host_memory: Ints
    max_pods: Ints
    open: Bools

    def _name(self, nodes: Sequence[Node]) -> None:
        """Names and rows."""
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.devices: tuple[Device, ...] = tuple(d for node in nodes for d in node.devices)
        self.node_names: tuple[str, ...] = tuple(node.name for node in self.nodes)
        self.node_row: dict[str, int] = {name: row for row, name in enumerate(self.node_names)}
        self.device_row: dict[str, int] = {device.uuid: row for row, device in enumerate(self.devices)}
        if len(self.node_row) != len(self.nodes) or len(self.device_row) != len(self.devices):
            raise ValueError("a fleet needs unique node names and device uuids")
        sizes = [len(node.devices) for node in self.nodes]
        self.first: Ints = _frozen(np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))
        self.node_of: Ints = _frozen(np.repeat(np.arange(len(self.nodes)), sizes))
        # The usual fleets: the flags of a node's eight devices are read as one word; no node is without devices.
        self._all_of_eight = bool(sizes) and set(sizes) == {8}
        self._none_empty = bool(sizes) and 0 < min(sizes) <= max(sizes) < 128

    def _sum_up(self) -> None:
        self.node_memory: Ints = self.per_node(self.memory)
        self.node_compute: Ints = self.per_node(self.compute)
        starts = np.minimum(self.first[:-1], max(len(self.devices) - 1, 0))
        self.usable: Bools = _frozen(self.healthy & ~self.cordoned)
        self.node_model: Ints = _frozen(np.where(np.diff(self.first) > 0, _picked(self.model, starts), 0))

    def replaced(self, changes: Mapping[str, Node | None]) -> "Fleet":
        """The fleet with these nodes in place of those of their names; ``None`` takes one away, new ones go last.

        Equal to a fleet made from all nodes, for the cost of copying arrays. Raises ``ValueError`` as that does.
        """
        nodes = [changes.get(node.name, node) for node in self.nodes]
        added = [node for name, node in changes.items() if node is not None and name not in self.node_row]
        kept = np.fromiter((node is old for node, old in zip(nodes, self.nodes, strict=True)), dtype=np.bool_)
        other = Fleet.__new__(Fleet)
        other._name([node for node in (*nodes, *added) if node is not None])
        # Where each node and device comes from: a row of this fleet, or -1 for one that has to be read.
        from_node = np.concatenate(
            (
                np.where(kept, np.arange(len(nodes)), -1)[[node is not None for node in nodes]],
                np.full(len(added), -1),
            )
        ).astype(np.int64)
        from_device = _device_origins(self, other, from_node)
        fresh = np.flatnonzero(from_device < 0)
        devices = [other.devices[row] for row in fresh]
        for name, of in _OF_DEVICE.items():
            setattr(other, name, _spliced(getattr(self, name), from_device, map(of, devices)))
        fresh_nodes = [other.nodes[row] for row in np.flatnonzero(from_node < 0)]
        for name, node_fact in _OF_NODE.items():
            setattr(other, name, _spliced(getattr(self, name), from_node, map(node_fact, fresh_nodes)))
        for name, (kinds, kind_of) in _KINDS.items():
            old, codes = getattr(self, kinds), getattr(self, name)
            listed = list(map(kind_of, devices))
            used = {old[code] for code in np.unique(codes[from_device[from_device >= 0]])}
            found = tuple(sorted(used.union(listed)))
            rows = {kind: row for row, kind in enumerate(found)}
            moved = np.array([rows.get(kind, -1) for kind in old], dtype=np.int64)
            setattr(other, kinds, found)
            setattr(other, name, _spliced(moved[codes], from_device, (rows[kind] for kind in listed)))
        other._sum_up()
        return other

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


def _device_origins(old: Fleet, new: Fleet, from_node: Ints) -> Ints:
    """For each device of ``new`` its row in ``old``, -1 where its node has to be read."""
    origin = from_node[new.node_of]
    begins = old.first[np.maximum(origin, 0)] if len(old.nodes) else np.zeros_like(origin)
    within = np.arange(len(new.devices), dtype=np.int64) - new.first[new.node_of]
    return np.where(origin >= 0, begins + within, -1)


def _rows_in(rows: Mapping[str, int], names: Iterable[str], count: int) -> Ints:
    return np.fromiter((rows.get(name, -1) for name in names), dtype=np.int64, count=count)


def _picked(values: Ints, rows: Ints) -> Ints:
    """The values of these rows, 0 for row -1."""
    return np.where(rows >= 0, values[np.maximum(rows, 0)], 0) if len(values) else np.zeros_like(rows)


def _left(fleet: Fleet, usage: "Usage") -> Ints:
    """What is left of every device for others, in milli."""
    memory = (fleet.memory - usage.memory) * WHOLE // np.maximum(fleet.memory, 1)
    compute = (fleet.compute - usage.compute) * WHOLE // np.maximum(fleet.compute, 1)
    usable = fleet.usable & (usage.exclusive == 0) & (usage.slots < fleet.slots)
    return np.where(usable, np.maximum(np.minimum(memory, compute), 0), 0)


SIZE_BITS: Final = 12
"""Of each of the five counts in ``sizes``: 4,095 pods, many times what a node may run."""


def size_of(placement: Placement) -> int:
    """One pod in ``Usage.sizes``: 1 in the count of its size, from the lowest bits on: a part of a device, one
    device, 2 or 3, 4 to 7, and 8 or more; 0 for a pod that holds none.
    """
    held = placement.charges
    if not held:
        return 0
    shares = len(held) == 1 and held[0].compute_milli < WHOLE and not held[0].exclusive
    return 1 if shares else 1 << SIZE_BITS * min(len(held).bit_length(), 4)


@dataclass(frozen=True, slots=True)
class Usage:
    """What is taken: arrays over devices, and (``node_*``, ``cpu``, ``host_memory``, ``pods``) over nodes.

    ``node_fill`` is how full a node is, in parts per million, memory and compute added. ``left`` is what is left
    of a device for others, in milli: the less of its memory and its compute, rounded down; nothing of one that is
    unhealthy, cordoned, held exclusively or out of slots. Both are kept because every decision asks for them and a
    booking changes one node's. ``sizes`` counts a node's pods by how many devices they hold, packed as
    :func:`size_of` has it.
    """

    memory: Ints
    compute: Ints
    slots: Ints
    exclusive: Ints
    left: Ints
    node_memory: Ints
    node_compute: Ints
    node_fill: Ints
    cpu: Ints
    host_memory: Ints
    pods: Ints
    sizes: Ints

    @staticmethod
    def nothing(fleet: Fleet) -> "Usage":
        """The usage of an empty fleet."""
        device, node = (np.zeros(n, dtype=np.int64) for n in (len(fleet.devices), len(fleet.nodes)))
        arrays = (*[device] * 5, *[node] * 7)
        usage = Usage(*(array.copy() for array in arrays))
        usage.left[:] = _left(fleet, usage)
        return usage

    def moved(self, old: Fleet, new: Fleet) -> "Usage":
        """The same usage on another fleet: what ``old`` had keeps its own, what is new starts at nothing."""
        devices = _rows_in(old.device_row, (d.uuid for d in new.devices), len(new.devices))
        nodes = _rows_in(old.node_row, new.node_names, len(new.nodes))
        memory, compute = _picked(self.memory, devices), _picked(self.compute, devices)
        node_memory, node_compute = new.per_node(memory), new.per_node(compute)
        fill = node_memory * MILLION // np.maximum(new.node_memory, 1)
        usage = Usage(
            memory=memory,
            compute=compute,
            slots=_picked(self.slots, devices),
            exclusive=_picked(self.exclusive, devices),
            left=np.zeros(len(new.devices), dtype=np.int64),
            node_memory=node_memory,
            node_compute=node_compute,
            node_fill=fill + node_compute * MILLION // np.maximum(new.node_compute, 1),
            cpu=_picked(self.cpu, nodes),
            host_memory=_picked(self.host_memory, nodes),
            pods=_picked(self.pods, nodes),
            sizes=_picked(self.sizes, nodes),
        )
        usage.left[:] = _left(new, usage)
        return usage

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
            self.left[row] = self._left_on(fleet, row)

    def book_all(self, fleet: Fleet, placements: Iterable[Placement]) -> None:
        """Add all of these in place: as :meth:`book` and :meth:`book_host` do, 20 times as fast."""
        held = list(placements)
        device, node = fleet.device_row, fleet.node_row
        charges = [(row, c) for p in held for c in p.charges if (row := device.get(c.uuid)) is not None]
        rows = np.fromiter((row for row, _ in charges), dtype=np.int64, count=len(charges))
        for array, column in (
            (self.memory, [c.memory_mib for _, c in charges]),
            (self.compute, [c.compute_milli for _, c in charges]),
            (self.slots, [c.slots for _, c in charges]),
            (self.exclusive, [int(c.exclusive) for _, c in charges]),
        ):
            np.add.at(array, rows, np.array(column, dtype=np.int64))
        hosts = [(row, p) for p in held if (row := node.get(p.node)) is not None]
        at = np.fromiter((row for row, _ in hosts), dtype=np.int64, count=len(hosts))
        np.add.at(self.cpu, at, np.array([p.cpu_milli for _, p in hosts], dtype=np.int64))
        np.add.at(self.host_memory, at, np.array([p.memory_mib for _, p in hosts], dtype=np.int64))
        np.add.at(self.pods, at, 1)
        np.add.at(self.sizes, at, np.array([size_of(p) for _, p in hosts], dtype=np.int64))
        self.node_memory[:] = fleet.per_node(self.memory)
        self.node_compute[:] = fleet.per_node(self.compute)
        memory = self.node_memory * MILLION // np.maximum(fleet.node_memory, 1)
        self.node_fill[:] = memory + self.node_compute * MILLION // np.maximum(fleet.node_compute, 1)
        self.left[:] = _left(fleet, self)

    def _left_on(self, fleet: Fleet, row: int) -> int:
        """``left`` of one device, as :func:`_left` has it."""
        shut = self.exclusive[row] or self.slots[row] >= fleet.slots[row] or not fleet.usable[row]
        if shut:
            return 0
        memory, compute = int(fleet.memory[row]), int(fleet.compute[row])
        free = (memory - int(self.memory[row])) * WHOLE // max(memory, 1)
        return max(0, min(free, (compute - int(self.compute[row])) * WHOLE // max(compute, 1)))

    def book_host(self, fleet: Fleet, placement: Placement, *, sign: int) -> None:
        """Add or take away a pod's CPU, memory and place on its node, in place."""
        row = fleet.node_row.get(placement.node)
        if row is None:
            return
        self.cpu[row] += sign * placement.cpu_milli
        self.host_memory[row] += sign * placement.memory_mib
        self.pods[row] += sign
        self.sizes[row] += sign * size_of(placement)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fleet and what is used of it, at one moment; immutable."""

    fleet: Fleet
    usage: Usage
