"""Another share for a container that runs: what its pod's allocation says now, put in force.

The allocation is what counts; region, record and fence follow it. At no moment does the region allow more than the
record says: what shrinks is put in force first, then the record is written, then what grows is put in force. An
agent that ends on the way finds the difference when it comes back, because every pod that it sees is looked at.

Memory below what is in use is not taken away: it would refuse everything and free nothing. The container keeps its
old limit, its pod is told once, and every look tries again. What counts as in use is what the region counts, and
what the host measured beyond that.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tessera.agent.grant import ContainerGrant, GrantedDevice, granted_devices
from tessera.agent.pods import NodePods, allocation_of, subject_of
from tessera.agent.store import ShareStore, StoredShare, difference, limits_of, read_region
from tessera.core.errors import UnavailableError
from tessera.core.units import BYTES_PER_MIB, render_mib
from tessera.runtime.kube.events import EventKind, Recorder
from tessera.runtime.limits import Excess, put, tighten
from tessera.runtime.log import logger
from tessera.runtime.native import LiveRegion
from tessera.wire.kube.objects import KubePod
from tessera.wire.shm import Region

_log: Final = logger("agent.resize")


class Resizer:
    """See the module. :meth:`seen` hears of pods, :meth:`look` tries again; ``changed`` hears of what was done."""

    def __init__(self, store: ShareStore, pods: NodePods, recorder: Recorder) -> None:
        self._store, self._pods, self._recorder = store, pods, recorder
        self._waiting: dict[str, KubePod] = {}
        self._told: dict[tuple[str, str], str] = {}
        self.changed: list[Callable[[StoredShare], None]] = []
        self.resized = 0

    def seen(self, old: KubePod | None, new: KubePod | None) -> None:
        """The watch has shown a pod, or that it is gone."""
        if new is None or new.finished:
            gone = new or old
            self._forget(gone.metadata.uid if gone else "")
        elif old is None or old.metadata.annotations != new.metadata.annotations:
            self._follow(new)

    def look(self) -> None:
        """Try again what could not be put in force."""
        for uid in tuple(self._waiting):
            pod = self._pods.by_uid(uid)
            if pod is None:
                self._forget(uid)
            else:
                self._follow(pod)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._told = {key: why for key, why in self._told.items() if key[0] != uid}

    def _follow(self, pod: KubePod) -> None:
        """Have every container of a pod that has a share here have what the allocation says."""
        uid, is_done = pod.metadata.uid, True
        for container, grants in allocation_of(pod, self._pods.node).items():
            try:
                share = self._store.find(uid, container)
            except ValueError:
                continue  # the gate says so when it starts
            if share is not None:
                is_done &= self._bring(pod, share, granted_devices(grants))
        if is_done:
            self._forget(uid)
        else:
            self._waiting[uid] = pod

    def _bring(self, pod: KubePod, share: StoredShare, devices: tuple[GrantedDevice, ...]) -> bool:
        """Whether the container has this share now."""
        grant = msgspec.structs.replace(share.grant, devices=devices)
        if [d.uuid for d in devices] != [d.uuid for d in share.grant.devices]:
            return True  # other devices are no resize: the gate refuses its next start
        region = read_region(share.region)
        if grant == share.grant and isinstance(region, Region) and difference(region, grant) == "":
            return True
        try:
            ended = self._pods.has_ended(grant.uid, grant.container, share.gated)
            held = regrant(self._store, share, grant, is_over=ended)
        except (OSError, UnavailableError) as error:
            _log.warning("not resized", pod=grant.key, container=grant.container, error=str(error))
            return False
        if held:
            self._tell(pod, grant, held)
            return False
        self.resized += 1
        _log.info("resized", pod=grant.key, container=grant.container)
        for told in self.changed:
            told(StoredShare(grant, share.region, share.gated))
        return True

    def _tell(self, pod: KubePod, grant: ContainerGrant, held: Sequence[Excess]) -> None:
        """Once for each share that is not given: what is in use changes all the time."""
        wanted = repr(grant.devices)
        if self._told.get((grant.uid, grant.container)) == wanted:
            return
        self._told[grant.uid, grant.container] = wanted
        said = "; ".join(_said(grant, one) for one in held)
        note = f"{grant.title} keeps its memory limit: {said}. It is lowered once that much is free"
        _log.warning("resize refused", pod=grant.key, container=grant.container, note=note)
        self._recorder.record(subject_of(pod), EventKind.WARNING, "ResizeRefused", note)


def regrant(store: ShareStore, share: StoredShare, grant: ContainerGrant, *, is_over: bool) -> tuple[Excess, ...]:
    """Give a container another share of its devices; what is in use beyond it, and then nothing has changed.

    What a container that is over used last stands in its region until the next one starts, and is in nobody's use.
    Raises ``OSError`` and :class:`UnavailableError`.
    """
    after = limits_of(grant)
    with LiveRegion(share.region, len(after)) as live:
        excess = () if is_over else tighten(live, limits_of(share.grant), after)
        if not excess:
            store.rewrite(grant)
            put(live, after)
    return excess


def _said(grant: ContainerGrant, excess: Excess) -> str:
    used, limit = -(-excess.used // BYTES_PER_MIB), excess.limit // BYTES_PER_MIB
    uuid = grant.devices[excess.device].uuid
    return f"{render_mib(used)} of {uuid} are in use, and {render_mib(limit)} would be allowed"
