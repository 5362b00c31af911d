"""What is done about a container whose fence was changed behind our back: its pod is told, and it is ended where
that is the policy and the fence cannot be put up again.
"""

from collections.abc import Callable
from typing import Final

from tessera.agent.fencing import Loss
from tessera.agent.pods import NodePods, subject_of
from tessera.runtime.kube.events import EventKind, Recorder
from tessera.runtime.log import logger

REASON: Final = "MemoryLimitChanged"

_log: Final = logger("agent.fencing")


class FenceAlarm:
    """See the module. ``end`` ends a process, where that is the policy."""

    def __init__(self, pods: NodePods, recorder: Recorder, end: Callable[[int], None] | None) -> None:
        self._pods, self._recorder, self._end = pods, recorder, end

    def tell(self, loss: Loss) -> None:
        """Tell of a loss, and act on it."""
        grant = loss.share.grant
        ends = loss.is_lost and self._end is not None
        note = f"{loss.note}; its processes were ended" if ends else loss.note
        _log.warning("fence changed", pod=grant.key, container=grant.container, lost=loss.is_lost, note=note)
        pod = self._pods.by_uid(grant.uid)
        if pod is not None:
            self._recorder.record(subject_of(pod), EventKind.WARNING, REASON, note)
        if loss.is_lost and self._end is not None:
            for pid in _processes(loss):
                self._end(pid)


def _processes(loss: Loss) -> tuple[int, ...]:
    """Who is in the cgroup now; nobody, where it is gone."""
    try:
        return tuple(map(int, (loss.group / "cgroup.procs").read_text().split()))
    except OSError:
        return ()
