"""Is what runs what was allocated? Seen from the host: the driver's processes against gates and regions.

A limited process is of a container that passed the gate, and it is in that container's region before it reaches
the driver. Whoever uses a device otherwise has no limit: its isolation is *absent*. A single look may catch a
process between the two, so it takes two looks in a row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from tessera.agent.cgroups import Placement
from tessera.core.units import BYTES_PER_MIB, render_mib
from tessera.runtime.nvml import DeviceProcess

MOST_KILLS: Final = 16
"""Processes that one look may end: a fault of ours must not empty a node."""


class Breach(StrEnum):
    """How a process or a container escapes its limit."""

    UNREGISTERED = "unregistered"
    """Of a gated container, but the limiter is not in the process."""
    UNGATED = "ungated"
    """Of a container that never passed the gate."""
    STRANGER = "stranger"
    """Of a pod that holds no share, or of no pod."""


@dataclass(frozen=True, slots=True)
class Held:
    """A container with a share that passed the gate: its id, and who is in its region, as (PID namespace, PID)."""

    uid: str
    key: str
    container: str
    container_id: str
    registered: frozenset[tuple[int, int]]
    is_fenced: bool = False
    """Whether the driver limits its memory as well."""


@dataclass(frozen=True, slots=True)
class Escape:
    """A process that uses a device without a limit; ``uid`` is empty where it is of no pod."""

    breach: Breach
    pid: int
    start_ticks: int
    uuid: str
    used_bytes: int | None
    uid: str = ""
    key: str = ""
    container: str = ""
    is_fenced: bool = False

    @property
    def can_be_stopped(self) -> bool:
        """Whether it is of a pod that holds a share of ours: nobody else's processes are touched."""
        return self.breach is not Breach.STRANGER


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found: suspects seen once, and escapes seen twice."""

    suspects: frozenset[tuple[int, int]] = frozenset()
    escapes: tuple[Escape, ...] = ()


class Eyes(Protocol):
    """What is known of a process; ``None`` where it is gone."""

    def placement(self, pid: int) -> Placement | None:
        """Its pod and container."""
        ...

    def inner(self, pid: int) -> tuple[int, int]:
        """Its PID namespace, and its PID in there."""
        ...

    def start(self, pid: int) -> int | None:
        """When it started, in ticks since boot."""
        ...


@dataclass(frozen=True, slots=True)
class Roster:
    """Who may use devices: gated containers by id, and pods that hold shares, uid to ``namespace/name``."""

    held: Mapping[str, Held] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)


def look_at(using: Iterable[DeviceProcess], roster: Roster, eyes: Eyes, before: Look) -> Look:
    """The processes that escape, by the driver's list, one entry a process and device."""
    suspects: set[tuple[int, int]] = set()
    escapes = []
    for process in using:
        start = eyes.start(process.pid)
        found = None if start is None else _judge(process, start, roster, eyes)
        if found is None:
            continue
        suspects.add((found.pid, found.start_ticks))
        if (found.pid, found.start_ticks) in before.suspects:
            escapes.append(found)
    return Look(frozenset(suspects), tuple(escapes))


def _judge(process: DeviceProcess, start: int, roster: Roster, eyes: Eyes) -> Escape | None:
    place = eyes.placement(process.pid)
    held = roster.held.get(place.container_id) if place else None
    seen = Escape(Breach.STRANGER, process.pid, start, process.uuid, process.used_bytes)
    if place is None:
        return seen
    if held is not None and held.uid == place.uid:
        if eyes.inner(process.pid) in held.registered:
            return None
        return replace(
            seen,
            breach=Breach.UNREGISTERED,
            uid=held.uid,
            key=held.key,
            container=held.container,
            is_fenced=held.is_fenced,
        )
    key = roster.pods.get(place.uid, "")
    breach = Breach.UNGATED if key else Breach.STRANGER
    return Escape(breach, seen.pid, start, seen.uuid, seen.used_bytes, place.uid, key)


_FENCED: Final = (
    "without the limiter (a static program, another libc than glibc, or a program of another architecture): "
    "the driver holds its memory but for managed memory, nothing holds its compute; "
    "use a dynamically linked glibc image"
)
_WHY: Final = {
    Breach.UNREGISTERED: "without the limiter (a static program, another libc than glibc, or a program of another "
    "architecture), so no limit holds for it; use a dynamically linked glibc image",
    Breach.UNGATED: "in a container that never passed the gate, so no limit holds for it; see that the container "
    "runtime has CDI enabled, and delete the pod",
    Breach.STRANGER: "without a share; let its pod ask for one, or set the device aside",
}


def escape_message(escape: Escape, command: str, *, stopped: bool) -> str:
    """What happened, to whom, and what to do."""
    held = "" if escape.used_bytes is None else f" ({render_mib(escape.used_bytes // BYTES_PER_MIB)})"
    where = f" of container {escape.container}" if escape.container else ""
    done = "was stopped: it used" if stopped else "uses"
    who = f"process {escape.pid} ({command}){where}"
    why = _FENCED if escape.is_fenced else _WHY[escape.breach]
    return f"isolation absent: {who} {done} {escape.uuid}{held} {why}"
