"""Which pods have to leave one node so that a pod of whole devices fits there: the smallest sets, by trying all.

A device is free for the pod when its holders left, or some of them: who holds no compute does not keep a pod off
that needs all of it. CPU, memory and pod places of the node may have to be freed beside. Where a node has so many
devices that trying all choices of them would take long, those with the fewest and smallest holders are tried.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import comb
from typing import Final

from tessera.allocator.moves import Tenant
from tessera.core.fleet import Fleet
from tessera.core.units import WHOLE

CHOICES: Final = 256
"""Choices of devices that are tried on one node, and of holders on one device."""

KEPT: Final = 4
"""Sets of one node that are kept: the next is for where the pods of the one before have no other place."""

Leavers = frozenset[int]
"""Positions in the site's tenants."""

Amounts = tuple[int, int, int]
"""Memory in MiB, compute in milli, slots."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node as a pod sees it that wants it: ``free`` devices fit it now, each of ``held`` would once some left.

    Each of ``held`` has the smallest sets of holders by whose leaving the device fits. ``movable`` are the
    positions of tenants that may leave; devices with a holder that may not are in neither. ``short`` is how much
    CPU (milli), memory (MiB) and pod places the node lacks, 0 or less where it has enough; ``gives`` is what each
    tenant has of these, ``sizes`` how large it is.
    """

    movable: Leavers
    free: int
    held: tuple[tuple[Leavers, ...], ...]
    wanted: int
    short: Amounts
    gives: Sequence[Amounts]
    sizes: Sequence[int]


def gives_of(tenant: Tenant) -> Amounts:
    """The CPU, memory and pod places of a node that are free once the tenant left."""
    return tenant.placement.cpu_milli, tenant.placement.memory_mib, 1


def size_of(fleet: Fleet, tenant: Tenant) -> int:
    """How much a pod holds, in milli-devices: of each device the greater part of memory and compute."""
    sizes = 0
    for charge in tenant.placement.charges:
        row = fleet.device_row.get(charge.uuid)
        memory = int(fleet.memory[row]) if row is not None else 0
        sizes += max(charge.compute_milli, charge.memory_mib * WHOLE // max(memory, 1))
    return sizes


def can_be_freed(site: Site) -> bool:
    """Whether the pod would fit if everybody left who may."""
    return _suffices(site, site.movable)


def leaver_sets(site: Site) -> list[Leavers]:
    """The sets of pods that would have to leave, the fewest and smallest first; none where nothing helps."""
    if not can_be_freed(site):
        return []
    need = max(site.wanted - site.free, 0)
    unions = {
        frozenset().union(*chosen)
        for devices in combinations(_cheapest(site, need), need)
        for chosen in islice(product(*devices), CHOICES)
    }
    # These may miss a single pod that gives CPU, memory and devices at once.
    found = {_with_host_room(site, union) for union in unions} | {frozenset((i,)) for i in site.movable}
    ranked = sorted(found, key=lambda s: (len(s), sum(site.sizes[i] for i in s), sorted(s)))
    return list(islice((leavers for leavers in ranked if _suffices(site, leavers)), KEPT))


def _cheapest(site: Site, need: int) -> Sequence[tuple[Leavers, ...]]:
    """The devices to choose from: all, or so many of the cheapest that the choices stay few."""
    most = len(site.held)
    while most > need and comb(most, need) > CHOICES:
        most -= 1
    if most == len(site.held):
        return site.held
    return sorted(site.held, key=lambda options: (len(options[0]), sum(site.sizes[i] for i in options[0])))[:most]


def _lacking(site: Site, leavers: Iterable[int]) -> list[int]:
    """The CPU, memory and pod places that are still too few once these left."""
    lacks = list(site.short)
    for i in leavers:
        for kind, amount in enumerate(site.gives[i]):
            lacks[kind] -= amount
    return lacks


def _with_host_room(site: Site, leavers: Leavers) -> Leavers:
    """The set with the largest users of CPU, and then of memory, added while the node lacks some."""
    for kind in range(3):
        lacking = _lacking(site, leavers)[kind]
        if lacking <= 0:
            continue
        for other in sorted(site.movable - leavers, key=lambda i: (-site.gives[i][kind], i)):
            leavers |= {other}
            lacking -= site.gives[other][kind]
            if lacking <= 0:
                break
    return leavers


def _suffices(site: Site, leavers: Leavers) -> bool:
    """Whether enough devices, CPU, memory and pod places are free once these left."""
    free = site.free + sum(any(option <= leavers for option in options) for options in site.held)
    return bool(leavers) and free >= site.wanted and max(_lacking(site, leavers)) <= 0


def _taken(holders: Mapping[int, Amounts], leavers: Iterable[int]) -> Amounts:
    memory, compute, slots = zip((0, 0, 0), *(holders[i] for i in leavers), strict=True)
    return sum(memory), sum(compute), sum(slots)


def freeing_sets(holders: Mapping[int, Amounts], movable: Leavers, over: Amounts) -> tuple[Leavers, ...]:
    """The smallest sets of a device's holders that have to leave; none where what may leave is not enough.

    ``holders`` has the MiB, milli and slots that each takes, ``over`` what is used beyond what the pod can bear.
    """
    mine = sorted(movable & holders.keys())
    taken = _taken(holders, mine)
    if any(o > t for o, t in zip(over, taken, strict=True)):
        return ()
    # Whoever is needed even when all others leave is in every set; mostly those are all, and the answer.
    fixed = [i for i in mine if any(o > t - h for o, t, h in zip(over, taken, holders[i], strict=True))]

    def helps(leavers: Iterable[int]) -> bool:
        return all(o <= t for o, t in zip(over, _taken(holders, leavers), strict=True))

    rest = [i for i in mine if i not in fixed]
    for more in range(len(rest) + 1):
        found = [chosen for chosen in islice(combinations(rest, more), CHOICES) if helps((*fixed, *chosen))]
        if found:
            return tuple(frozenset((*fixed, *chosen)) for chosen in found)
    return (frozenset(mine),)
