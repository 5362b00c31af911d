"""``tessera`` as a process, in a state directory of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESSERA = (sys.executable, "-c", "from tessera.cli.main import main; main()")
PATIENCE_SECONDS = 60.0
"""When a test gives up on something that must happen; not how long anything may take."""


def until(fact: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true answer of ``fact``, asked again and again; fails with ``what`` when there never is one."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = fact()
        if answer:
            return answer
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


@dataclass
class Call:
    """A ``tessera`` that was started, and may still run."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> str:
        """Tell the tenant something; its answer (empty when it is gone)."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        """The next line of output; empty when there is none any more."""
        assert self.process.stdout
        return self._in_time(self.process.stdout.readline)

    def hear_error(self) -> str:
        """The next line of what it says about itself; empty when there is none any more."""
        assert self.process.stderr
        return self._in_time(self.process.stderr.readline)

    def _in_time(self, read: Callable[[], str]) -> str:
        """A line, or nothing where it would have kept us waiting: then everything that it started is killed."""
        guard = threading.Timer(PATIENCE_SECONDS, os.killpg, (self.pid, signal.SIGKILL))
        guard.start()
        try:
            return read().strip()
        finally:
            guard.cancel()

    def wait(self) -> int:
        """Until it is over; its exit code, negative where a signal ended it."""
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def close_input(self) -> None:
        """Tell it that there is nothing more to come."""
        if self.process.stdin:
            self.process.stdin.close()
            self.process.stdin = None

    def end(self) -> "Ended":
        """Close the input and wait."""
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return Ended(self.process.returncode, out, err)


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class World:
    """A state directory and the machine that runs there by default."""

    state: Path
    machine: str
    environment: dict[str, str]
    calls: list[Call]

    def start(self, *words: str, **variables: str) -> Call:
        process = subprocess.Popen(
            [*TESSERA, *words],
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        call = Call(process)
        self.calls.append(call)
        return call

    def call(self, *words: str, **variables: str) -> Ended:
        return self.start(*words, **variables).end()

    def run(self, *words: str, **variables: str) -> Call:
        """``tessera run`` on the machine; options, ``--`` and the command as words."""
        return self.start("run", "--simulate", self.machine, *words, **variables)

    def runs(self) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.call("ps", "-o", "json").json["runs"]
        return runs

    def named(self, name: str) -> dict[str, Any] | None:
        return next((run for run in self.runs() if run["name"] == name), None)

    def devices(self) -> list[dict[str, Any]]:
        document = self.call("devices", "--simulate", self.machine, "-o", "json").json
        devices: list[dict[str, Any]] = document["devices"]
        return devices

    @property
    def regions(self) -> list[str]:
        return sorted(path.name for path in self.state.glob("**/regions/*"))
