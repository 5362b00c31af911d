"""The smallest change that would place a rejected pod, found by asking the allocator about changed requests.

Numbers (memory, compute, devices) are lowered to the greatest value that still places the pod, by bisection:
whatever fits some amount fits less of it. Rules (model, uuid, NUMA, ...) are lifted one at a time. Each
suggestion is one change; the least drastic comes first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from tessera.allocator.place import place, prospect
from tessera.core.fleet import Snapshot
from tessera.core.request import Claim, Constraints, Pod, Request
from tessera.core.share import (
    ComputeAmount,
    ComputeMilli,
    ComputeTflops,
    MemoryAmount,
    MemoryFraction,
    MemoryMiB,
    ShareSpec,
)
from tessera.core.units import MiB, Milli, render_mib, render_percent
from tessera.policy.rank import POLICIES

LISTED_NODES: Final = 3


class Change(StrEnum):
    """What would be changed."""

    MEMORY = "memory"
    COMPUTE = "compute"
    COUNT = "count"
    SHARING = "sharing"
    MODEL = "model"
    UUID = "uuid"
    INDEX = "index"
    MODE = "mode"
    NUMA = "numa"
    IDLE_DEVICE = "idle-device"
    DEVICES_TOGETHER = "devices-together"
    NODE = "node"
    CPU = "cpu"
    HOST_MEMORY = "host-memory"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change that would place the pod: ``value`` is the new amount where the change is a number.

    ``drastic`` orders suggestions: the part of the request that is given up (0 to 1), or 0.5 for a rule.
    """

    change: Change
    text: str
    value: int | None
    nodes: tuple[str, ...]
    drastic: float


def suggest(snapshot: Snapshot, pod: Pod) -> tuple[Suggestion, ...]:
    """Every single change that would place the pod on this snapshot, the least drastic first; often none."""
    if pod.request is None:
        return ()
    found = [
        *_numbers(snapshot, pod, pod.request),
        *_rules(snapshot, pod, pod.request),
        *_hosts(snapshot, pod),
    ]
    return tuple(sorted(found, key=lambda s: (s.drastic, s.change)))


def _host_of(snapshot: Snapshot, pod: Pod) -> str | None:
    placed = place(snapshot, pod, POLICIES["binpack"])
    return placed.placement.node if placed else None


def _with_claim(pod: Pod, request: Request, at: int, claim: Claim) -> Pod:
    claims = (*request.claims[:at], claim, *request.claims[at + 1 :])
    return replace(pod, request=replace(request, claims=claims))


def _greatest(below: int, places: Callable[[int], str | None]) -> tuple[int, str] | None:
    """The greatest value from 1 to ``below - 1`` with which the pod is placed, and where; bisection."""
    low, high, best = 1, below - 1, None
    while low <= high:
        middle = (low + high) // 2
        node = places(middle)
        if node is None:
            high = middle - 1
        else:
            best, low = (middle, node), middle + 1
    return best


def _memory_at(spec: ShareSpec, value: int) -> ShareSpec:
    amount: MemoryAmount = (
        MemoryMiB(MiB(value)) if isinstance(spec.memory_request, MemoryMiB) else MemoryFraction(Milli(value))
    )
    return replace(spec, memory_request=amount, memory_limit=amount)


def _compute_at(spec: ShareSpec, value: int) -> ShareSpec:
    amount: ComputeAmount = (
        ComputeMilli(Milli(value)) if isinstance(spec.compute_request, ComputeMilli) else ComputeTflops(value)
    )
    return replace(spec, compute_request=amount, compute_limit=amount)


@dataclass(frozen=True, slots=True)
class _Knob:
    """A number of a claim that could be lower: its value, the claim with another one, and the words for it."""

    change: Change
    noun: str
    value: int
    turned: Callable[[int], Claim]
    render: Callable[[int], str]


def _memory_knob(claim: Claim) -> _Knob:
    amount = claim.share.memory_request

    def turned(value: int) -> Claim:
        return replace(claim, share=_memory_at(claim.share, value))

    if isinstance(amount, MemoryMiB):
        return _Knob(Change.MEMORY, "memory", amount.mib, turned, render_mib)
    return _Knob(Change.MEMORY, "memory", amount.milli, turned, lambda v: f"{render_percent(v)} of the device")


def _compute_knob(claim: Claim) -> _Knob:
    amount = claim.share.compute_request

    def turned(value: int) -> Claim:
        return replace(claim, share=_compute_at(claim.share, value))

    if isinstance(amount, ComputeMilli):
        return _Knob(Change.COMPUTE, "compute", amount.milli, turned, render_percent)
    return _Knob(Change.COMPUTE, "compute", amount.milli_tflops, turned, lambda v: f"{v / 1000:g} TFLOPS")


def _count_knob(claim: Claim) -> _Knob:
    return _Knob(Change.COUNT, "devices", claim.count, lambda v: replace(claim, count=v), str)


