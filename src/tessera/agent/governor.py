"""Who yields on a device, who may be frozen, and how much memory beyond its request each share may have.

The formulas are the region library's (``limiter/src/governor.c``, ADR 16); here is what they are fed with: what
the node granted, what regions show, what the driver counts. Devices where nothing of it matters cost nothing: all
shares of one priority, every memory limit its request.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tessera.agent.grant import GrantedDevice
from tessera.agent.lending import WAITED_NS, Demand
from tessera.agent.running import Runner, ShareKey
from tessera.agent.store import StoredShare
from tessera.core.priority import Priority
from tessera.core.units import WHOLE
from tessera.runtime.governing import Contender, Holding, Rule, ceilings, launches, spilled_bytes, victim
from tessera.runtime.native import LiveRegion
from tessera.wire.shm import FIELDS, GRANULE, SIZES

ACTIVE_NS: Final = 500_000_000
"""Who launched something no longer ago than this is active."""
SHORT_NS: Final = 250_000_000
"""Who said no longer ago than this that it lacks memory waits for it."""
DEFAULT_FREEZE: Final[Mapping[Priority, float]] = {Priority.LOW: 60.0}
"""Seconds without a launch after which a share may be frozen, by priority."""


@dataclass(slots=True)
class Activity:
    """When a share launched something last; ``number`` is what :func:`launches` said then."""

    number: int
    changed_ns: int

    def note(self, number: int, now_ns: int) -> None:
        """Take a look into account."""
        if number != self.number:
            self.number, self.changed_ns = number, now_ns


@dataclass(frozen=True, slots=True)
class Shortage:
    """A share that is within its request finds no memory, and ``victim`` has more than it requested."""

    uuid: str
    owner: StoredShare
    victim: StoredShare
    lacking_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes: all of it, and what is in use by anybody (``None``: the driver does not say)."""

    total: int
    used: int | None


Seats = Mapping[ShareKey, tuple[Runner, int]]
"""The runners on a device, each with its index in its region."""
MemoryOf = Callable[[str], Memory | None]
"""The memory of a device by its uuid; ``None`` where the device is away."""


@dataclass(slots=True)
class Governor:
    """See the module. :meth:`learn` what is granted; the rest is asked at every tick."""

    memory_of: MemoryOf = lambda _: None
    on_shortage: Callable[[Shortage], None] = lambda _: None
    freeze: Mapping[Priority, float] = field(default_factory=lambda: DEFAULT_FREEZE)
    _shares: Mapping[str, Sequence[tuple[StoredShare, GrantedDevice]]] = field(default_factory=dict)
    _activity: dict[ShareKey, Activity] = field(default_factory=dict)

    def learn(self, shares: Iterable[StoredShare]) -> None:
        """Take in all shares of the node, running or not."""
        by_uuid: dict[str, list[tuple[StoredShare, GrantedDevice]]] = {}
        for share in shares:
            for device in share.grant.devices:
                by_uuid.setdefault(device.uuid, []).append((share, device))
        self._shares = by_uuid
        known = {_key(share) for rows in by_uuid.values() for share, _ in rows}
        self._activity = {key: seen for key, seen in self._activity.items() if key in known}

    def governs(self, uuid: str) -> bool:
        """Whether anybody on the device goes first, or has a memory limit beyond its request."""
        rows = self._shares.get(uuid, ())
        return len({device.priority for _, device in rows}) > 1 or any(_is_beyond(device) for _, device in rows)

    def starting(self, uuid: str, known: Collection[ShareKey], now_ns: int) -> tuple[StoredShare, ...]:
        """Shares that wait for memory of a device and are not among the known: they have only just begun."""
        rows = self._shares.get(uuid, ())
        if not any(_is_beyond(device) for _, device in rows):
            return ()
        return tuple(s for s, _ in rows if _key(s) not in known and _waits_for_memory(s, uuid, now_ns))

    def activity(self, runner: Runner, now_ns: int) -> Activity:
        """When a runner launched something last, with this look."""
        number = launches(runner.region)
        seen = self._activity.setdefault(runner.key, Activity(number, now_ns))
        seen.note(number, now_ns)
        return seen

    def is_idle(self, device: GrantedDevice, seen: Activity, now_ns: int) -> bool:
        """Whether the share may be frozen: long enough without a launch, and somebody goes before it."""
        seconds = self.freeze.get(Priority(device.priority))
        above = any(other.priority > device.priority for _, other in self._shares.get(device.uuid, ()))
        return above and seconds is not None and now_ns - seen.changed_ns >= max(seconds * 1e9, ACTIVE_NS)

    def ceilings(self, uuid: str, runners: Seats, now_ns: int) -> dict[ShareKey, int]:
        """Bytes of a device that each share may have now; empty where every limit is its request.

        A shortage is told on the way.
        """
        rows = self._shares.get(uuid, ())
        memory = self.memory_of(uuid) if any(_is_beyond(device) for _, device in rows) else None
        if memory is None:
            return {}
        holdings = [_holding(device, runners.get(_key(share))) for share, device in rows]
        ours = sum(holding.used for holding in holdings)
        others = 0 if memory.used is None else max(0, memory.used - ours)
        found = ceilings(holdings, max(0, memory.total - others))
        self._tell_shortage(uuid, rows, holdings, runners, now_ns)
        return {_key(share): amount for (share, _), amount in zip(rows, found, strict=True)}

    def _tell_shortage(
        self,
        uuid: str,
        rows: Sequence[tuple[StoredShare, GrantedDevice]],
        holdings: Sequence[Holding],
        runners: Seats,
        now_ns: int,
    ) -> None:
        for share, _ in rows:
            lacking = _lacking(runners.get(_key(share)), now_ns)
            if lacking and (found := victim(holdings)) is not None:
                self.on_shortage(Shortage(uuid, share, rows[found][0], lacking))
                return


