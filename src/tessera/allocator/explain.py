"""Why not: the reasons of every node, grouped, as values; the words for them; and the smallest change that helps.

Reasons come from the same checks that decide (:mod:`tessera.allocator.fit`): a device's reason is its first
failing check. Suggestions are found by asking the allocator itself about a changed request, so a suggestion
that is given is true of the snapshot that it was asked about.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from tessera.allocator.fit import NODE_CHECKS, failing
from tessera.allocator.place import Prospect, local_problem, prospect
from tessera.allocator.search import SearchLimit, search
from tessera.core.fleet import Bools, Ints, Snapshot
from tessera.core.placement import Reason, ReasonGroup, Rejected, Shortfall
from tessera.core.request import Pod
from tessera.core.units import render_mib, render_percent

_REASONS: Final = tuple(Reason)
_CODE: Final[Mapping[Reason, int]] = {reason: code for code, reason in enumerate(_REASONS, start=1)}

_BY_CLAIM, _BY_NODE, _WITHOUT_DEVICES = 0, 1, 2
_TOGETHER, _LEFT_OUT = -1, -2
_BITS_OF_KIND: Final = 2
_BITS_OF_CLAIM: Final = 16

MEMORY_UNKNOWN: Final = "whose memory is not known"
"""The detail of a shortfall of memory where no device has any (0 MiB is what discovery could not find out)."""


def reject(snapshot: Snapshot, pod: Pod, among: Bools | None = None) -> Rejected:
    """Every node with its reasons; nodes with the same set of reasons share a group, the largest group first.

    ``among`` marks the nodes to explain; without it, all.
    """
    found = prospect(snapshot, pod)
    by_claim = [_device_reasons(snapshot, found, i) for i in range(len(found.needs))]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    keys = _keys(snapshot, found, by_claim)
    if among is not None:
        keys[~among] = _LEFT_OUT
    for key in np.unique(keys[keys >= 0]).tolist():
        groups[("alike", key)] = np.flatnonzero(keys == key).tolist()
    for row in np.flatnonzero(keys == _TOGETHER).tolist():
        groups[("together", _together(snapshot, found, row))].append(row)
    described = [_group(snapshot, found, by_claim, key, rows) for key, rows in groups.items()]
    return Rejected(tuple(sorted(described, key=lambda g: (-len(g.nodes), g.nodes[0]))))


def _node_reasons(snapshot: Snapshot, pod: Pod) -> Ints:
    """The code of the first failing check of each node itself, 0 where it is open."""
    codes = np.zeros(len(snapshot.fleet.nodes), dtype=np.int64)
    for reason, check in NODE_CHECKS:
        mask = check(snapshot, pod)
        if mask is not None:
            codes[mask & (codes == 0)] = _CODE[reason]
    return codes


def _device_reasons(snapshot: Snapshot, found: Prospect, claim: int) -> Ints:
    """The code of the first failing check of each device for one claim, 0 where it fits."""
    codes = np.zeros(len(snapshot.fleet.devices), dtype=np.int64)
    for reason, mask in failing(snapshot, found.needs[claim], found.rules[claim]):
        codes[mask & (codes == 0)] = _CODE[reason]
    return codes


def _keys(snapshot: Snapshot, found: Prospect, by_claim: list[Ints]) -> Ints:
    """A number for every node, equal for nodes that refuse alike; -1 where only the whole pod does not fit.

    The node's own reason comes first; then the first claim that finds too few devices, with the set of reasons
    of its devices as bits (there are fewer than 32 reasons, and 64 bits).
    """
    fleet = snapshot.fleet
    keys = np.full(len(fleet.nodes), _TOGETHER, dtype=np.int64)
    sizes = fleet.first[1:] - fleet.first[:-1]
    for i in reversed(range(len(by_claim))):
        bits = np.zeros(len(fleet.nodes), dtype=np.int64)
        np.bitwise_or.at(bits, fleet.node_of, np.left_shift(1, by_claim[i]))
        short = ~fleet.nodes_with(found.fits[i], found.request.claims[i].count)
        keys[short] = (bits[short] << _BITS_OF_CLAIM) | (i << _BITS_OF_KIND) | _BY_CLAIM
    keys[sizes == 0] = _WITHOUT_DEVICES
    own = _node_reasons(snapshot, found.pod)
    keys[own > 0] = (own[own > 0] << _BITS_OF_CLAIM) | _BY_NODE
    return keys


def _together(snapshot: Snapshot, found: Prospect, row: int) -> Reason:
    """Each claim fits alone but not all at once: by NUMA, by search limit, or by the combination as such."""
    devices, claims, phase_count, rules = local_problem(snapshot, found, row)
    try:
        search(devices, claims, phase_count, range(len(devices)), rules)
    except SearchLimit:
        return Reason.SEARCH_LIMIT
    if rules.one_numa:
        loose = type(rules)(one_numa=False, distinct=rules.distinct)
        if search(devices, claims, phase_count, range(len(devices)), loose) is not None:
            return Reason.NUMA
    return Reason.COMBINATION


def _group(
    snapshot: Snapshot, found: Prospect, by_claim: list[Ints], key: tuple[object, ...], rows: list[int]
) -> ReasonGroup:
    names = tuple([snapshot.fleet.node_names[row] for row in rows])
    if key[0] == "together":
        assert isinstance(key[1], Reason)
        return ReasonGroup(names, (Shortfall(key[1], len(rows)),))
    assert isinstance(key[1], int)
    kind = key[1] & ((1 << _BITS_OF_KIND) - 1)
    if kind == _WITHOUT_DEVICES:
        return ReasonGroup(names, (Shortfall(Reason.NO_DEVICE, 0),))
    if kind == _BY_NODE:
        reason = _REASONS[(key[1] >> _BITS_OF_CLAIM) - 1]
        return ReasonGroup(names, (_node_shortfall(snapshot, found.pod, reason, rows),))
    claim = (key[1] & ((1 << _BITS_OF_CLAIM) - 1)) >> _BITS_OF_KIND
    return ReasonGroup(names, _claim_shortfalls(snapshot, found, by_claim[claim], claim, rows))


_HOST_COLUMNS: Final[Mapping[Reason, tuple[str, str, Callable[[Pod], int]]]] = {
    Reason.NODE_CPU: ("cpu", "cpu", lambda pod: pod.cpu_milli),
    Reason.NODE_MEMORY: ("host_memory", "host_memory", lambda pod: pod.memory_mib),
    Reason.NODE_PODS: ("max_pods", "pods", lambda _: 1),
}


def _node_shortfall(snapshot: Snapshot, pod: Pod, reason: Reason, rows: list[int]) -> Shortfall:
    columns = _HOST_COLUMNS.get(reason)
    if columns is None:
        detail = {
            Reason.NODE_NAME: pod.node_name or "",
            Reason.NODE_SELECTOR: ", ".join(f"{k}={v}" for k, v in pod.node_selector),
        }.get(reason, "")
        return Shortfall(reason, len(rows), detail=detail)
    total, used, asked = columns
    free = getattr(snapshot.fleet, total)[rows] - getattr(snapshot.usage, used)[rows]
    return Shortfall(reason, len(rows), asked=asked(pod), best=int(free.max()))


def _claim_shortfalls(
    snapshot: Snapshot, found: Prospect, codes: Ints, claim: int, rows: list[int]
) -> tuple[Shortfall, ...]:
    """One shortfall per reason among the devices of these nodes, and the count where some devices do fit."""
    fleet = snapshot.fleet
    among = np.zeros(len(fleet.nodes), dtype=np.bool_)
    among[rows] = True
    here = among[fleet.node_of]
    wanted = found.request.claims[claim].count
    shortfalls = [
        _device_shortfall(snapshot, found, claim, reason, here & (codes == code))
        for reason, code in _CODE.items()
        if bool((here & (codes == code)).any())
    ]
    shortfalls.sort(key=lambda s: -s.devices)
    best = int(fleet.per_node(found.fits[claim])[rows].max())
    largest = int((fleet.first[1:] - fleet.first[:-1])[rows].max())
    if best or largest < wanted:
        return (Shortfall(Reason.COUNT, best, asked=wanted, best=best), *shortfalls)
    return tuple(shortfalls)


def _device_shortfall(snapshot: Snapshot, found: Prospect, claim: int, reason: Reason, mask: Bools) -> Shortfall:
    fleet, usage, need = snapshot.fleet, snapshot.usage, found.needs[claim]
    count = int(mask.sum())
    if reason is Reason.MEMORY:
        detail = "" if fleet.memory[mask].any() else MEMORY_UNKNOWN
        return _numbers(reason, count, need.memory[mask], (fleet.memory - usage.memory)[mask], detail)
    if reason is Reason.COMPUTE:
        return _numbers(reason, count, need.compute[mask], (fleet.compute - usage.compute)[mask])
    if reason in (Reason.MODEL, Reason.TFLOPS_UNKNOWN):
        models = sorted({fleet.models[m] for m in fleet.model[mask].tolist()})
        return Shortfall(reason, count, detail=_few(models))
    if reason is Reason.SLOTS:
        return Shortfall(reason, count, asked=1, best=0, detail=str(int(fleet.slots[mask].max())))
    return Shortfall(reason, count)


def _numbers(reason: Reason, count: int, asked: Ints, free: Ints, detail: str = "") -> Shortfall:
    """What was asked of the device that comes nearest, and what that one has."""
    nearest = int(np.argmin(asked - free))
    return Shortfall(reason, count, asked=int(asked[nearest]), best=int(free[nearest]), detail=detail)


def _few(names: Iterable[str], most: int = 4) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _at_most(count: int) -> str:
    return {0: "none fits", 1: "only 1 fits"}.get(count, f"at most {count} fit")


_SENTENCES: Final[Mapping[Reason, Callable[[Shortfall], str]]] = {
    Reason.NODE_NAME: lambda s: f"is not the node that the pod names ({s.detail})",
    Reason.NODE_SELECTOR: lambda s: f"does not carry the labels of the node selector ({s.detail})",
    Reason.NODE_CORDONED: lambda _: "node is cordoned",
    Reason.NODE_CPU: lambda s: f"too little CPU (asked {s.asked}m, most free {s.best}m)",
    Reason.NODE_MEMORY: lambda s: (
        f"too little host memory (asked {render_mib(s.asked or 0)}, most free {render_mib(s.best or 0)})"
    ),
    Reason.NODE_PODS: lambda _: "no room for another pod",
    Reason.NO_DEVICE: lambda _: "node has no devices",
    Reason.VENDOR: lambda s: f"{_plural(s.devices, 'device')} of another vendor",
    Reason.MODE: lambda s: f"{_plural(s.devices, 'device')} in another partitioning mode",
    Reason.MODEL: lambda s: f"{_plural(s.devices, 'device')} of a model that is not allowed ({s.detail})",
    Reason.UUID: lambda s: f"{_plural(s.devices, 'device')} ruled out by uuid",
    Reason.INDEX: lambda s: f"{_plural(s.devices, 'device')} ruled out by index",
    Reason.UNHEALTHY: lambda s: f"{_plural(s.devices, 'unhealthy device')}",
    Reason.CORDONED: lambda s: f"{_plural(s.devices, 'cordoned device')}",
    Reason.TFLOPS_UNKNOWN: lambda s: f"{_plural(s.devices, 'device')} whose TFLOPS are not known ({s.detail})",
    Reason.HELD_EXCLUSIVELY: lambda s: f"{_plural(s.devices, 'device')} held exclusively by another pod",
    Reason.NOT_IDLE: lambda s: f"{_plural(s.devices, 'device')} in use, but a whole idle device was asked for",
    Reason.SLOTS: lambda s: f"{_plural(s.devices, 'device')} with all {s.detail} slots taken",
    Reason.MEMORY: lambda s: (
        f"{_plural(s.devices, 'device')} {s.detail}"
        if s.detail
        else f"{_plural(s.devices, 'device')} short of memory "
        f"(asked {render_mib(s.asked or 0)}, largest free {render_mib(s.best or 0)})"
    ),
    Reason.COMPUTE: lambda s: (
        f"{_plural(s.devices, 'device')} short of compute "
        f"(asked {render_percent(s.asked or 0)}, most free {render_percent(s.best or 0)})"
    ),
    Reason.COMPUTE_EXHAUSTED: lambda s: f"{_plural(s.devices, 'device')} with no compute left to share",
    Reason.NUMA: lambda _: "not enough fitting devices on any one NUMA node",
    Reason.COUNT: lambda s: f"asked for {_plural(s.asked or 0, 'device')}, {_at_most(s.best or 0)}",
    Reason.COMBINATION: lambda _: "each container fits alone, but not all of them together",
    Reason.SEARCH_LIMIT: lambda _: "too many combinations of containers and devices to search",
}


def sentence(shortfall: Shortfall) -> str:
    """A shortfall in words, with its numbers."""
    return _SENTENCES[shortfall.reason](shortfall)
