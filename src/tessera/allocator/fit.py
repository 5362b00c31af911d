"""Does a claim fit a device? One table of checks, each a column over all devices at once.

The order of the table is the order in which reasons are given: a device fails by its first failing check.
Checks on static facts (model, health, ...) are computed once per fleet and set of constraints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from tessera.allocator.rules import model_passes
from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.core.placement import Reason
from tessera.core.request import Constraints, Pod
from tessera.core.share import ComputeAmount, ComputeMilli, MemoryAmount, MemoryMiB, ShareSpec
from tessera.core.units import WHOLE

REMEMBERED_CONSTRAINTS: Final = 512
REMEMBERED_ROWS: Final = 2_000_000
"""Device rows that remembered needs may take together: about 48 MB, 50 kinds of share on 40,000 devices."""

_FAR_TOO_MUCH: Final = 1_000_000
"""Milli of a device that no device has; bounds what is asked, so that sums of it do not overflow."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one share takes of each device of the fleet, in MiB and milli-devices.

    The share fits while no more than ``memory_room`` and ``compute_room`` are used. ``takes`` is the greater of
    the two in milli of the device, rounded up. ``unknown`` marks devices on which TFLOPS cannot be converted,
    ``free_riding`` those of whose compute nothing is asked; both are ``None`` where there is no such device.
    """

    memory: Ints
    compute: Ints
    memory_room: Ints
    compute_room: Ints
    takes: Ints
    unknown: Bools | None
    free_riding: Bools | None
    exclusive: bool


def need_of(fleet: Fleet, share: ShareSpec) -> Need:
    """The share's requests on every device, as :func:`core.share.resolve` has them."""
    memory = _memory_column(fleet, share.memory_request)
    compute, unknown = _compute_column(fleet, share.compute_request)
    free_riding = np.asarray(compute == 0, dtype=np.bool_)
    return Need(
        memory=memory,
        compute=compute,
        memory_room=np.asarray(fleet.memory - memory, dtype=np.int64),
        compute_room=np.asarray(fleet.compute - compute, dtype=np.int64),
        takes=_takes(fleet, memory, compute, share.exclusive),
        unknown=unknown,
        free_riding=free_riding if free_riding.any() else None,
        exclusive=share.exclusive,
    )


