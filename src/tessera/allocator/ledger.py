"""Who holds what: events in, effects out. No clock, no I/O; the caller says what time it is.

A holder is a pod (or, on a single machine, a run), known by its uid::

            Reserve            Commit
    (none) ---------> reserved -------> committed
       ^                  |                 |
       +---- Expire ------+---- Release ----+

``Reserve`` is checked against the present usage, because the snapshot that it was decided on may be old.
``Adopt`` books what was already bound and is a fact: it is never refused, and says so where it over-commits.
The ledger rebuilt from the adopted placements of the log equals the live one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from tessera.core.fleet import Fleet, Snapshot, Usage
from tessera.core.placement import Charge, Placement

REMEMBERED_CHANGES: Final = 16_384
"""Changes that a reader may lag behind before it has to look at every node again."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hold this placement until it is committed, released, replaced, or ``expires`` (in the caller's clock)."""

    placement: Placement
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """The reservation became a fact."""

    uid: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """A placement that is a fact already: a bound pod seen in the log."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Release:
    """The holder is gone."""

    uid: str


@dataclass(frozen=True, slots=True)
class Expire:
    """It is now ``now``: reservations whose time is over end."""

    now: float


Event = Reserve | Commit | Adopt | Release | Expire


@dataclass(frozen=True, slots=True)
class Booked:
    """The placement is held now (reserved or adopted)."""

    uid: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The reservation is a fact now."""

    uid: str


@dataclass(frozen=True, slots=True)
class Released:
    """The holder's charges were given back."""

    uid: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The event was not applied, and why."""

    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Overcommitted:
    """An adopted placement takes a device past what it has: somebody else placed there, or it shrank."""

    uid: str
    uuids: tuple[str, ...]


Effect = Booked | Committed | Released | Refused | Overcommitted


@dataclass(frozen=True, slots=True)
class Entry:
    """One holder's placement and whether it is a fact yet."""

    placement: Placement
    committed: bool
    expires: float | None = None


