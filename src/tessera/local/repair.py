"""Mend what a killed process left: shares of runs that are over, and files that belong to no run.

A run is over when nobody stands for it: its supervisor, the process of its command and every process in its
region are dead. While one of them lives the share stays booked, because what it holds is still held. A region is
made after its run is in the book and removed after the run has left it, so a region without a run is rubbish
whenever the book is locked for writing.
"""

from collections.abc import Iterable
from contextlib import suppress

from tessera.core.errors import TesseraError
from tessera.local.book import Book, Run, region_path
from tessera.local.machine import Machine
from tessera.runtime.proc import boot_id, is_alive, pid_namespace, runs_since
from tessera.wire.shm import Region, RegionProcess, parse_region


def read_region(machine: Machine, uid: str) -> Region | None:
    """The region of a run as it is now; ``None`` where there is none that can be read."""
    try:
        return parse_region(region_path(machine, uid).read_bytes())
    except (OSError, TesseraError):
        return None


def living(region: Region | None) -> tuple[RegionProcess, ...]:
    """The processes of a region that live; those of another PID namespace count as living."""
    return tuple(process for process in region.processes if _lives(process)) if region else ()


def _lives(process: RegionProcess) -> bool:
    if process.pid_namespace not in (0, pid_namespace()):
        return True
    return runs_since(process.pid, process.start_ticks)


def is_watched(run: Run) -> bool:
    """Whether the run's supervisor lives."""
    return is_alive(run.supervisor)


def is_over(machine: Machine, run: Run) -> bool:
    """Whether nobody stands for the run any more."""
    if run.supervisor.boot != boot_id():
        return True
    if is_watched(run) or (run.child is not None and is_alive(run.child)):
        return False
    return run.waits or not living(read_region(machine, run.uid))


def repair(book: Book) -> tuple[Run, ...]:
    """Release every run that is over and sweep the files of none; the runs left. Call inside a change."""
    runs = book.runs()
    left = tuple(run for run in runs if not is_over(book.machine, run))
    for run in runs:
        if run not in left:
            book.remove(run.uid)
    sweep_regions(book.machine, left)
    return left


def sweep_regions(machine: Machine, runs: Iterable[Run]) -> None:
    """Remove the regions, and the halves of some, that belong to no run of the book."""
    held = {run.uid for run in runs}
    for path in machine.regions.iterdir():
        if path.name.split(".", 1)[0] not in held:
            with suppress(PermissionError):  # another user's, in a sticky directory: they remove it themselves
                path.unlink(missing_ok=True)
