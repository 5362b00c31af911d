"""Stay with a command until it is over: signals, the dead, the unlimited, the pace, and the share at the end.

What is promised:

* The command's exit code is ours; death by signal ``n`` is ``128 + n``.
* A signal that is sent to us is passed on. The terminal's own keys reach the command directly.
* When the command is over and processes that it left behind still hold the share, or are such that no limit
  could hold them, we stay until they are gone: the share cannot be given to others while its memory is in use.
  Signals go to them then.
* The share is given back in every case. Before that all limits become zero, so that a process that was
  overlooked gets nothing more.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import TesseraError, UnavailableError
from tessera.local.book import Book, Run, grants_of, region_path
from tessera.local.launch import Command, become_subreaper, start
from tessera.local.pace import Pacer
from tessera.local.repair import differs, enforce_now, read_region
from tessera.local.watch import NOTHING_SEEN, escape_message, look_at
from tessera.local.yielding import Yielder
from tessera.runtime.native import LIMITER, LiveRegion, RegionCallError
from tessera.runtime.nvml import DEVICE_FILES, DeviceProcess, Nvml
from tessera.runtime.proc import (
    command_of,
    crash_point,
    descendants,
    has_mapped,
    has_open,
    identity_of,
    inner_identity,
    is_descendant,
    signal_process,
)

LOOK_SECONDS: Final = 0.25
KILL_SECONDS: Final = 5.0
FORWARDED: Final = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
)
_SENT_BY_KERNEL: Final = 0x80
"""``si_code`` of a signal that the kernel sent to the whole foreground group: the command has it already."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a run is watched: whether the unlimited may run, and where messages go."""

    allow_unlimited: bool
    say: Callable[[str], None]