class Ledger:
    """The usage of a fleet and the entries that make it up. One owner applies events; snapshots are frozen."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._usage = Usage.nothing(fleet)
        self._entries: dict[str, Entry] = {}
        self._shared = False
        self._touched: list[int] = []
        self._forgotten = 0

    @staticmethod
    def rebuilt(fleet: Fleet, placements: Iterable[Placement]) -> "Ledger":
        """The ledger of these facts, in any order."""
        ledger = Ledger(fleet)
        ledger._entries = {placement.pod_uid: Entry(placement, committed=True) for placement in placements}
        ledger._usage.book_all(fleet, (entry.placement for entry in ledger._entries.values()))
        return ledger

    def onto(self, fleet: Fleet) -> "Ledger":
        """The same entries on another fleet, at the cost of what came anew with it.

        Charges on devices that are gone stay with their entries, and count again when the device is back.
        """
        other = Ledger(fleet)
        other._entries = dict(self._entries)
        other._usage = self._usage.moved(self._fleet, fleet)
        devices = fleet.device_row.keys() - self._fleet.device_row.keys()
        nodes = fleet.node_row.keys() - self._fleet.node_row.keys()
        if not (devices or nodes):
            return other
        for entry in self._entries.values():
            held = entry.placement
            charges = [charge for charge in held.charges if charge.uuid in devices]
            other._usage.book(fleet, charges, sign=1)
            if held.node in nodes:
                other._usage.book_host(fleet, held, sign=1)
        return other

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The holders by uid."""
        return dict(self._entries)

    def snapshot(self) -> Snapshot:
        """The fleet and its usage now; later events do not change it."""
        self._shared = True
        return Snapshot(self._fleet, self._usage.frozen())

    def view(self) -> Snapshot:
        """As :meth:`snapshot`, but only until the next event: for an owner who decides and books at once.

        Costs nothing, where a snapshot makes the next event copy the usage.
        """
        return Snapshot(self._fleet, self._usage)

    @property
    def fleet(self) -> Fleet:
        """The fleet that the ledger is of."""
        return self._fleet

    @property
    def moment(self) -> int:
        """How many changes there were; equal moments have equal usage."""
        return self._forgotten + len(self._touched)

    def touched_since(self, moment: int) -> Sequence[int] | None:
        """The rows of the nodes whose usage changed since, repeats included; ``None`` where that is forgotten."""
        start = moment - self._forgotten
        return self._touched[start:] if start >= 0 else None

    def weigh(self, node: str, cpu_milli: int) -> None:
        """The CPU that all pods of a node take, for policies: where the placements do not say (``cpu_milli``
        0).
        """
        row = self._fleet.node_row.get(node)
        if row is None or self._usage.cpu[row] == cpu_milli:
            return
        self._thaw()
        self._usage.cpu[row] = cpu_milli
        self._touched.append(row)

    def apply(self, event: Event) -> tuple[Effect, ...]:
        """Change the ledger by one event and say what came of it."""
        match event:
            case Reserve():
                return self._reserve(event)
            case Commit(uid):
                return self._commit(uid)
            case Adopt(placement):
                return self._adopt(placement)
            case Release(uid):
                return self._release(uid)
            case Expire(now):
                over = [
                    u
                    for u, e in self._entries.items()
                    if not e.committed and e.expires is not None and e.expires <= now
                ]
                return tuple(effect for uid in over for effect in self._release(uid))
            case _:
                assert_never(event)

    def _reserve(self, event: Reserve) -> tuple[Effect, ...]:
        placement = event.placement
        uid = placement.pod_uid
        held = self._entries.get(uid)
        if held is not None and held.committed:
            return (Refused(uid, f"{placement.pod_key} holds a placement on {held.placement.node} already"),)
        if held is not None:
            self._book(held.placement, sign=-1)
            del self._entries[uid]
        why = self._conflict(placement)
        if why:
            return (Refused(uid, why),) if held is None else (Released(uid), Refused(uid, why))
        self._book(placement, sign=1)
        self._entries[uid] = Entry(placement, committed=False, expires=event.expires)
        return (Booked(uid),)

    def _commit(self, uid: str) -> tuple[Effect, ...]:
        entry = self._entries.get(uid)
        if entry is None:
            return (Refused(uid, f"no reservation of {uid} is held (it expired or was released)"),)
        self._entries[uid] = replace(entry, committed=True, expires=None)
        return (Committed(uid),)

    def _adopt(self, placement: Placement) -> tuple[Effect, ...]:
        uid = placement.pod_uid
        held = self._entries.get(uid)
        if held is not None:
            self._book(held.placement, sign=-1)
        self._book(placement, sign=1)
        self._entries[uid] = Entry(placement, committed=True)
        over = tuple(c.uuid for c in placement.charges if self._is_over(c))
        return (Booked(uid), Overcommitted(uid, over)) if over else (Booked(uid),)

    def _release(self, uid: str) -> tuple[Effect, ...]:
        entry = self._entries.pop(uid, None)
        if entry is None:
            return ()
        self._book(entry.placement, sign=-1)
        return (Released(uid),)

    def _book(self, placement: Placement, *, sign: int) -> None:
        self._thaw()
        self._usage.book(self._fleet, placement.charges, sign=sign)
        self._usage.book_host(self._fleet, placement, sign=sign)
        self._touch(placement)

    def _thaw(self) -> None:
        """Arrays that may be written: other than those that a snapshot has."""
        if self._shared:
            self._usage, self._shared = self._usage.thawed(), False

    def _touch(self, placement: Placement) -> None:
        """Note which nodes changed: the placement's own, and those that its devices moved to meanwhile."""
        fleet = self._fleet
        row = fleet.node_row.get(placement.node)
        if row is not None:
            self._touched.append(row)
        for charge in placement.charges:
            device = fleet.device_row.get(charge.uuid)
            if device is not None and fleet.node_of[device] != row:
                self._touched.append(int(fleet.node_of[device]))
        if len(self._touched) > REMEMBERED_CHANGES:
            half = len(self._touched) // 2
            del self._touched[:half]
            self._forgotten += half

    def _conflict(self, placement: Placement) -> str:
        """Why the placement does not fit what is free now; empty where it does."""
        fleet, usage = self._fleet, self._usage
        for charge in placement.charges:
            row = fleet.device_row.get(charge.uuid)
            if row is None:
                return f"device {charge.uuid} is not in the fleet any more"
            if not _admits(fleet, usage, row, charge):
                return f"device {charge.uuid} was taken in the meantime"
        node = fleet.node_row.get(placement.node)
        if node is None:
            return f"node {placement.node} is not in the fleet any more"
        host_full = (
            usage.pods[node] + 1 > fleet.max_pods[node]
            or (placement.cpu_milli and usage.cpu[node] + placement.cpu_milli > fleet.cpu[node])
            or (placement.memory_mib and usage.host_memory[node] + placement.memory_mib > fleet.host_memory[node])
        )
        return f"node {placement.node} was filled in the meantime" if host_full else ""

    def _is_over(self, charge: Charge) -> bool:
        row = self._fleet.device_row.get(charge.uuid)
        if row is None:
            return False
        fleet, usage = self._fleet, self._usage
        crowded = bool(usage.exclusive[row]) and bool(usage.exclusive[row] > 1 or usage.slots[row] > charge.slots)
        return crowded or bool(
            usage.memory[row] > fleet.memory[row]
            or usage.compute[row] > fleet.compute[row]
            or usage.slots[row] > fleet.slots[row]
        )


def _admits(fleet: Fleet, usage: Usage, row: int, charge: Charge) -> bool:
    return bool(
        usage.memory[row] + charge.memory_mib <= fleet.memory[row]
        and usage.compute[row] + charge.compute_milli <= fleet.compute[row]
        and usage.slots[row] + charge.slots <= fleet.slots[row]
        and not usage.exclusive[row]
        and not (charge.exclusive and usage.slots[row])
        and not (charge.compute_milli == 0 and usage.compute[row] >= fleet.compute[row])
    )
