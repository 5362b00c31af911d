"""Fences of containers: put up before the first instruction, looked at for as long as they run, taken down after.

The gate asks :meth:`FenceKeeper.admit`: without every limit in force the container does not start. Whoever changes
a limit behind our back is noticed by the next look; the limit is put up again, and the container's pod is told.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tessera.agent.cgroups import CgroupTree, is_populated
from tessera.agent.fence import Held, Refused, put_up, take_down
from tessera.agent.fence_record import VERSION, FenceRecord, read_record, remove_record, write_record
from tessera.agent.fences import Fences, TierPolicy
from tessera.agent.grant import ContainerGrant, GrantedDevice
from tessera.agent.store import ShareStore, StoredShare
from tessera.core.units import BYTES_PER_MIB, render_mib
from tessera.runtime.log import logger

FENCES_SECONDS: Final = 2.0
NOTHING: Final = Held(None, 0)

_log: Final = logger("agent.fencing")


class Outcome(StrEnum):
    """What became of a limit."""

    SET = "set"
    CHANGED = "changed"
    """Another amount was granted to a container that runs."""
    RESTORED = "restored"
    """It was another than ours, and was put up again."""
    LOST = "lost"
    """It was another than ours, and cannot be put up again."""
    REFUSED = "refused"
    """It could not be put up for a container that was to start, which did not."""
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class Loss:
    """A container whose limit was changed by somebody, and what was done about it; ``is_lost``: it is not ours
    again.
    """

    share: StoredShare
    group: Path
    note: str
    is_lost: bool


class FenceKeeper:
    """See the module. ``told`` hears of each loss."""

    def __init__(self, store: ShareStore, fences: Fences, tree: CgroupTree) -> None:
        self._store, self._fences, self._tree = store, fences, tree
        self._standing: dict[tuple[str, str], dict[str, int]] = {}
        self._lost: set[tuple[str, str, str]] = set()
        self.told: Callable[[Loss], None] = lambda _: None
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    # A container starts ---------------------------------------------------------------------------------------

    def admit(self, share: StoredShare, pid: int, container_id: str) -> str:
        """Why a container may not start: a limit that should hold does not. Empty where it may.

        Nothing is to be put up where this node has no fence for any of its devices; then the limiter holds memory.
        """
        grant = share.grant
        uuids = [device.uuid for device in grant.devices]
        lacking = self._fences.lacking(uuids)
        refused: Refused | None = None
        if lacking and self._fences.policy is TierPolicy.DRIVER:
            refused = self._fences.problem or Refused(f"nothing can limit {lacking[0]}", "see the agent's log")
        elif len(lacking) < len(uuids):
            refused = self._put_up_all(share, pid, container_id)
        if refused is None:
            return ""
        self.counts[Outcome.REFUSED] += 1
        return f"tessera: {grant.title} is not started: {refused}"

    def _put_up_all(self, share: StoredShare, pid: int, container_id: str) -> Refused | None:
        group = self._tree.group_of(pid, container_id)
        if group is None:
            what = f"its process {pid} is in no cgroup of its own below {self._tree.root}"
            return Refused(what, "let the runtime use cgroup v2, or start the agent with --tier=hook")
        wanted = {d.uuid: d.memory_limit for d in share.grant.devices if self._fences.of(d.uuid) is not None}
        directory = share.region.parent
        self._leave(share)
        try:
            path = str(group.relative_to(self._tree.root))
            record = FenceRecord(VERSION, container_id, path, group.stat().st_ino, wanted, {})
            write_record(directory, record)
            held: dict[str, int] = {}
            for uuid, limit in wanted.items():
                found = self._put_up(uuid, group, limit)
                if isinstance(found, Refused):
                    return found
                held[uuid] = found
            write_record(directory, msgspec.structs.replace(record, held=held))
        except OSError as error:
            return Refused(f"its fence cannot be written: {error}", "see that the node's disk has room")
        self._standing[share.grant.uid, share.grant.container] = held
        self.counts[Outcome.SET] += len(held)
        return None

    def _put_up(self, uuid: str, group: Path, limit: int) -> int | Refused:
        fence = self._fences.of(uuid)
        if fence is None:
            return self._fences.problem or Refused(f"nothing can limit {uuid}", "see the agent's log")
        return put_up(fence, uuid, group, limit)

    def _leave(self, share: StoredShare) -> None:
        """Undo what an earlier container of the share left, if nobody is in there any more."""
        record = read_record(share.region.parent)
        if record is not None:
            self._look_after(share, record, self._tree.root / record.group, is_over=True)

    # It runs --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at all fences: those of containers that run stand, those of others are taken down."""
        shares = {(share.grant.uid, share.grant.container): share for share in self._store.shares()}
        for key in self._standing.keys() - shares.keys():
            del self._standing[key]
        for share in shares.values():
            self.follow(share)

    def follow(self, share: StoredShare) -> None:
        """Bring a container's limits to what its share says now; nothing where it has no fence."""
        record = read_record(share.region.parent)
        if record is not None:
            self._look_after(share, record, self._tree.root / record.group, is_over=False)

    def _look_after(self, share: StoredShare, record: FenceRecord, group: Path, *, is_over: bool) -> None:
        try:
            is_ours = group.stat().st_ino == record.inode
            runs = is_ours and is_populated(group)
        except FileNotFoundError:
            is_ours = runs = False
        if not is_ours:
            self._drop(share)  # the limits went with the cgroup
        elif not runs:
            self._take_down(share, record, group)
        elif not is_over and record.is_whole:
            self._verify(share, record, group)

    def _drop(self, share: StoredShare) -> None:
        grant = share.grant
        remove_record(share.region.parent)
        self._standing.pop((grant.uid, grant.container), None)
        self._lost = {key for key in self._lost if key[:2] != (grant.uid, grant.container)}

    def _take_down(self, share: StoredShare, record: FenceRecord, group: Path) -> None:
        fences = {uuid: fence for uuid in record.wanted if (fence := self._fences.of(uuid)) is not None}
        for uuid, fence in fences.items():
            refused = take_down(fence, uuid, group)
            if refused is not None and group.exists():
                _log.warning("fence stays", group=str(group), device=uuid, why=str(refused))
                return
        self.counts[Outcome.UNDONE] += len(fences)
        self._drop(share)

    def _verify(self, share: StoredShare, record: FenceRecord, group: Path) -> None:
        wanted, held, stands = dict(record.wanted), dict(record.held), {}
        for device in share.grant.devices:
            if device.uuid in record.wanted:
                now = self._verify_one(share, device, record, group)
                if now is not None:
                    wanted[device.uuid], held[device.uuid] = device.memory_limit, now
                    stands[device.uuid] = now
        self._standing[share.grant.uid, share.grant.container] = stands
        if (wanted, held) != (record.wanted, record.held):
            with suppress(OSError):  # the next look writes it
                write_record(share.region.parent, msgspec.structs.replace(record, wanted=wanted, held=held))

    def _verify_one(
        self, share: StoredShare, device: GrantedDevice, record: FenceRecord, group: Path
    ) -> int | None:
        """The bytes that hold for a device, set again where they are not ours; ``None``: unknown, or it failed."""
        uuid, fence = device.uuid, self._fences.of(device.uuid)
        if fence is None and self._fences.policy is TierPolicy.HOOK:
            return None
        found = NOTHING if fence is None else fence.held(uuid, group)
        is_ours = isinstance(found, Held) and found.limit == record.held[uuid]
        if is_ours and record.wanted[uuid] == device.memory_limit:
            return record.held[uuid]
        again = self._put_up(uuid, group, device.memory_limit)
        if isinstance(again, Refused) and (again.is_unknown or not group.exists()):
            return None
        if is_ours and not isinstance(again, Refused):
            self.counts[Outcome.CHANGED] += 1
            return again
        note = _note(share.grant, uuid, record.held[uuid], found, again)
        self._tell(Loss(share, group, note, isinstance(again, Refused)), uuid)
        return None if isinstance(again, Refused) else again

    def _tell(self, loss: Loss, uuid: str) -> None:
        """Tell of a loss; of one that lasts, once."""
        key = (loss.share.grant.uid, loss.share.grant.container, uuid)
        if loss.is_lost and key in self._lost:
            return
        (self._lost.add if loss.is_lost else self._lost.discard)(key)
        self.counts[Outcome.LOST if loss.is_lost else Outcome.RESTORED] += 1
        self.told(loss)

    # What is told ---------------------------------------------------------------------------------------------

    def holds(self, uid: str) -> bool:
        """Whether a pod's shares have fences that are not taken down yet."""
        shares = (share for share in self._store.shares() if share.grant.uid == uid)
        return any(read_record(share.region.parent) is not None for share in shares)

    def standing(self, share: StoredShare) -> Mapping[str, int]:
        """The bytes by device that were read back for a container when last looked at."""
        return self._standing.get((share.grant.uid, share.grant.container), {})

    def limited(self, share: StoredShare) -> tuple[str, ...]:
        """The devices that a container's fence limits, read back or not."""
        record = read_record(share.region.parent)
        return () if record is None else tuple(record.wanted)

    def is_fenced(self, share: StoredShare) -> bool:
        """Whether all of a running container's devices are limited by more than its limiter, as last looked at."""
        return self.standing(share).keys() == {device.uuid for device in share.grant.devices}


def _note(grant: ContainerGrant, uuid: str, ours: int, found: Held | Refused, again: int | Refused) -> str:
    was = str(found) if isinstance(found, Refused) else _text(found.limit)
    said = f"the memory limit of {grant.title} on {uuid} was {_text(ours)} and is {was}"
    if isinstance(again, Refused):
        return f"{said}; it cannot be set again: {again}"
    return f"{said}; it was set again: see who else limits cgroups on this node"


def _text(limit: int | None) -> str:
    return "none" if limit is None else render_mib(limit // BYTES_PER_MIB)
