"""The agent's rounds: what is looked at again and again, and what is done about it."""

import datetime as dt
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tessera.agent.cgroups import Placement, bare_id, placement_of, running_pods
from tessera.agent.fencing import FenceKeeper
from tessera.agent.foreign import foreign_users, list_pod_resources
from tessera.agent.health import reason_of
from tessera.agent.layout import Layout
from tessera.agent.machine import Machine
from tessera.agent.node import NodeState
from tessera.agent.patrol import MOST_KILLS, Breach, Escape, Held, Look, Roster, escape_message, look_at
from tessera.agent.payload import is_mapped, sweep_versions
from tessera.agent.pods import NodePods, allocation_of, statuses_of, subject_of
from tessera.agent.store import ShareStore, StoredShare, read_region
from tessera.agent.sweep import candidates, over
from tessera.core.errors import UnavailableError
from tessera.runtime.clock import Clock
from tessera.runtime.kube.events import EventKind, Recorder
from tessera.runtime.log import logger
from tessera.runtime.nvml import DeviceProcess
from tessera.runtime.proc import command_of, identity_of, inner_identity, signal_process
from tessera.vendors.faults import FaultClass

DEVICES_SECONDS: Final = 10.0
FAULTS_SECONDS: Final = 1.0
FOREIGN_SECONDS: Final = 10.0
PATROL_SECONDS: Final = 2.0
SWEEP_SECONDS: Final = 30.0
HEAP_SECONDS: Final = 30.0
STAMP_SECONDS: Final = 1.0
"""The kubelet's times are cut to whole seconds."""

_log: Final = logger("agent.rounds")


class ProcessEyes:
    """Processes as /proc shows them."""

    def placement(self, pid: int) -> Placement | None:
        """Its pod and container."""
        return placement_of(pid)

    def inner(self, pid: int) -> tuple[int, int]:
        """Its PID namespace, and its PID in there."""
        return inner_identity(pid)

    def start(self, pid: int) -> int | None:
        """When it started; ``None`` where it is over."""
        found = identity_of(pid)
        return None if found is None else found.start_ticks


