"""Getting a device's memory back from a share that has more than it requested, for one that has less.

The last resort of ADR 16, after growth was refused and nothing could be spilled: as the kubelet does with a
node's memory, whoever is beyond its request may be ended for whoever is within. By policy nobody is; then the
owner is told.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tessera.agent.governor import Shortage
from tessera.agent.pods import NodePods, subject_of
from tessera.agent.running import Running
from tessera.agent.store import StoredShare
from tessera.core.units import BYTES_PER_MIB, render_mib
from tessera.runtime.kube.events import EventKind, Recorder
from tessera.runtime.log import logger
from tessera.runtime.nvml import DeviceProcess
from tessera.runtime.proc import identity_of, signal_process

STOP: Final = "stop"
REFUSE: Final = "refuse"
TOLD_SECONDS: Final = 5.0
"""The same shortage is met, and told, once in so many seconds: what is killed takes a moment to be gone."""

_log: Final = logger("agent.reclaim")


@dataclass(slots=True)
class Reclaimer:
    """See the module. ``policy`` is :data:`STOP` or :data:`REFUSE`."""

    running: Running
    processes: Callable[[], Sequence[DeviceProcess]]
    pods: NodePods
    recorder: Recorder
    policy: str = STOP
    counts: dict[str, int] = field(default_factory=lambda: {"stopped": 0, "refused": 0})
    _met: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def meet(self, shortage: Shortage) -> None:
        """End the processes of the victim on the device, or tell the owner that nobody does."""
        owner, victim = shortage.owner.grant, shortage.victim.grant
        key, now = (shortage.uuid, owner.uid, victim.uid), time.monotonic()
        if now - self._met.get(key, -TOLD_SECONDS) < TOLD_SECONDS:
            return
        self._met = {of: at for of, at in self._met.items() if now - at < TOLD_SECONDS} | {key: now}
        lacking = render_mib(-(-shortage.lacking_bytes // BYTES_PER_MIB))
        what = f"device {shortage.uuid} is full, and {owner.title} lacks {lacking} that is within its request"
        if self.policy != STOP:
            self.counts["refused"] += 1
            self._tell(shortage.owner, "DeviceFull", f"{what}; {victim.title} has more than it requested")
            return
        ended = self._end(shortage)
        self.counts["stopped"] += 1
        _log.warning("memory reclaimed", owner=owner.key, victim=victim.key, device=shortage.uuid, ended=ended)
        note = f"{what}: ended {ended} processes of {victim.title}, which had more than it requested"
        self._tell(shortage.victim, "MemoryReclaimed", note + "; raise its request, or let it spill")
        self._tell(shortage.owner, "MemoryReclaimed", note)

    def _end(self, shortage: Shortage) -> int:
        """How many processes were killed."""
        key = (shortage.victim.grant.uid, shortage.victim.grant.container)
        ids = {id_ for id_, runner in self.running.runners.items() if runner.key == key}
        pids = {p.pid for p in self.processes() if p.uuid == shortage.uuid and self.running.place(p.pid) in ids}
        return sum(signal_process(pid, signal.SIGKILL) for pid in sorted(pids) if identity_of(pid) is not None)

    def _tell(self, share: StoredShare, reason: str, note: str) -> None:
        pod = self.pods.by_uid(share.grant.uid)
        if pod is not None:
            self.recorder.record(subject_of(pod), EventKind.WARNING, reason, note)