def _numbers(snapshot: Snapshot, pod: Pod, request: Request) -> Iterator[Suggestion]:
    for at, claim in enumerate(request.claims):
        of = f" of container {claim.containers[0]}" if len(request.claims) > 1 else ""
        knobs = [_count_knob(claim)]
        if claim.share.exclusive:
            yield from _sharing(snapshot, pod, request, at)
        else:
            knobs += [_memory_knob(claim), _compute_knob(claim)]
        for knob in knobs:
            best = _greatest(knob.value, _trial(snapshot, pod, request, at, knob.turned))
            if best:
                text = f"lower {knob.noun}{of} to {knob.render(best[0])}"
                yield Suggestion(knob.change, text, best[0], (best[1],), 1 - best[0] / knob.value)


def _trial(
    snapshot: Snapshot, pod: Pod, request: Request, at: int, turned: Callable[[int], Claim]
) -> Callable[[int], str | None]:
    """Where the pod would go with claim ``at`` turned to a value."""
    return lambda value: _host_of(snapshot, _with_claim(pod, request, at, turned(value)))


def _sharing(snapshot: Snapshot, pod: Pod, request: Request, at: int) -> Iterator[Suggestion]:
    """A share instead of a whole device: the greatest fraction, memory and compute alike, that fits."""
    claim = request.claims[at]

    def fraction(value: int) -> Claim:
        memory, compute = MemoryFraction(Milli(value)), ComputeMilli(Milli(value))
        return replace(claim, share=ShareSpec(memory, memory, compute, compute))

    best = _greatest(1000, _trial(snapshot, pod, request, at, fraction))
    if best:
        text = f"ask for a share of {render_percent(best[0])} instead of whole devices"
        yield Suggestion(Change.SHARING, text, best[0], (best[1],), 1 - best[0] / 1000)


_LIFTED: Final[tuple[tuple[Change, Callable[[Constraints], Constraints], str], ...]] = (
    (Change.MODEL, lambda c: replace(c, models_allowed=(), models_denied=()), "model {models} were allowed"),
    (
        Change.UUID,
        lambda c: replace(c, uuids_allowed=frozenset(), uuids_denied=frozenset()),
        "any uuid were allowed",
    ),
    (Change.INDEX, lambda c: replace(c, indices=frozenset()), "any device index were allowed"),
    (Change.MODE, lambda c: replace(c, modes=frozenset()), "any partitioning mode were allowed"),
    (Change.NUMA, lambda c: replace(c, one_numa=False), "the devices need not share a NUMA node"),
    (Change.IDLE_DEVICE, lambda c: replace(c, idle_device=False), "the device need not be idle"),
    (
        Change.DEVICES_TOGETHER,
        lambda c: replace(c, distinct_devices=False, same_device=()),
        "containers were free to share or not to share devices",
    ),
)


def _rules(snapshot: Snapshot, pod: Pod, request: Request) -> Iterator[Suggestion]:
    for change, lift, words in _LIFTED:
        lifted = lift(request.constraints)
        if lifted == request.constraints:
            continue
        changed = replace(pod, request=replace(request, constraints=lifted))
        if _host_of(snapshot, changed) is None:
            continue
        nodes, models = _hosting(snapshot, changed)
        text = f"{_any_of(nodes)} if {words.format(models=models)}"
        yield Suggestion(change, text, None, nodes, 0.5)


def _hosting(snapshot: Snapshot, pod: Pod) -> tuple[tuple[str, ...], str]:
    """The nodes on which every claim of the pod fits alone, and the models of their fitting devices."""
    fleet, found = snapshot.fleet, prospect(snapshot, pod)
    rows = np.flatnonzero(found.hosts).tolist()
    fits = np.logical_or.reduce(found.fits) & found.hosts[fleet.node_of]
    models = sorted({fleet.models[m] for m in fleet.model[fits].tolist()})
    return tuple(fleet.nodes[row].name for row in rows), " or ".join(models)


def _any_of(nodes: tuple[str, ...]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    if len(nodes) <= LISTED_NODES:
        return f"any of these {len(nodes)} nodes ({', '.join(nodes)})"
    return f"any of {len(nodes):,} nodes ({', '.join(nodes[:LISTED_NODES])}, ...)"


def _hosts(snapshot: Snapshot, pod: Pod) -> Iterator[Suggestion]:
    """Changes to what the pod asks of the node itself."""
    if pod.node_name is not None or pod.node_selector:
        freed = replace(pod, node_name=None, node_selector=())
        if _host_of(snapshot, freed) is not None:
            nodes, _ = _hosting(snapshot, freed)
            yield Suggestion(Change.NODE, f"{_any_of(nodes)} if the node selector allowed it", None, nodes, 0.5)
    if pod.cpu_milli:
        best = _greatest(pod.cpu_milli, lambda v: _host_of(snapshot, replace(pod, cpu_milli=v)))
        if best:
            text = f"lower the CPU request to {best[0]}m"
            yield Suggestion(Change.CPU, text, best[0], (best[1],), 1 - best[0] / pod.cpu_milli)
    if pod.memory_mib:
        best = _greatest(pod.memory_mib, lambda v: _host_of(snapshot, replace(pod, memory_mib=v)))
        if best:
            text = f"lower the host memory request to {render_mib(best[0])}"
            yield Suggestion(Change.HOST_MEMORY, text, best[0], (best[1],), 1 - best[0] / pod.memory_mib)
