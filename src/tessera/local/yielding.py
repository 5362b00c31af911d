"""A run beside others on its devices: who goes first, and memory beyond its request.

There is no governor for all runs: each supervisor tells its own region what the others leave to it, by the
formulas that the agent uses (ADR 16). Of other runs it sees their rows in the book and what their regions show;
how busy they are it does not see, so an active run of a higher priority counts as wanting all that it may have.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tessera.core.errors import UnavailableError
from tessera.core.placement import Grant
from tessera.core.priority import Priority
from tessera.core.units import BYTES_PER_MIB
from tessera.local.book import Book, Run, grants_of, region_path
from tessera.runtime.governing import (
    RECLAIM,
    Contender,
    Holding,
    Rule,
    ceilings,
    govern,
    launches,
    set_policy,
    set_standing,
    spilled_bytes,
    turns,
    victim,
)
from tessera.runtime.native import LiveRegion
from tessera.runtime.nvml import Nvml
from tessera.wire.shm import FIELDS, GAUGE_USED_SHIFT, GRANULE, SIZES, SPILL_ACCOUNT, ComputeMode

TICK_SECONDS: Final = 0.2
ACTIVE_NS: Final = 500_000_000
SHORT_NS: Final = 250_000_000
FREEZE_NS: Final = 60_000_000_000
"""A low run that launched nothing for so long has to ask, if others go before it."""


def set_standings(path: Path, grants: Sequence[Grant]) -> None:
    """Say in a new region who it goes before and what may lie in host memory."""
    with LiveRegion(path, len(grants)) as region:
        for index, grant in enumerate(grants):
            set_standing(region, index, int(grant.share.priority), grant.share.spill * BYTES_PER_MIB)
        set_policy(region, RECLAIM)


@dataclass(slots=True)
class Neighbour:
    """Another run on one of our devices, by the file of its region; ``index`` is the device's in there."""

    path: Path
    index: int
    grant: Grant
    number: int = -1
    changed_ns: int = 0

    def look(self, now_ns: int) -> "Sight":
        """What its region shows now; nothing where it is gone."""
        usage, slots = b"", b""
        with suppress(OSError):
            usage, slots = _pages(self.path)
        if len(usage) < SIZES["usage"]:
            return Sight(0, active=False, short=False)
        number = sum(_word(slots, at, "slot.launches") for at in range(0, len(slots), SIZES["slot"]))
        if number != self.number:
            self.changed_ns = now_ns if self.number >= 0 or number else -ACTIVE_NS
            self.number = number
        row, account = (at * SIZES["device_usage"] for at in (self.index, self.index + SPILL_ACCOUNT))
        used = _gauge(usage, row) - (_gauge(usage, account) if self.index < SPILL_ACCOUNT else 0)
        since = _word(usage, row, "device_usage.short_ns")
        active = self.changed_ns + ACTIVE_NS > now_ns
        return Sight(max(0, used), active=active, short=since != 0 and since + SHORT_NS > now_ns)


@dataclass(frozen=True, slots=True)
class Sight:
    """Bytes that a run has on the device itself, whether it launched lately, whether it waits for memory."""

    used: int
    active: bool
    short: bool


