"""Processes of this machine, as /proc shows them: who one is, whether it still is, and whose descendant.

A PID alone is no identity: it is reused. With the start time (in clock ticks since boot, so that no change of the
wall clock moves it), the boot and the PID namespace it is one. When in doubt a process lives: wrongly alive costs
its share until somebody can tell, wrongly dead would hand the same memory out twice.

Source: proc_pid_stat(5): fields 3 (state), 4 (parent), 20 (threads) and 22 (start time).
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CRASH_VARIABLE: Final = "TESSERA_TEST_CRASH_AT"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot, as seen from one PID namespace."""

    pid: int
    start_ticks: int
    boot: str
    namespace: int


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    threads: int
    start_ticks: int

    @property
    def is_over(self) -> bool:
        """Nothing of it can run again; a zombie that still has threads is only a process whose first ended."""
        return self.state in "ZXx" and self.threads <= 1


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The command stands in parentheses and may hold blanks and parentheses itself: only the last one ends it.
    fields = text[text.rfind(b")") + 2 :].split()
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[17]), int(fields[19]))


@cache
def boot_id() -> str:
    """What tells this boot of the machine from every other one."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


@cache
def pid_namespace() -> int:
    """The inode of our PID namespace; 0 where it cannot be known."""
    try:
        return (PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


def identity_of(pid: int) -> Identity | None:
    """Who has this PID now; ``None`` where nobody has, or only a zombie."""
    stat = _stat(pid)
    if stat is None or stat.is_over:
        return None
    return Identity(pid, stat.start_ticks, boot_id(), pid_namespace())


def own_identity() -> Identity:
    """Who we are."""
    found = identity_of(os.getpid())
    assert found is not None, "a process that runs is in /proc"
    return found


def is_alive(identity: Identity) -> bool:
    """Whether that very process still runs. One of another PID namespace lives as long as this boot does."""
    if identity.boot != boot_id():
        return False
    if identity.namespace != pid_namespace():
        return True
    return runs_since(identity.pid, identity.start_ticks)


def runs_since(pid: int, start_ticks: int) -> bool:
    """Whether the process that has ``pid`` in our namespace is the one that started then, and is not over."""
    stat = _stat(pid)
    return stat is not None and stat.start_ticks == start_ticks and not stat.is_over


def age_seconds(identity: Identity) -> float:
    """For how long the process has run, in seconds, by the machine's own uptime: no clock jump moves it."""
    uptime = float((PROC / "uptime").read_text().split()[0])
    return max(0.0, uptime - identity.start_ticks / os.sysconf("SC_CLK_TCK"))


def all_pids() -> Iterator[int]:
    """Every PID of our namespace."""
    return (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 -- names, not paths


def is_descendant(pid: int, ancestor: int) -> bool:
    """Whether ``ancestor`` is among the parents of ``pid``, or is itself."""
    while pid > 1 and pid != ancestor:
        stat = _stat(pid)
        if stat is None:
            return False
        pid = stat.parent
    return pid == ancestor


def descendants(ancestor: int) -> tuple[int, ...]:
    """The living processes under ``ancestor``, without itself."""
    parents = {pid: stat for pid in all_pids() if (stat := _stat(pid)) and not stat.is_over}
    found: list[int] = []
    level = {ancestor}
    while level:
        level = {pid for pid, stat in parents.items() if stat.parent in level and pid != ancestor}
        found.extend(sorted(level))
    return tuple(found)


def inner_identity(pid: int) -> tuple[int, int]:
    """The PID namespace of a process (0 where we may not see it) and its PID in there."""
    try:
        namespace = (PROC / str(pid) / "ns/pid").stat().st_ino
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return 0, pid
    pids = next((line.split() for line in status.splitlines() if line.startswith("NSpid:")), [])
    return namespace, int(pids[-1]) if len(pids) > 1 else pid


def command_of(pid: int) -> str:
    """The command line of a process on one line; its short name where it has none, empty where it is gone."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        text = " ".join(word.decode(errors="replace") for word in words if word)
        return text or (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def has_open(pid: int, prefixes: tuple[str, ...]) -> bool:
    """Whether a process has a file open whose path begins so; true as well where we may not look."""
    folder = PROC / str(pid) / "fd"
    try:
        return any(_link(folder / name).startswith(prefixes) for name in os.listdir(folder))  # noqa: PTH208 -- names
    except PermissionError:
        return True
    except OSError:
        return False


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 -- text
    except OSError:
        return ""


def has_mapped(pid: int, library: str) -> bool:
    """Whether a process has a file of this name mapped; true as well where it is gone or may not be looked at."""
    try:
        maps = (PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return True
    return not maps or b"/" + library.encode() in maps


def signal_process(pid: int, number: int) -> bool:
    """Send a signal; whether somebody was there to get it. Raises ``PermissionError`` for another user's."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def crash_point(name: str) -> None:
    """Be killed here, as by ``kill -9``, where a test asks for it by ``TESSERA_TEST_CRASH_AT``.

    What must hold after a crash at any point is tested at each of these; nothing else sets the variable.
    """
    if os.environ.get(CRASH_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
