"""One program of the engine as a process: started, watched until it is ready, killed, started again.

A process is tied to the thread that started it (``PR_SET_PDEATHSIG``): where the test run is killed, nothing stays
behind. Services are therefore started from the main thread. A cluster that shall outlive its starter says so.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05


class ServiceError(Exception):
    """A program died or is not ready in time; the text ends with the last lines of its log."""


def wait_until(holds: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Poll until ``holds``. Raises :class:`TimeoutError` that names ``what``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


@dataclass(slots=True)
class Service:
    """A program, its arguments and how it shows that it is ready.

    ``hostname`` gives it a UTS namespace of its own with that name; ``outlives`` unties it from its starter.
    """

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[], bool]
    hostname: str = ""
    outlives: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id. Raises :class:`ServiceError` where it does not run."""
        if self._process is None:
            raise ServiceError(f"{self.name} was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> "Service":
        """Start it, and return when it is ready. Raises :class:`ServiceError`."""
        if self.alive:
            raise ServiceError(f"{self.name} runs already, as {self.pid}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._wrapping(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        if wait:
            self.await_ready()
        return self

    def _wrapping(self) -> list[str]:
        """Programs that replace themselves by the next, so that the process id stays."""
        parts: list[str] = []
        if not self.outlives:
            parts += ["setpriv", "--pdeathsig", "KILL", "--"]
        if self.hostname:
            user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            parts += ["unshare", "--uts", *user, "--", "sh", "-c", 'hostname "$0" && exec "$@"', self.hostname]
        return parts

    def await_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return when it is ready. Raises :class:`ServiceError` where it died or takes longer."""

        def is_ready() -> bool:
            if not self.alive:
                status = self._process.returncode if self._process else "never started"
                raise ServiceError(f"{self.name} ended ({status}):\n{self.tail()}")
            return self.ready()

        try:
            wait_until(is_ready, self.name, seconds)
        except TimeoutError as late:
            raise ServiceError(f"{late}:\n{self.tail()}") from None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal and, unless it is one that a process survives, wait for the end."""
        if self._process is None or not self.alive:
            return
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """End it: asked first, killed after a while."""
        try:
            self.kill(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Kill it without a warning and start it again."""
        self.kill()
        self.start()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])