def _takes(fleet: Fleet, memory: Ints, compute: Ints, exclusive: bool) -> Ints:
    if exclusive:
        return np.full(len(fleet.devices), WHOLE, dtype=np.int64)
    memory_milli = -(-memory * WHOLE // np.maximum(fleet.memory, 1))
    compute_milli = -(-compute * WHOLE // np.maximum(fleet.compute, 1))
    return np.asarray(np.minimum(np.maximum(memory_milli, compute_milli), _FAR_TOO_MUCH), dtype=np.int64)


def _memory_column(fleet: Fleet, amount: MemoryAmount) -> Ints:
    if isinstance(amount, MemoryMiB):
        return np.broadcast_to(np.int64(amount.mib), fleet.memory.shape)
    return np.asarray(np.maximum(fleet.memory * amount.milli // 1000, min(amount.milli, 1)), dtype=np.int64)


def _compute_column(fleet: Fleet, amount: ComputeAmount) -> tuple[Ints, Bools | None]:
    if isinstance(amount, ComputeMilli):
        return np.broadcast_to(np.int64(amount.milli), fleet.compute.shape), None
    unknown = np.asarray(fleet.tflops <= 0, dtype=np.bool_)
    if not amount.milli_tflops:
        return np.zeros_like(fleet.compute), unknown
    tflops = np.maximum(fleet.tflops, 1)
    above = amount.milli_tflops > tflops
    milli = (amount.milli_tflops * WHOLE + above * (tflops - 1)) // tflops
    return np.asarray(np.maximum(milli, 1), dtype=np.int64), unknown


def _wrong_model(fleet: Fleet, constraints: Constraints) -> Bools:
    wrong = np.fromiter((not model_passes(model, constraints) for model in fleet.models), dtype=np.bool_)
    return wrong[fleet.model] if len(wrong) else np.zeros(0, dtype=np.bool_)


def _nobody(fleet: Fleet) -> Bools:
    return np.zeros(len(fleet.devices), dtype=np.bool_)


def _rows_of(fleet: Fleet, uuids: frozenset[str]) -> list[int]:
    return [fleet.device_row[uuid] for uuid in uuids if uuid in fleet.device_row]


def _wrong_uuid(fleet: Fleet, constraints: Constraints) -> Bools:
    wrong = _nobody(fleet)
    if constraints.uuids_allowed:
        wrong[:] = True
        wrong[_rows_of(fleet, constraints.uuids_allowed)] = False
    wrong[_rows_of(fleet, constraints.uuids_denied)] = True
    return wrong


def _wrong_index(fleet: Fleet, constraints: Constraints) -> Bools:
    if not constraints.indices:
        return _nobody(fleet)
    return np.asarray(~np.isin(fleet.index, list(constraints.indices)), dtype=np.bool_)


def _wrong_mode(fleet: Fleet, constraints: Constraints) -> Bools:
    if not constraints.modes:
        return _nobody(fleet)
    wrong = np.fromiter((mode not in constraints.modes for mode in fleet.modes), dtype=np.bool_)
    return wrong[fleet.mode]


def _wrong_vendor(fleet: Fleet, constraints: Constraints) -> Bools:
    if constraints.vendor is None:
        return _nobody(fleet)
    wrong = np.fromiter((vendor != constraints.vendor for vendor in fleet.vendors), dtype=np.bool_)
    return wrong[fleet.vendor]


STATIC_CHECKS: Final[tuple[tuple[Reason, Callable[[Fleet, Constraints], Bools]], ...]] = (
    (Reason.VENDOR, _wrong_vendor),
    (Reason.MODE, _wrong_mode),
    (Reason.MODEL, _wrong_model),
    (Reason.UUID, _wrong_uuid),
    (Reason.INDEX, _wrong_index),
    (Reason.UNHEALTHY, lambda fleet, _: np.asarray(~fleet.healthy, dtype=np.bool_)),
    (Reason.CORDONED, lambda fleet, _: fleet.cordoned),
)


@dataclass(frozen=True, slots=True)
class Columns:
    """What the dynamic checks read: what is used of each device and what it has, what is needed, the constraints.

    All devices of the fleet, or (:func:`fitting_rows`) some of its rows.
    """

    memory: Ints
    compute: Ints
    slots: Ints
    exclusive: Ints
    most_slots: Ints
    most_compute: Ints
    need: Need
    constraints: Constraints


def _columns(snapshot: Snapshot, need: Need, constraints: Constraints) -> Columns:
    used, fleet = snapshot.usage, snapshot.fleet
    return Columns(
        used.memory, used.compute, used.slots, used.exclusive, fleet.slots, fleet.compute, need, constraints
    )


Failing = Bools | None
"""The devices that fail a check; ``None`` says at no cost that no device can."""


def _full_slots(view: Columns) -> Failing:
    return np.asarray(view.slots >= view.most_slots, dtype=np.bool_)


def _held_exclusively(view: Columns) -> Failing:
    return np.asarray(view.exclusive > 0, dtype=np.bool_)


def _short_of_memory(view: Columns) -> Failing:
    return np.asarray(view.memory > view.need.memory_room, dtype=np.bool_)


def _short_of_compute(view: Columns) -> Failing:
    return np.asarray(view.compute > view.need.compute_room, dtype=np.bool_)


def _not_idle(view: Columns) -> Failing:
    wanted = view.need.exclusive or view.constraints.idle_device
    return np.asarray(view.slots > 0, dtype=np.bool_) if wanted else None


def _exhausted(view: Columns) -> Failing:
    """A share that asks for no compute may go beside others only while some compute is left."""
    if view.need.free_riding is None:
        return None
    return np.asarray(view.need.free_riding & (view.compute >= view.most_compute), dtype=np.bool_)


DYNAMIC_CHECKS: Final[tuple[tuple[Reason, Callable[[Columns], Failing]], ...]] = (
    (Reason.TFLOPS_UNKNOWN, lambda view: view.need.unknown),
    (Reason.HELD_EXCLUSIVELY, _held_exclusively),
    (Reason.NOT_IDLE, _not_idle),
    (Reason.SLOTS, _full_slots),
    (Reason.MEMORY, _short_of_memory),
    (Reason.COMPUTE, _short_of_compute),
    (Reason.COMPUTE_EXHAUSTED, _exhausted),
)


@dataclass(frozen=True, slots=True)
class Ruled:
    """What a set of constraints rules out of a fleet: the devices by reason, and all of them together."""

    by_reason: tuple[tuple[Reason, Bools], ...]
    out: Bools


class Memo:
    """What is remembered of a fleet, which never changes: what constraints rule out, and what shares need."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ruled: dict[Constraints, Ruled] = {}
        self._needs: dict[ShareSpec, Need] = {}
        self._most_needs = max(16, REMEMBERED_ROWS // max(1, len(fleet.devices)))

    def ruled(self, constraints: Constraints) -> Ruled:
        """The devices that constraints rule out."""
        found = self._ruled.get(constraints)
        if found is None:
            by_reason = tuple((reason, check(self._fleet, constraints)) for reason, check in STATIC_CHECKS)
            out = np.logical_or.reduce([mask for _, mask in by_reason])
            found = _kept(self._ruled, constraints, Ruled(by_reason, out), REMEMBERED_CONSTRAINTS)
        return found

    def need(self, share: ShareSpec) -> Need:
        """What a share takes of each device."""
        found = self._needs.get(share)
        return found or _kept(self._needs, share, need_of(self._fleet, share), self._most_needs)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _kept(memo: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> _Value:
    """Remember ``value``; the oldest is forgotten where there are too many."""
    if len(memo) >= most:
        del memo[next(iter(memo))]
    memo[key] = value
    return value


def memo_of(fleet: Fleet) -> Memo:
    """What is remembered of the fleet; kept on it."""
    kept: Memo | None = fleet.__dict__.get("_memo")
    if kept is None:
        kept = fleet.__dict__["_memo"] = Memo(fleet)
    return kept


def fitting(snapshot: Snapshot, need: Need, constraints: Constraints) -> Bools:
    """The devices that could host one share of the claim, as if it came alone."""
    ruled_out = memo_of(snapshot.fleet).ruled(constraints).out
    return _passing(_columns(snapshot, need, constraints), ruled_out.copy())


def fitting_rows(snapshot: Snapshot, need: Need, constraints: Constraints, rows: Ints) -> Bools:
    """As :func:`fitting`, for these device rows only, in their order."""
    used, fleet = snapshot.usage, snapshot.fleet
    part = Need(
        memory=need.memory,
        compute=need.compute,
        memory_room=need.memory_room[rows],
        compute_room=need.compute_room[rows],
        takes=need.takes,
        unknown=None if need.unknown is None else need.unknown[rows],
        free_riding=None if need.free_riding is None else need.free_riding[rows],
        exclusive=need.exclusive,
    )
    view = Columns(
        memory=used.memory[rows],
        compute=used.compute[rows],
        slots=used.slots[rows],
        exclusive=used.exclusive[rows],
        most_slots=fleet.slots[rows],
        most_compute=fleet.compute[rows],
        need=part,
        constraints=constraints,
    )
    return _passing(view, memo_of(fleet).ruled(constraints).out[rows])


def _passing(view: Columns, failed: Bools) -> Bools:
    """The devices that pass every dynamic check and are not in ``failed``, which is written over."""
    for _, check in DYNAMIC_CHECKS:
        mask = check(view)
        if mask is not None:
            failed |= mask
    return np.logical_not(failed, out=failed)


def failing(snapshot: Snapshot, need: Need, constraints: Constraints) -> Iterator[tuple[Reason, Bools]]:
    """Every check that some device can fail, in order, with the devices that fail it."""
    yield from memo_of(snapshot.fleet).ruled(constraints).by_reason
    view = _columns(snapshot, need, constraints)
    for reason, check in DYNAMIC_CHECKS:
        mask = check(view)
        if mask is not None:
            yield reason, mask


def _selected(fleet: Fleet, pod: Pod) -> Bools:
    wanted = dict(pod.node_selector)
    return np.fromiter(
        (all(node.label(k) == v for k, v in wanted.items()) for node in fleet.nodes), dtype=np.bool_
    )


def _other_name(snapshot: Snapshot, pod: Pod) -> Failing:
    if pod.node_name is None:
        return None
    other = np.ones(len(snapshot.fleet.nodes), dtype=np.bool_)
    row = snapshot.fleet.node_row.get(pod.node_name)
    if row is not None:
        other[row] = False
    return other


def _not_selected(snapshot: Snapshot, pod: Pod) -> Failing:
    return np.asarray(~_selected(snapshot.fleet, pod), dtype=np.bool_) if pod.node_selector else None


def _short_of_cpu(snapshot: Snapshot, pod: Pod) -> Failing:
    fleet, usage = snapshot.fleet, snapshot.usage
    return np.asarray(usage.cpu + pod.cpu_milli > fleet.cpu, dtype=np.bool_) if pod.cpu_milli else None


def _short_of_host_memory(snapshot: Snapshot, pod: Pod) -> Failing:
    fleet, usage = snapshot.fleet, snapshot.usage
    short = usage.host_memory + pod.memory_mib > fleet.host_memory
    return np.asarray(short, dtype=np.bool_) if pod.memory_mib else None


NODE_CHECKS: Final[tuple[tuple[Reason, Callable[[Snapshot, Pod], Failing]], ...]] = (
    (Reason.NODE_NAME, _other_name),
    (Reason.NODE_SELECTOR, _not_selected),
    (Reason.NODE_CORDONED, lambda s, _: np.asarray(~s.fleet.open, dtype=np.bool_)),
    (Reason.NODE_PODS, lambda s, _: np.asarray(s.usage.pods + 1 > s.fleet.max_pods, dtype=np.bool_)),
    (Reason.NODE_CPU, _short_of_cpu),
    (Reason.NODE_MEMORY, _short_of_host_memory),
)


def open_among(snapshot: Snapshot, pod: Pod, nodes: Ints) -> Bools:
    """As :func:`open_nodes` for some nodes, in their order, whatever nodes the pod selects."""
    fleet, usage = snapshot.fleet, snapshot.usage
    is_open = fleet.open[nodes] & (usage.pods[nodes] + 1 <= fleet.max_pods[nodes])
    if pod.cpu_milli:
        is_open &= usage.cpu[nodes] + pod.cpu_milli <= fleet.cpu[nodes]
    if pod.memory_mib:
        is_open &= usage.host_memory[nodes] + pod.memory_mib <= fleet.host_memory[nodes]
    return np.asarray(is_open, dtype=np.bool_)


def open_nodes(snapshot: Snapshot, pod: Pod) -> Bools:
    """The nodes that could take the pod as far as everything but devices goes."""
    closed = np.zeros(len(snapshot.fleet.nodes), dtype=np.bool_)
    for _, check in NODE_CHECKS:
        mask = check(snapshot, pod)
        if mask is not None:
            closed |= mask
    return np.asarray(~closed, dtype=np.bool_)