def contender(demand: Demand, used_milli: int, device: GrantedDevice, seen: Activity, now_ns: int) -> Contender:
    """A share where turns and idle time are divided; one without a limit keeps what it uses, borrows nothing."""
    waits = demand.waited_ns != 0 and demand.waited_ns + WAITED_NS > now_ns
    return Contender(
        limit_milli=demand.limit_milli if demand.is_limited else WHOLE,
        request_milli=device.compute_request_milli,
        mode=demand.mode if demand.is_limited else 0,
        used_milli=used_milli,
        priority=device.priority,
        waits=waits and demand.is_limited,
        active=seen.changed_ns + ACTIVE_NS > now_ns,
    )


def leftover(region: LiveRegion, index: int) -> bool:
    """Whether a region still has a cap, a ceiling or a freeze of a time when it was governed."""
    names = ("device_control.cap_milli", "device_control.memory_ceiling")
    return any(region.word(index, name) for name in names) or region.word(index, "device_control.order") % 4 != 0


def rule(cap_milli: int, ceiling: int, *, is_idle: bool) -> Rule:
    """What a share is told."""
    return Rule(cap_milli, is_idle, ceiling)


def _waits_for_memory(share: StoredShare, uuid: str, now_ns: int) -> bool:
    """Whether a region that is not open says that somebody lacks memory now."""
    index = next(at for at, device in enumerate(share.grant.devices) if device.uuid == uuid)
    offset, size = FIELDS["device_usage.short_ns"]
    try:
        with share.region.open("rb") as file:
            file.seek(FIELDS["region.usage"][0] + index * SIZES["device_usage"] + offset)
            since = int.from_bytes(file.read(size), "little")
    except OSError:
        return False
    return since != 0 and since + SHORT_NS > now_ns


def _key(share: StoredShare) -> ShareKey:
    return share.grant.uid, share.grant.container


def _is_beyond(device: GrantedDevice) -> bool:
    return device.memory_limit_mib > device.memory_request_mib


def _holding(device: GrantedDevice, running: tuple[Runner, int] | None) -> Holding:
    """What a share has on the device itself, what escapes its region included; nothing while it does not run."""
    used = 0
    if running is not None:
        region, index = running[0].region, running[1]
        used = region.used_bytes()[index] + region.unseen_bytes(index) - spilled_bytes(region, index)
    return Holding(device.memory_request_mib << 20, device.memory_limit, max(0, used), device.priority)


def _lacking(running: tuple[Runner, int] | None, now_ns: int) -> int:
    """Bytes for which a share waits now; 0 where it does not."""
    if running is None:
        return 0
    region, index = running[0].region, running[1]
    since = region.word(index, "device_usage.short_ns")
    return (
        region.word(index, "device_usage.short_granules") * GRANULE if since + SHORT_NS > now_ns and since else 0
    )