class Supervisor:
    """One run from its start to the release of its share."""

    def __init__(self, book: Book, run: Run, nvml: Nvml, terms: Terms) -> None:
        self._book, self._run, self._nvml, self._terms = book, run, nvml, terms
        self._indices = {grant.uuid: grant.index for grant in grants_of(run)}
        self._child = 0
        self._status: int | None = None
        self._seen = NOTHING_SEEN
        self._warned: set[int] = set()
        self._lingering: tuple[int, ...] = ()
        self._version = book.version()

    def run(self, command: Command) -> int:
        """Start the command, stay, release; what to exit with."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
        path = region_path(self._book.machine, self._run.uid)
        try:
            with LiveRegion(path, len(self._indices)) as region:
                try:
                    become_subreaper()
                    mask = {signal.Signals(number) for number in before}
                    self._child = start(command, mask, self._record_child)
                    crash_point("after-start")
                    self._stay(region)
                except RegionCallError as error:
                    raise self._spoiled(region) from error
                finally:
                    self._end_all()
                    self._release(region)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._status is not None, "the command is over when we stop staying"
        return self._status

    def _record_child(self, pid: int) -> None:
        child = identity_of(pid)
        if child is None:
            raise TesseraError(f"process {pid} ended before it became the command")
        with self._book.change():
            self._book.record_child(self._run.uid, child)

    def _stay(self, region: LiveRegion) -> None:
        """Until the command is over and nobody holds the share any more."""
        due = time.monotonic()
        pacer = Pacer(region, self._nvml, grants_of(self._run), lambda pid: self._identify(pid) is not None)
        yielder = Yielder(region, self._nvml, self._book, self._run)
        while True:
            yielder.tick()
            pacer.learn()
            pacer.tick()
            if yielder.must_go:
                self._give_way(yielder)
            if time.monotonic() >= due:
                due = time.monotonic() + LOOK_SECONDS
                self._heed_book(region)
                holders = self._look(region)
                if self._status is not None and not holders:
                    return
                self._say_lingering(holders)
            self._take_signal(max(0.0, min(due, pacer.due, yielder.due) - time.monotonic()))
            if self._reap_children():
                due = time.monotonic()

    def _give_way(self, yielder: Yielder) -> None:
        """End what holds memory beyond the request of this run, which another run lacks of its own."""
        yielder.must_go = False
        self._terms.say(
            "ended: the device is full, another run lacks memory that it requested, and this one has more than "
            "its own (--memory); ask for more, or allow it to --spill"
        )
        for pid in descendants(os.getpid()):
            self._send(pid, signal.SIGKILL)

    def _heed_book(self, region: LiveRegion) -> None:
        """See that the region is still the run's, and says what the book says: who changes both may be killed."""
        if not region.is_whole:
            raise self._spoiled(region)
        version = self._book.version()
        if version == self._version:
            return
        self._version = version
        said = read_region(self._book.machine, self._run.uid)
        run = next((run for run in self._book.runs() if run.uid == self._run.uid), None)
        if said is not None and run is not None and differs(said, run):
            with self._book.change():
                enforce_now(self._book, self._run.uid)

    def _spoiled(self, region: LiveRegion) -> UnavailableError:
        what = f"{region.path} was removed, replaced or cut off, and with it the limits of the run"
        return UnavailableError(what, "the command was ended; leave the state directory to tessera")

    def _take_signal(self, seconds: float) -> None:
        found = signal.sigtimedwait(FORWARDED | {signal.SIGCHLD}, seconds)
        if found is None or found.si_signo == signal.SIGCHLD:
            return
        by_terminal = found.si_code == _SENT_BY_KERNEL
        if self._status is None and not by_terminal:
            signal_process(self._child, found.si_signo)
        # What a shell leaves in the background ignores the terminal's interrupt; it is asked to end instead.
        number = signal.SIGTERM if found.si_signo == signal.SIGINT else found.si_signo
        for pid in self._lingering:
            self._send(pid, number)

    def _send(self, pid: int, number: int) -> None:
        try:
            signal_process(pid, number)
        except PermissionError:
            self._terms.say(f"process {pid} ({command_of(pid)}) belongs to another user and cannot be signalled")

    def _reap_children(self) -> bool:
        """Collect everybody who ended; whether the command was among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return False
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code
                return True

    def _look(self, region: LiveRegion) -> frozenset[int]:
        """Reap the dead, stop the unlimited; the processes that hold the share now."""
        region.reap()
        using = self._nvml.processes()
        registered = {(p.pid_namespace, p.pid) for p in region.processes()}
        self._seen = look_at(using, registered, self._identify, self._seen)
        for process in self._seen.escaped:
            if process.pid not in self._warned:
                device = f"device {self._indices.get(process.uuid, process.uuid)}"
                self._meet_unlimited(process, device)
        ours = frozenset(process.pid for process in using if self._identify(process.pid) is not None)
        return ours | {process.pid for process in region.processes()} | self._left_unlimited()

    def _left_unlimited(self) -> frozenset[int]:
        """What the command left behind and no limit can hold. The rest is refused everything once we are gone."""
        if self._status is None:
            return frozenset()
        return frozenset(pid for pid in descendants(os.getpid()) if not has_mapped(pid, LIMITER.name))

    def _identify(self, pid: int) -> tuple[int, int] | None:
        """Who a process of this run is to the region; ``None`` for everybody else's.

        A driver outside of our PID namespace gives numbers that mean somebody else here: a process of ours that
        has no device open is not the one it speaks of.
        """
        if pid == os.getpid() or not is_descendant(pid, os.getpid()):
            return None
        uses = self._book.machine.is_simulated or has_open(pid, DEVICE_FILES)
        return inner_identity(pid) if uses else None

    def _meet_unlimited(self, process: DeviceProcess, device: str) -> None:
        self._warned.add(process.pid)
        stop = not self._terms.allow_unlimited
        message = escape_message(process, command_of(process.pid), device, stopped=stop)
        if stop:
            self._send(process.pid, signal.SIGKILL)
        self._terms.say(message)

    def _say_lingering(self, holders: frozenset[int]) -> None:
        if self._status is None:
            return
        if holders and not self._lingering:
            who = ", ".join(f"{pid} ({command_of(pid)})" for pid in sorted(holders))
            self._terms.say(f"the command is over; staying while processes it left hold the share: {who}")
        self._lingering = tuple(sorted(holders))

    def _end_all(self) -> None:
        """Nobody of ours runs on without us: only after an error is there anybody left who holds anything."""
        if self._status is not None:
            return
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline and (pids := descendants(os.getpid())):
            for pid in pids:
                self._send(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
            self._reap_children()

    def _release(self, region: LiveRegion) -> None:
        crash_point("before-release")
        self._revoke(region)
        crash_point("after-revoke")
        with self._book.change():
            self._revoke(region)  # also when it was resized in this very moment
            self._book.remove(self._run.uid)
            crash_point("before-commit-release")
        crash_point("after-release")
        region.path.unlink(missing_ok=True)

    def _revoke(self, region: LiveRegion) -> None:
        with suppress(RegionCallError):  # cut off by its own run, which has no limits any more and is ended
            region.limit_memory([0] * len(self._indices))
