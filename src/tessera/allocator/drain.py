"""Make room for a pod of whole devices that fits nowhere, by moving a few others: the plan, or why there is none.

1. the nodes that could host the pod if they were empty; 2. on each the smallest sets of pods that would have to
leave (:mod:`tessera.allocator.vacate`), as far as they may; 3. of all sets the one of the fewest pods, then of the
smallest, whose pods all find a legal new place, with the pod's own room already taken. The moves are placed one
after another, each on what the moves before it leave, so that the plan is legal at every step; where a pod finds
no place, the next set is tried. Nobody moves unless the pod fits in the end.

New places are the caller's policy's choice (``place``), as for any other pod. All nodes are looked at, which takes
some tenths of a second for a thousand full ones; ask only after a rejection.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tessera.allocator.moves import Drain, Move, NoDrain, Stays, Tenant, Terms, Why, stay_of
from tessera.allocator.place import prospect
from tessera.allocator.vacate import (
    Amounts,
    Leavers,
    Site,
    can_be_freed,
    freeing_sets,
    gives_of,
    leaver_sets,
    size_of,
)
from tessera.core.fleet import Bools, Fleet, Snapshot, Usage
from tessera.core.placement import Placed, Placement
from tessera.core.request import Claim, Pod, Request, phases
from tessera.core.share import ComputeMilli, MemoryFraction
from tessera.core.units import WHOLE

Place = Callable[[Snapshot, Pod], Placed | None]
"""Decides one pod, e.g. :func:`tessera.allocator.place.place` with a policy."""

ATTEMPTS: Final = 64
"""Sets whose moves are planned to the end before giving up."""


def plan_drain(
    snapshot: Snapshot,
    pod: Pod,
    tenants: Mapping[str, Sequence[Tenant]],
    place: Place,
    terms: Terms,
    priority: int = 0,
) -> Drain | NoDrain:
    """The plan that makes room for ``pod`` with the fewest and smallest moves, or why there is none.

    ``tenants`` has the pods of each node; what is used beside them is not ours and stays. ``priority`` is that of
    ``pod``. Deterministic.
    """
    if not terms.most_moves:
        return NoDrain(Why.OFF)
    if not asks_whole(pod):
        return NoDrain(Why.NOT_WHOLE)
    # Ask the allocator and not only the columns: a pod of several claims may fit each of them and still not fit.
    if place(snapshot, pod) is not None:
        return NoDrain(Why.FITS)
    scene = _Scene(snapshot, pod, place, terms, priority)
    survey = scene.surveyed(tenants)
    hopes = sorted(survey.hopes, key=lambda hope: hope.cost)
    for hope in hopes[:ATTEMPTS]:
        rivals = len({other.node for other in hopes} - {hope.node})
        if (plan := scene.planned(hope, rivals)) is not None:
            return plan
    return _none(survey, lost=len({hope.node for hope in survey.hopes}))


def asks_whole(pod: Pod) -> bool:
    """Whether every claim of the pod wants devices to itself."""
    request = pod.request
    if request is None or not request.claims:
        return False
    return request.constraints.idle_device or all(map(_takes_all, request.claims))


def _takes_all(claim: Claim) -> bool:
    memory, compute = claim.share.memory_request, claim.share.compute_request
    return (
        claim.share.exclusive
        or (isinstance(compute, ComputeMilli) and compute.milli >= WHOLE)
        or (isinstance(memory, MemoryFraction) and memory.milli >= WHOLE)
    )


@dataclass(frozen=True, slots=True)
class _Hope:
    """A set of pods whose leaving would free a node; ``cost`` orders hopes: moves, milli-devices moved, node."""

    node: int
    leavers: tuple[Tenant, ...]
    cost: tuple[int, int, int]


@dataclass(slots=True)
class _Survey:
    """What the nodes offer: hopes, and for those without one the reason."""

    hopes: list[_Hope] = field(default_factory=list)
    refused: Counter[Why] = field(default_factory=Counter)
    stays: Counter[Stays] = field(default_factory=Counter)
    nearest: int | None = None


class _Scene:
    """The pod and the fleet, with what is the same for every node."""

    def __init__(self, snapshot: Snapshot, pod: Pod, place: Place, terms: Terms, priority: int) -> None:
        fleet = snapshot.fleet
        self.snapshot, self.pod, self.place, self.terms, self.priority = snapshot, pod, place, terms, priority
        now, empty = prospect(snapshot, pod), prospect(Snapshot(fleet, Usage.nothing(fleet)), pod)
        self.request, self.needs, self.claims_fit = now.request, now.needs, empty.fits
        self.fits: Bools = np.logical_or.reduce(now.fits)
        self.could_fit: Bools = np.logical_or.reduce(empty.fits)
        self.nodes: list[int] = np.flatnonzero(empty.hosts).tolist()
        self.wanted = _devices_wanted(pod, self.request)
        self._by_id: dict[int, int] = {}
        self._numbers: dict[Request | None, int] = {}
        self._elsewhere: dict[tuple[object, ...], tuple[int, Bools, Bools]] = {}

    def surveyed(self, tenants: Mapping[str, Sequence[Tenant]]) -> _Survey:
        """Every node that could host the pod if it were empty."""
        survey, most = _Survey(), self.terms.most_moves
        for node in self.nodes:
            here = tenants.get(self.snapshot.fleet.node_names[node], ())
            stays = [stay_of(tenant, self.priority, self.terms.reach) for tenant in here]
            allowed = frozenset(i for i, why in enumerate(stays) if why is None)
            sites = self._sites(node, here, allowed)
            sets = [leavers for site in sites for leavers in self._leaving(site, node, here)]
            least = min(map(len, sets), default=0)
            if not any(map(can_be_freed, sites)):
                survey.refused[Why.HELD] += 1
                survey.stays.update(why for why in stays if why is not None)
                survey.stays[Stays.FOREIGN] += _foreign(self.snapshot, node, here)
            elif not sets:
                survey.refused[Why.NOWHERE] += 1
            elif least > most:
                survey.refused[Why.TOO_MANY] += 1
                survey.nearest = min(least, survey.nearest or least)
            survey.hopes += [
                _hope(self.snapshot.fleet, node, here, leavers) for leavers in sets if len(leavers) <= most
            ]
        return survey

    def _leaving(self, site: Site, node: int, here: Sequence[Tenant]) -> list[Leavers]:
        """The sets of pods of which each finds devices elsewhere, by itself."""
        movable = frozenset(i for i in site.movable if self._finds_devices(here[i], node))
        held = tuple(kept for options in site.held if (kept := tuple(o for o in options if o <= movable)))
        return leaver_sets(replace(site, movable=movable, held=held))

    def _sites(self, node: int, here: Sequence[Tenant], movable: Leavers) -> list[Site]:
        """The node, or where one NUMA node has to hold all devices of the pod, each of them by itself."""
        fleet, usage, pod = self.snapshot.fleet, self.snapshot.usage, self.pod
        holders, gives = _holders(fleet, here), [gives_of(tenant) for tenant in here]
        sizes = [size_of(fleet, tenant) for tenant in here]
        short = (
            int(usage.cpu[node] + pod.cpu_milli - fleet.cpu[node]) if pod.cpu_milli else 0,
            int(usage.host_memory[node] + pod.memory_mib - fleet.host_memory[node]) if pod.memory_mib else 0,
            int(usage.pods[node] + 1 - fleet.max_pods[node]),
        )
        sites = []
        for rows in self._groups(node):
            free = sum(bool(self.fits[row]) for row in rows)
            options = (
                freeing_sets(holders[row], movable, self._over(row))
                for row in rows
                if row in holders and self.could_fit[row] and not self.fits[row] and not usage.exclusive[row]
            )
            held = tuple(sets for sets in options if sets)
            sites.append(Site(movable, free, held, self.wanted, short, gives, sizes))
        return sites

    def _over(self, row: int) -> Amounts:
        """By how much more of a device is used than the claim that fits it first can bear beside itself.

        A share that must be alone bears no slot of others. What is exclusive already is never moved.
        """
        fleet, usage = self.snapshot.fleet, self.snapshot.usage
        need = self.needs[next(i for i, fits in enumerate(self.claims_fit) if fits[row])]
        alone = need.exclusive or self.request.constraints.idle_device
        return (
            int(usage.memory[row] - need.memory_room[row]),
            int(usage.compute[row] - need.compute_room[row]),
            int(usage.slots[row]) if alone else int(usage.slots[row] + 1 - fleet.slots[row]),
        )

    def _groups(self, node: int) -> list[list[int]]:
        rows = list(self.snapshot.fleet.rows(node))
        if not (self.request.constraints.one_numa and len(self.request.claims) == 1 and self.wanted > 1):
            return [rows]
        numa = self.snapshot.fleet.numa
        return [[row for row in rows if numa[row] == n] for n in sorted({int(numa[row]) for row in rows} - {-1})]

    def _finds_devices(self, tenant: Tenant, node: int) -> bool:
        """Whether the pod would find devices by itself, on another node or beside its own on this one.

        A pod that finds none now finds none in the plan: moves fill other nodes, they do not empty them.
        """
        pod = tenant.pod
        # Most pods share a request: by identity first, for hashing a request costs more than all the rest here.
        request = self._by_id.get(id(pod.request))
        if request is None:
            request = self._by_id[id(pod.request)] = self._numbers.setdefault(pod.request, len(self._numbers))
        shape = (request, pod.cpu_milli, pod.memory_mib, pod.node_name, pod.node_selector)
        known = self._elsewhere.get(shape)
        if known is None:
            found = prospect(self.snapshot, pod)
            beside = [self.snapshot.fleet.per_node(fits) > 0 for fits in found.fits]
            known = self._elsewhere[shape] = (
                int(found.hosts.sum()),
                found.hosts,
                np.logical_or.reduce(beside) if beside else np.zeros_like(found.hosts),
            )
        count, hosts, beside_own = known
        return count > bool(hosts[node]) or bool(beside_own[node])

    def planned(self, hope: _Hope, rivals: int) -> Drain | None:
        """The moves of all these pods, or ``None`` where one finds no place or the pod still does not fit."""
        fleet, usage = self.snapshot.fleet, self.snapshot.usage.thawed()
        for tenant in hope.leavers:
            _book(fleet, usage, tenant.placement, -1)
        there = replace(self.pod, node_name=fleet.node_names[hope.node])
        placed = self.place(Snapshot(fleet, usage), there)
        if placed is None:
            return None
        # With everybody back and the pod booked over them, each move is placed on what is legal at its own time.
        for tenant in hope.leavers:
            _book(fleet, usage, tenant.placement, 1)
        _book(fleet, usage, placed.placement, 1)
        moves: list[Move] = []
        for tenant in hope.leavers:
            _book(fleet, usage, tenant.placement, -1)
            found = self.place(Snapshot(fleet, usage), tenant.pod)
            if found is None:
                return None
            _book(fleet, usage, found.placement, 1)
            moves.append(Move(tenant.placement, found.placement))
        needed = tuple(move for move in moves if _leaves(move))
        return Drain(placed.placement, needed, rivals)


def _devices_wanted(pod: Pod, request: Request) -> int:
    """Devices that the pod holds at its peak; two claims cannot hold a whole device at a time."""
    if request.constraints.distinct_devices:
        return sum(claim.count for claim in request.claims)
    return max(
        sum(claim.count for claim in request.claims if not alive.isdisjoint(claim.containers))
        for alive in phases(pod.containers)
    )


def _hope(fleet: Fleet, node: int, here: Sequence[Tenant], leavers: Leavers) -> _Hope:
    """The pods in the order in which they look for a place: the largest first."""
    sizes = {i: size_of(fleet, here[i]) for i in leavers}
    order = sorted(leavers, key=lambda i: (-sizes[i], i))
    return _Hope(node, tuple(here[i] for i in order), (len(order), sum(sizes.values()), node))


def _holders(fleet: Fleet, here: Sequence[Tenant]) -> dict[int, dict[int, Amounts]]:
    """Who holds what of each device row, by position; rows that nobody of these holds are left out."""
    holders: dict[int, dict[int, Amounts]] = {}
    for i, tenant in enumerate(here):
        for charge in tenant.placement.charges:
            row = fleet.device_row.get(charge.uuid)
            if row is not None:
                holders.setdefault(row, {})[i] = (charge.memory_mib, charge.compute_milli, charge.slots)
    return holders


def _foreign(snapshot: Snapshot, node: int, here: Sequence[Tenant]) -> int:
    """Of how many devices of the node more is used than these tenants hold."""
    fleet, holders = snapshot.fleet, _holders(snapshot.fleet, here)
    known = {row: sum(slots for _, _, slots in who.values()) for row, who in holders.items()}
    return sum(int(snapshot.usage.slots[row]) > known.get(row, 0) for row in fleet.rows(node))


def _book(fleet: Fleet, usage: Usage, placement: Placement, sign: int) -> None:
    usage.book(fleet, placement.charges, sign=sign)
    usage.book_host(fleet, placement, sign=sign)


def _leaves(move: Move) -> bool:
    """Whether the move changes anything: one planned for CPU may find that its pod can stay."""
    return (move.source.node, move.source.charges) != (move.target.node, move.target.charges)


def _none(survey: _Survey, lost: int) -> NoDrain:
    """Why nothing came of it; ``lost`` nodes had hopes, and their pods no other place."""
    refused = Counter(survey.refused)
    refused[Why.NOWHERE] += lost
    refused = +refused
    if not refused:
        return NoDrain(Why.NO_NODE)
    why = next(why for why in (Why.NOWHERE, Why.TOO_MANY, Why.HELD) if refused[why])
    return NoDrain(why, dict(refused), survey.nearest, {s: n for s, n in survey.stays.items() if n})
