"""Start the command of a run: its environment, and a child that cannot outlive the one who watches it.

The child waits until its identity is in the book; then it becomes the command. It stays in our process group, so
that the terminal's keys reach it as if it had been started without us.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from tessera.core.errors import TesseraError, UnavailableError
from tessera.local.book import Run, grants_of, region_path
from tessera.local.machine import Machine
from tessera.runtime.native import SIMULATED, SIMULATED_CUDA, preload_value, require_library
from tessera.runtime.nvml import MACHINE_VARIABLE
from tessera.runtime.proc import crash_point

REGION_VARIABLE: Final = "TESSERA_REGION"
RUN_VARIABLE: Final = "TESSERA_RUN"
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class CommandError(TesseraError):
    """The command cannot be started; ``code`` is what a shell would exit with."""

    def __init__(self, word: str, why: str, code: int) -> None:
        self.word = word
        self.code = code
        super().__init__(f"{word}: {why}")


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments (the first is its own name) and its whole environment."""

    program: Path
    words: tuple[str, ...]
    environment: Mapping[str, str]


def find_program(word: str) -> Path:
    """The file that a shell would run for ``word``. Raises :class:`CommandError`."""
    folders = [""] if "/" in word else os.get_exec_path()
    paths = [Path(folder, word) for folder in folders]
    for path in paths:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    if "/" in word and paths[0].exists():
        why = "is a directory" if paths[0].is_dir() else "may not be executed; see its permissions"
        raise CommandError(word, why, NOT_EXECUTABLE)
    raise CommandError(word, "there is no such command", NOT_FOUND)


def require_libraries(*, simulated: bool) -> None:
    """Raise :class:`UnavailableError` where something is missing without which nothing may start."""
    preload_value("")
    if simulated:
        require_library(SIMULATED_CUDA)


def environment_of_run(machine: Machine, run: Run, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment that makes a process a member of the run: limiter, region and visible devices."""
    if run.placement is None:
        raise UnavailableError(f"run {run.name} holds no devices", "wait for them with --wait")
    uuids = ",".join(grant.uuid for grant in grants_of(run))
    added = {
        "LD_PRELOAD": preload_value(inherited.get("LD_PRELOAD", "")),
        REGION_VARIABLE: str(region_path(machine, run.uid)),
        RUN_VARIABLE: run.name,
        "CUDA_VISIBLE_DEVICES": uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids,
    }
    if machine.description is not None:
        path = [str(SIMULATED), *filter(None, [inherited.get("LD_LIBRARY_PATH")])]
        added |= {"LD_LIBRARY_PATH": ":".join(path), MACHINE_VARIABLE: str(machine.description)}
    return {**inherited, **added}


def become_subreaper() -> None:
    """Let descendants whose parents end stay under us instead of going to init."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(command: Command, mask: Iterable[signal.Signals], record: Callable[[int], None]) -> int:
    """Start the command with this signal mask after ``record`` was told its PID; the PID.

    The child is killed when we end, however that happens. If we end before it was recorded, it never becomes the
    command.
    """
    supervisor = os.getpid()
    prctl = ctypes.CDLL(None).prctl
    go_read, go_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go_write)
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            # We may have ended before that call: then nobody will write, and this read is the end.
            if os.getppid() == supervisor and os.read(go_read, 1):
                _become(command, mask)
        finally:
            os._exit(NOT_FOUND)
    os.close(go_read)
    try:
        crash_point("after-fork")
        record(pid)
        crash_point("after-record")
        os.write(go_write, b"!")
    finally:
        os.close(go_write)
    return pid


def _become(command: Command, mask: Iterable[signal.Signals]) -> NoReturn:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execve(command.program, command.words, dict(command.environment))  # noqa: S606 -- no shell on purpose
    except OSError as error:
        os.write(2, f"tessera: {command.words[0]}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)