def _pages(path: Path) -> tuple[bytes, bytes]:
    """The usage page of a region, and its slots up to the last one ever used."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        usage = os.pread(file, SIZES["usage"], FIELDS["region.usage"][0])
        mark = _word(usage, 0, "usage.slot_high_water") if len(usage) == SIZES["usage"] else 0
        return usage, os.pread(file, min(mark, 1024) * SIZES["slot"], FIELDS["region.slot"][0])
    finally:
        os.close(file)


def _word(data: bytes, base: int, name: str) -> int:
    offset, size = FIELDS[name]
    return int.from_bytes(data[base + offset : base + offset + size], "little")


def _gauge(usage: bytes, row: int) -> int:
    return (_word(usage, row, "device_usage.gauge") >> GAUGE_USED_SHIFT) * GRANULE


@dataclass(slots=True)
class Yielder:
    """Tells a region, every :data:`TICK_SECONDS`, what the other runs of its devices leave to it."""

    region: LiveRegion
    nvml: Nvml
    book: Book
    run: Run
    due: float = 0.0
    must_go: bool = False
    """Whether another run lacks memory that it requested, and this one has the most beyond its own."""
    _version: int = -1
    _others: dict[int, list[Neighbour]] = field(default_factory=dict)
    _own: int = -1
    _changed_ns: int = 0
    _told: set[int] = field(default_factory=set)

    def tick(self) -> None:
        """Look and tell, if it is due. Raises :class:`~tessera.runtime.native.RegionCallError`."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + TICK_SECONDS
        now_ns = time.monotonic_ns()
        with suppress(UnavailableError):  # a book that is away tells nothing new, and is no reason to end
            version = self.book.version()
            if version != self._version:
                self._others = self._neighbours()
                self._version = version
        number = launches(self.region)
        if number != self._own:
            self._own, self._changed_ns = number, now_ns
        for index, grant in enumerate(grants_of(self.run)):
            self._tell(index, grant, self._others.get(index, []), now_ns)

    def _neighbours(self) -> dict[int, list[Neighbour]]:
        """The other runs on each of our devices; those that were known keep what was seen of them."""
        before = {(n.path, n.index): n for rows in self._others.values() for n in rows}
        found: dict[int, list[Neighbour]] = {}
        for index, ours in enumerate(grants_of(self.run)):
            for run in self.book.runs():
                path = region_path(self.book.machine, run.uid)
                for at, grant in enumerate(grants_of(run)):
                    if run.uid != self.run.uid and grant.uuid == ours.uuid:
                        found.setdefault(index, []).append(before.get((path, at)) or Neighbour(path, at, grant))
        return found

    def _tell(self, index: int, grant: Grant, others: Sequence[Neighbour], now_ns: int) -> None:
        sights = [other.look(now_ns) for other in others]
        is_beyond = grant.share.memory_limit > grant.share.memory_request
        if not is_beyond and all(o.grant.share.priority <= grant.share.priority for o in others):
            if index in self._told:
                govern(self.region, index, Rule(), now_ns)
                self._told.discard(index)
            return
        rows = [_contender(grant, active=True)]
        rows += [_contender(o.grant, active=s.active) for o, s in zip(others, sights, strict=True)]
        above = any(o.grant.share.priority > grant.share.priority for o in others)
        is_idle = above and grant.share.priority is Priority.LOW and now_ns - self._changed_ns > FREEZE_NS
        ceiling = self._ceiling(index, grant, others, sights) if is_beyond else 0
        govern(self.region, index, Rule(turns(rows)[0].cap_milli, is_idle, ceiling), now_ns)
        self._told.add(index)

    def _ceiling(self, index: int, grant: Grant, others: Sequence[Neighbour], sights: Sequence[Sight]) -> int:
        """Bytes of a device that we may have now, and on the way whether we must go."""
        own = self.region.used_bytes()[index] - spilled_bytes(self.region, index)
        holdings = [_holding(grant, max(0, own))]
        holdings += [_holding(o.grant, s.used) for o, s in zip(others, sights, strict=True)]
        device = next(d for d in self.nvml.inventory().devices if d.uuid == grant.uuid)
        used = self.nvml.reading(grant.uuid).used_bytes
        strangers = max(0, (used or 0) - sum(h.used for h in holdings))
        if any(sight.short for sight in sights) and victim(holdings) == 0:
            self.must_go = True
        return ceilings(holdings, max(0, device.memory_mib * BYTES_PER_MIB - strangers))[0]


def _contender(grant: Grant, *, active: bool) -> Contender:
    share = grant.share
    limited = 0 < share.compute_limit < 1000
    mode = int(ComputeMode.HARD if limited else ComputeMode.OFF)
    return Contender(
        limit_milli=share.compute_limit if limited else 1000,
        request_milli=share.compute_request,
        mode=mode,
        used_milli=share.compute_limit if active else 0,
        priority=int(share.priority),
        waits=False,
        active=active,
    )


def _holding(grant: Grant, used: int) -> Holding:
    share = grant.share
    return Holding(
        share.memory_request * BYTES_PER_MIB, share.memory_limit * BYTES_PER_MIB, used, int(share.priority)
    )
