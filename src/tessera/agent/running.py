"""The shares whose processes are on a device now, with their regions held open.

Who belongs to which share is what the patrol goes by: the cgroup of a process, and the container that passed the
gate. A container may write to its region's file and so may cut it off: then its pages read as zeros here, so a
region that is not whole any more is let go.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tessera.agent.patrol import Eyes
from tessera.agent.store import StoredShare
from tessera.core.errors import UnavailableError
from tessera.core.units import WHOLE
from tessera.runtime.log import logger
from tessera.runtime.native import LiveRegion
from tessera.runtime.nvml import DeviceProcess

_log: Final = logger("agent.running")

ShareKey = tuple[str, str]
"""A pod's uid and a container's name."""


@dataclass(eq=False, slots=True)
class Runner:
    """A share whose processes are on a device."""

    share: StoredShare
    region: LiveRegion
    files: ExitStack

    @property
    def key(self) -> ShareKey:
        """What names the share for as long as it is."""
        return self.share.grant.uid, self.share.grant.container

    @property
    def is_limited(self) -> bool:
        """Whether it was granted a part of the compute of any device, not all of it."""
        return any(0 < device.compute_limit_milli < WHOLE for device in self.share.grant.devices)

    @property
    def is_whole(self) -> bool:
        """Whether the region is still the file that was opened, at its full length."""
        return self.region.is_whole


class Running:
    """See the module. ``runners`` are by their container's id."""

    def __init__(
        self, shares: Callable[[], Iterable[StoredShare]], container_id: Callable[[StoredShare], str], eyes: Eyes
    ) -> None:
        self._shares, self._container_id, self._eyes = shares, container_id, eyes
        self._places: dict[int, str] = {}
        self._strangers = {""}
        self._stored: tuple[StoredShare, ...] = ()
        self._left: list[Callable[[Runner], None]] = []
        self.runners: dict[str, Runner] = {}

    def on_leave(self, told: Callable[[Runner], None]) -> None:
        """Call this with each runner that has no process on a device any more, before its region is let go."""
        self._left.append(told)

    def learn(self, using: Iterable[DeviceProcess]) -> None:
        """Take in who uses devices now. Where nobody does, no share is read."""
        self._places.clear()
        self._strangers = {""}
        self.whole()
        ids = {self.place(process.pid) for process in using} - {""}
        for id_ in self.runners.keys() - ids:
            for told in self._left:
                told(self.runners[id_])
            self.leave(id_)
        self._join_all(ids)

    def meet(self, ids: Collection[str]) -> None:
        """Let containers join that :meth:`learn` did not know to run; each is asked after once."""
        unknown = {*ids} - self.runners.keys() - self._strangers
        self._strangers |= unknown
        self._join_all(unknown)

    def invite(self, share: StoredShare) -> None:
        """Let a share join whose processes nobody has shown yet."""
        if id_ := self._container_id(share):
            self._join(id_, share)

    def _join_all(self, ids: Collection[str]) -> None:
        if ids:
            self._stored = tuple(self._shares())
        for share in self._stored if ids else ():
            if (id_ := self._container_id(share)) in ids:
                self._join(id_, share)

    def _join(self, id_: str, share: StoredShare) -> None:
        if id_ in self.runners and self.runners[id_].is_whole:
            self.runners[id_].share = share  # it may have been granted another one since
            return
        self.leave(id_)
        files = ExitStack()
        try:
            region = files.enter_context(LiveRegion(share.region, len(share.grant.devices)))
        except UnavailableError as error:
            _log.warning("region not opened", pod=share.grant.key, error=str(error))
            return
        self.runners[id_] = Runner(share, region, files)

    def leave(self, id_: str) -> None:
        """Let go of a region; its share may join again."""
        runner = self.runners.pop(id_, None)
        if runner is not None:
            runner.files.close()

    def whole(self) -> dict[str, Runner]:
        """The runners whose regions can be used; the others leave."""
        for id_ in [id_ for id_, runner in self.runners.items() if not runner.is_whole]:
            self.leave(id_)
        return self.runners

    def place(self, pid: int) -> str:
        """The container of a process, looked up once between two calls of :meth:`learn`; empty without one."""
        if pid not in self._places:
            place = self._eyes.placement(pid)
            self._places[pid] = place.container_id if place else ""
        return self._places[pid]

    def lives(self, pid: int) -> bool:
        """Whether there is such a process."""
        return self._eyes.start(pid) is not None

    def stored(self) -> Iterable[StoredShare]:
        """All shares that there were, running or not, when one that runs was looked for last."""
        return self._stored

    def known(self) -> frozenset[ShareKey]:
        """All shares that there are, running or not."""
        return frozenset((share.grant.uid, share.grant.container) for share in self._shares())

    def close(self) -> None:
        """Let go of all regions."""
        for id_ in tuple(self.runners):
            self.leave(id_)