class Patrol:
    """Compares what runs with what was allocated; tells of what escapes, and ends it where that is the policy."""

    def __init__(
        self,
        machine: Machine,
        store: ShareStore,
        pods: NodePods,
        recorder: Recorder,
        node: NodeState,
        *,
        kill: bool,
    ) -> None:
        self._machine, self._store, self._pods, self._recorder = machine, store, pods, recorder
        self._node, self._kill = node, kill
        self._eyes = ProcessEyes()
        self._before = Look()
        self._told: set[tuple[int, int]] = set()
        self._ungated: frozenset[str] = frozenset()
        self._told_ungated: set[str] = set()
        self.escapes: tuple[Escape, ...] = ()
        self.killed = 0
        self.is_fenced: Callable[[StoredShare], bool] = lambda _: False
        """Whether a container's memory is limited by more than its limiter."""
        self.using: tuple[DeviceProcess, ...] = ()

    def look(self) -> None:
        """One look at all processes that use a device, and at all containers that hold a share."""
        self._look_at_containers()
        self.using = self._machine.processes()
        roster = self._roster() if self.using else Roster()
        self._before = look_at(self.using, roster, self._eyes, self._before)
        self.escapes = self._before.escapes
        self._told &= self._before.suspects
        for escape in self.escapes[:MOST_KILLS]:
            if (escape.pid, escape.start_ticks) not in self._told:
                self._told.add((escape.pid, escape.start_ticks))
                self._meet(escape)

    def _roster(self) -> Roster:
        shares = tuple(self._store.shares())
        held = {
            id_: _held(share, id_, is_fenced=self.is_fenced(share))
            for share in shares
            if (id_ := self.container_id(share))
        }
        return Roster(held, {share.grant.uid: share.grant.key for share in shares})

    def container_id(self, share: StoredShare) -> str:
        """The container that may use the share: which passed the gate; without a gate, by the kubelet's word."""
        if self._node.tier.gate:
            return share.gated
        pod = self._pods.by_uid(share.grant.uid)
        statuses = statuses_of(pod) if pod else ()
        return next((bare_id(s.container_id) for s in statuses if s.name == share.grant.container), "")

    def _meet(self, escape: Escape) -> None:
        command = command_of(escape.pid)
        stop = self._kill and escape.can_be_stopped
        if stop:
            self._stop(escape)
        message = escape_message(escape, command, stopped=stop)
        _log.warning("isolation absent", pod=escape.key, pid=escape.pid, breach=escape.breach.value, note=message)
        pod = self._pods.by_uid(escape.uid)
        if pod is not None:
            self._recorder.record(subject_of(pod), EventKind.WARNING, "IsolationAbsent", message)

    def _stop(self, escape: Escape) -> None:
        if self._eyes.start(escape.pid) != escape.start_ticks:
            return
        self.end(escape.pid)
        _log.warning("killed", pid=escape.pid, pod=escape.key, container=escape.container)

    def end(self, pid: int) -> None:
        """End a process that no limit holds for any more."""
        self.killed += signal_process(pid, signal.SIGKILL)

    def _look_at_containers(self) -> None:
        """Containers that run with an allocation and never passed the gate, seen twice."""
        if not self._node.tier.gate:
            return
        found: dict[str, tuple[str, str]] = {}
        for pod in self._pods.known():
            granted = () if pod.finished else allocation_of(pod, self._pods.node)
            for status in statuses_of(pod) if granted else ():
                running = None if status.state is None else status.state.running
                if status.name in granted and running is not None:
                    container_id = bare_id(status.container_id)
                    if not self._is_gated(pod.metadata.uid, status.name, container_id, _started(running)):
                        found[container_id] = (pod.metadata.uid, status.name)
        for container_id in self._ungated & found.keys() - self._told_ungated:
            self._tell_ungated(*found[container_id])
        self._told_ungated |= self._ungated & found.keys()
        self._told_ungated &= found.keys()
        self._ungated = frozenset(found)

    def _is_gated(self, uid: str, container: str, container_id: str, started: float) -> bool:
        """Whether a container that the API shows as running since then passed the gate.

        What it shows may be old (the API server was away, the container started again since): then the gate has
        let its successor in, later than it started. Nothing is known of it any more, and it runs no more.
        """
        try:
            share = self._store.find(uid, container)
        except ValueError:
            return False
        if share is None:
            return False
        return share.gated == container_id or self._store.gated_at(share) >= started + STAMP_SECONDS

    def _tell_ungated(self, uid: str, container: str) -> None:
        pod = self._pods.by_uid(uid)
        if pod is None:
            return
        note = (
            f"isolation absent: container {container} runs and never passed the gate, so that its devices and "
            "limits were not checked; see that the container runtime has CDI enabled, and delete the pod"
        )
        _log.warning("ungated", pod=pod.metadata.key, container=container)
        self._recorder.record(subject_of(pod), EventKind.WARNING, "IsolationAbsent", note)

    def isolation(self, share: StoredShare) -> str:
        """Whether a container's limits hold: ``enforced``, ``unverified``, ``absent``; empty before it starts."""
        container_id = self.container_id(share)
        if not container_id:
            return ""
        grant = share.grant
        escaped = any((e.uid, e.container) == (grant.uid, grant.container) for e in self.escapes)
        if escaped or container_id in self._told_ungated:
            return "absent"
        return "enforced" if self._node.tier.gate else "unverified"

    @property
    def counts(self) -> Mapping[Breach, int]:
        """Escapes now, by how."""
        found = dict.fromkeys(Breach, 0)
        for escape in self.escapes:
            found[escape.breach] += 1
        found[Breach.UNGATED] += len(self._told_ungated)
        return found


