"""Does a claim fit a device? One table of checks, each a column over all devices at once.

The order of the table is the order in which reasons are given: a device fails by its first failing check.
Checks on static facts (model, health, ...) are computed once per fleet and set of constraints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.core.placement import Reason
from tessera.core.request import Claim, Constraints, ModelRule, Pod
from tessera.core.share import ComputeAmount, ComputeMilli, MemoryAmount, MemoryMiB
from tessera.core.units import WHOLE

CACHED_CONSTRAINTS: Final = 512


@dataclass(frozen=True, slots=True)
class Need:
    """What one claim takes of each device of the fleet; ``known`` is false where TFLOPS cannot be converted."""

    memory: Ints
    compute: Ints
    known: Bools
    exclusive: bool


def need_of(fleet: Fleet, claim: Claim) -> Need:
    """The claim's requests on every device: MiB and milli-devices, as :func:`core.share.resolve` has them."""
    compute, known = _compute_column(fleet, claim.share.compute_request)
    return Need(_memory_column(fleet, claim.share.memory_request), compute, known, claim.share.exclusive)


def _memory_column(fleet: Fleet, amount: MemoryAmount) -> Ints:
    if isinstance(amount, MemoryMiB):
        return np.full_like(fleet.memory, amount.mib)
    return np.asarray(fleet.memory * amount.milli // 1000, dtype=np.int64)


def _compute_column(fleet: Fleet, amount: ComputeAmount) -> tuple[Ints, Bools]:
    if isinstance(amount, ComputeMilli):
        return np.full_like(fleet.compute, amount.milli), np.ones(len(fleet.devices), dtype=np.bool_)
    known = fleet.tflops > 0
    if not amount.milli_tflops:
        return np.zeros_like(fleet.compute), known
    milli = amount.milli_tflops * WHOLE // np.maximum(fleet.tflops, 1)
    return np.asarray(np.maximum(milli, 1), dtype=np.int64), known


def _matches(model: str, rules: tuple[ModelRule, ...]) -> bool:
    lowered = model.lower()
    return any(r.pattern == model if r.exact else r.pattern.lower() in lowered for r in rules)


def _wrong_model(fleet: Fleet, constraints: Constraints) -> Bools:
    wrong = [
        bool(constraints.models_allowed and not _matches(model, constraints.models_allowed))
        or _matches(model, constraints.models_denied)
        for model in fleet.models
    ]
    return np.asarray(wrong, dtype=np.bool_)[fleet.model] if wrong else np.zeros(0, dtype=np.bool_)


def _wrong_uuid(fleet: Fleet, constraints: Constraints) -> Bools:
    allowed, denied = constraints.uuids_allowed, constraints.uuids_denied
    return np.fromiter(
        ((bool(allowed) and d.uuid not in allowed) or d.uuid in denied for d in fleet.devices), dtype=np.bool_
    )


def _wrong_index(fleet: Fleet, constraints: Constraints) -> Bools:
    if not constraints.indices:
        return np.zeros(len(fleet.devices), dtype=np.bool_)
    return np.asarray(~np.isin(fleet.index, list(constraints.indices)), dtype=np.bool_)


def _wrong_mode(fleet: Fleet, constraints: Constraints) -> Bools:
    return np.fromiter(
        (bool(constraints.modes) and d.mode not in constraints.modes for d in fleet.devices), dtype=np.bool_
    )


def _wrong_vendor(fleet: Fleet, constraints: Constraints) -> Bools:
    wanted = constraints.vendor
    return np.fromiter((wanted is not None and d.vendor != wanted for d in fleet.devices), dtype=np.bool_)


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


def _short_of_compute(view: _View) -> Bools:
    snapshot, need, _ = view
    return np.asarray(snapshot.usage.compute + need.compute > snapshot.fleet.compute, dtype=np.bool_)


def _short_of_memory(view: _View) -> Bools:
    snapshot, need, _ = view
    return np.asarray(snapshot.usage.memory + need.memory > snapshot.fleet.memory, dtype=np.bool_)


def _not_idle(view: _View) -> Bools:
    snapshot, need, constraints = view
    if not (need.exclusive or constraints.idle_device):
        return np.zeros(len(snapshot.fleet.devices), dtype=np.bool_)
    return np.asarray(snapshot.usage.slots > 0, dtype=np.bool_)


def _exhausted(view: _View) -> Bools:
    """A share that asks for no compute may go beside others only while some compute is left."""
    snapshot, need, _ = view
    full = snapshot.usage.compute >= snapshot.fleet.compute
    return np.asarray((need.compute == 0) & full, dtype=np.bool_)


DYNAMIC_CHECKS: Final[tuple[tuple[Reason, Callable[[_View], Bools]], ...]] = (
    (Reason.TFLOPS_UNKNOWN, lambda v: np.asarray(~v[1].known, dtype=np.bool_)),
    (Reason.HELD_EXCLUSIVELY, lambda v: np.asarray(v[0].usage.exclusive > 0, dtype=np.bool_)),
    (Reason.NOT_IDLE, _not_idle),
    (Reason.SLOTS, lambda v: np.asarray(v[0].usage.slots >= v[0].fleet.slots, dtype=np.bool_)),
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
    fits = static_masks(snapshot.fleet).of(constraints)[1].copy()
    view = (snapshot, need, constraints)
    for _, check in DYNAMIC_CHECKS:
        fits &= ~check(view)
    return fits


def failing(snapshot: Snapshot, need: Need, constraints: Constraints) -> Iterator[tuple[Reason, Bools]]:
    """Every check in order with the devices that fail it."""
    yield from static_masks(snapshot.fleet).of(constraints)[0]
    view = (snapshot, need, constraints)
    for reason, check in DYNAMIC_CHECKS:
        yield reason, check(view)


def _selected(fleet: Fleet, pod: Pod) -> Bools:
    wanted = dict(pod.node_selector)
    return np.fromiter(
        (all(node.labels.get(k) == v for k, v in wanted.items()) for node in fleet.nodes), dtype=np.bool_
    )


NODE_CHECKS: Final[tuple[tuple[Reason, Callable[[Snapshot, Pod], Bools]], ...]] = (
    (
        Reason.NODE_NAME,
        lambda s, p: (
            np.fromiter((n.name != p.node_name for n in s.fleet.nodes), dtype=np.bool_)
            if p.node_name is not None
            else np.zeros(len(s.fleet.nodes), dtype=np.bool_)
        ),
    ),
    (
        Reason.NODE_SELECTOR,
        lambda s, p: (
            np.asarray(~_selected(s.fleet, p), dtype=np.bool_)
            if p.node_selector
            else np.zeros(len(s.fleet.nodes), dtype=np.bool_)
        ),
    ),
    (Reason.NODE_CORDONED, lambda s, _: np.asarray(~s.fleet.open, dtype=np.bool_)),
    (Reason.NODE_PODS, lambda s, _: np.asarray(s.usage.pods + 1 > s.fleet.max_pods, dtype=np.bool_)),
    (
        Reason.NODE_CPU,
        lambda s, p: np.asarray((p.cpu_milli > 0) & (s.usage.cpu + p.cpu_milli > s.fleet.cpu), dtype=np.bool_),
    ),
    (
        Reason.NODE_MEMORY,
        lambda s, p: np.asarray(
            (p.memory_mib > 0) & (s.usage.host_memory + p.memory_mib > s.fleet.host_memory), dtype=np.bool_
        ),
    ),
)


def open_nodes(snapshot: Snapshot, pod: Pod) -> Bools:
    """The nodes that could take the pod as far as everything but devices goes."""
    passing = np.ones(len(snapshot.fleet.nodes), dtype=np.bool_)
    for _, check in NODE_CHECKS:
        passing &= ~check(snapshot, pod)
    return passing
