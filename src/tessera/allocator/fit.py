"""Does a claim fit a device? One table of checks, each a column over all devices at once.

The order of the table is the order in which reasons are given: a device fails by its first failing check.
Checks on static facts (model, health, ...) are computed once per fleet and set of constraints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tessera.allocator.rules import model_passes
from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.core.placement import Reason
from tessera.core.request import Claim, Constraints, Pod
from tessera.core.share import ComputeAmount, ComputeMilli, MemoryAmount, MemoryMiB
from tessera.core.units import WHOLE

CACHED_CONSTRAINTS: Final = 512


@dataclass(frozen=True, slots=True)
class Need:
    """What one claim takes of each device of the fleet.

    ``unknown`` marks devices on which TFLOPS cannot be converted; ``None`` where nothing needs converting.
    """

    memory: Ints
    compute: Ints
    unknown: Bools | None
    exclusive: bool


def need_of(fleet: Fleet, claim: Claim) -> Need:
    """The claim's requests on every device: MiB and milli-devices, as :func:`core.share.resolve` has them."""
    compute, unknown = _compute_column(fleet, claim.share.compute_request)
    return Need(_memory_column(fleet, claim.share.memory_request), compute, unknown, claim.share.exclusive)


def _memory_column(fleet: Fleet, amount: MemoryAmount) -> Ints:
    if isinstance(amount, MemoryMiB):
        return np.full(len(fleet.devices), amount.mib, dtype=np.int64)
    return np.asarray(fleet.memory * amount.milli // 1000, dtype=np.int64)


def _compute_column(fleet: Fleet, amount: ComputeAmount) -> tuple[Ints, Bools | None]:
    if isinstance(amount, ComputeMilli):
        return np.full(len(fleet.devices), amount.milli, dtype=np.int64), None
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

_View = tuple[Snapshot, Need, Constraints]
Failing = Bools | None
"""The devices that fail a check; ``None`` says at no cost that no device can."""


def _full_slots(view: _View) -> Failing:
    return np.asarray(view[0].usage.slots >= view[0].fleet.slots, dtype=np.bool_)


def _held_exclusively(view: _View) -> Failing:
    return np.asarray(view[0].usage.exclusive > 0, dtype=np.bool_)


def _short_of_memory(view: _View) -> Failing:
    snapshot, need, _ = view
    return np.asarray(snapshot.usage.memory + need.memory > snapshot.fleet.memory, dtype=np.bool_)


def _short_of_compute(view: _View) -> Failing:
    snapshot, need, _ = view
    return np.asarray(snapshot.usage.compute + need.compute > snapshot.fleet.compute, dtype=np.bool_)


def _not_idle(view: _View) -> Failing:
    snapshot, need, constraints = view
    wanted = need.exclusive or constraints.idle_device
    return np.asarray(snapshot.usage.slots > 0, dtype=np.bool_) if wanted else None


def _exhausted(view: _View) -> Failing:
    """A share that asks for no compute may go beside others only while some compute is left."""
    snapshot, need, _ = view
    free_riding = need.compute == 0
    if not free_riding.any():
        return None
    return np.asarray(free_riding & (snapshot.usage.compute >= snapshot.fleet.compute), dtype=np.bool_)


DYNAMIC_CHECKS: Final[tuple[tuple[Reason, Callable[[_View], Failing]], ...]] = (
    (Reason.TFLOPS_UNKNOWN, lambda view: view[1].unknown),
    (Reason.HELD_EXCLUSIVELY, _held_exclusively),
    (Reason.NOT_IDLE, _not_idle),
    (Reason.SLOTS, _full_slots),
    (Reason.MEMORY, _short_of_memory),
    (Reason.COMPUTE, _short_of_compute),
    (Reason.COMPUTE_EXHAUSTED, _exhausted),
)


class StaticMasks:
    """Per fleet: which devices a set of constraints rules out, by reason; remembered for repeated requests."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: dict[Constraints, tuple[tuple[tuple[Reason, Bools], ...], Bools]] = {}

    def of(self, constraints: Constraints) -> tuple[tuple[tuple[Reason, Bools], ...], Bools]:
        """The failing devices of each static check, and the devices that pass them all."""
        found = self._kept.get(constraints)
        if found is None:
            failing = tuple((reason, check(self._fleet, constraints)) for reason, check in STATIC_CHECKS)
            passing = np.ones(len(self._fleet.devices), dtype=np.bool_)
            for _, mask in failing:
                passing &= ~mask
            if len(self._kept) >= CACHED_CONSTRAINTS:
                self._kept.clear()
            found = self._kept[constraints] = (failing, passing)
        return found


def static_masks(fleet: Fleet) -> StaticMasks:
    """The fleet's remembered masks (kept on the fleet, which never changes)."""
    kept: StaticMasks | None = fleet.__dict__.get("_static_masks")
    if kept is None:
        kept = fleet.__dict__["_static_masks"] = StaticMasks(fleet)
    return kept


def fitting(snapshot: Snapshot, need: Need, constraints: Constraints) -> Bools:
    """The devices that could host one share of the claim, as if it came alone."""
    view = (snapshot, need, constraints)
    failed = ~static_masks(snapshot.fleet).of(constraints)[1]
    for _, check in DYNAMIC_CHECKS:
        mask = check(view)
        if mask is not None:
            failed |= mask
    return np.asarray(~failed, dtype=np.bool_)


def failing(snapshot: Snapshot, need: Need, constraints: Constraints) -> Iterator[tuple[Reason, Bools]]:
    """Every check that some device can fail, in order, with the devices that fail it."""
    yield from static_masks(snapshot.fleet).of(constraints)[0]
    view = (snapshot, need, constraints)
    for reason, check in DYNAMIC_CHECKS:
        mask = check(view)
        if mask is not None:
            yield reason, mask


def _selected(fleet: Fleet, pod: Pod) -> Bools:
    wanted = dict(pod.node_selector)
    return np.fromiter(
        (all(node.labels.get(k) == v for k, v in wanted.items()) for node in fleet.nodes), dtype=np.bool_
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


def open_nodes(snapshot: Snapshot, pod: Pod) -> Bools:
    """The nodes that could take the pod as far as everything but devices goes."""
    closed = np.zeros(len(snapshot.fleet.nodes), dtype=np.bool_)
    for _, check in NODE_CHECKS:
        mask = check(snapshot, pod)
        if mask is not None:
            closed |= mask
    return np.asarray(~closed, dtype=np.bool_)