def _started(running: Mapping[str, Any]) -> float:
    """Since when a container runs, in seconds since 1970; never, where the kubelet does not say."""
    try:
        return dt.datetime.fromisoformat(str(running["startedAt"])).timestamp()
    except (KeyError, ValueError):
        return math.inf


def _held(share: StoredShare, container_id: str, *, is_fenced: bool) -> Held:
    region = read_region(share.region)
    processes = () if isinstance(region, str) else region.processes
    registered = frozenset((p.pid_namespace, p.pid) for p in processes)
    grant = share.grant
    return Held(grant.uid, grant.key, grant.container, container_id, registered, is_fenced)


class Sweeper:
    """Removes the shares of pods that are over, and limiters that nobody uses."""

    def __init__(
        self, store: ShareStore, layout: Layout, pods: NodePods, node: NodeState, fences: FenceKeeper
    ) -> None:
        self._store, self._layout, self._pods, self._node, self._fences = store, layout, pods, node, fences

    async def look(self) -> tuple[str, ...]:
        """One look; the uids whose shares were removed. Raises as :meth:`NodePods.listed`."""
        directories, now = self._store.pod_directories(), time.time()
        if not candidates(directories, self._pods.known(), now):
            return ()
        # What our watch does not show may only be late: the API server decides, and the processes of this node.
        old = candidates(directories, await self._pods.listed(), now)
        # A fence that stands is taken down first: nobody would know of it without the share.
        gone = tuple(u for u in over(old, running_pods()) if not self._fences.holds(u)) if old else ()
        for uid in gone:
            self._store.remove(uid)
        if gone:
            _log.info("removed shares", pods=list(gone))
        return gone

    def sweep_libraries(self) -> tuple[str, ...]:
        """Remove the limiters that no share was given and nobody maps; which were removed."""
        wanted = {share.grant.library for share in self._store.shares()}
        if self._node.payload is not None:
            wanted.add(self._node.payload.digest)
        return sweep_versions(self._layout, wanted, is_mapped)


class FaultRound:
    """Takes the devices' fault reports and tells the pods that use them."""

    def __init__(self, node: NodeState, store: ShareStore, pods: NodePods, recorder: Recorder) -> None:
        self._node, self._store, self._pods, self._recorder = node, store, pods, recorder
        self.counts: dict[tuple[str, str], int] = {}

    def look(self) -> None:
        """One look."""
        for fault in self._node.take_faults():
            key = (fault.uuid, str(fault.code))
            self.counts[key] = self.counts.get(key, 0) + 1
            _log.warning("device fault", device=fault.uuid, code=fault.code, kind=fault.row.kind.value)
            if fault.row.kind is not FaultClass.APPLICATION:
                self._tell(
                    fault.uuid, f"device {fault.uuid} is {fault.row.kind.value}ly faulty: {reason_of(fault)}"
                )

    def _tell(self, uuid: str, note: str) -> None:
        for uid in sorted(users_of(uuid, self._store.shares())):
            pod = self._pods.by_uid(uid)
            if pod is not None and not pod.finished:
                self._recorder.record(subject_of(pod), EventKind.WARNING, "DeviceFault", note)


def users_of(uuid: str, shares: Iterable[StoredShare]) -> frozenset[str]:
    """Uids of the pods that hold a share of a device."""
    return frozenset(share.grant.uid for share in shares if any(d.uuid == uuid for d in share.grant.devices))


async def look_for_foreign(socket: Path, node: NodeState) -> None:
    """Ask the kubelet once who else was given our devices; a kubelet that is away changes nothing."""
    try:
        found = await list_pod_resources(socket)
    except UnavailableError as error:
        _log.debug("pod resources", error=str(error))
        return
    node.learn_foreign(foreign_users(found.pod_resources, {device.uuid for device in node.devices()}))


async def repeat(look: Callable[[], None], seconds: float, clock: Clock) -> None:
    """Look again and again; until cancelled."""
    while True:
        look()
        await clock.sleep(seconds)
