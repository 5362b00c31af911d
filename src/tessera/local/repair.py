"""Mend what a killed process left: shares of runs that are over, files of no run, limits that are not the book's.

A run is over when nobody stands for it: its supervisor, the process of its command and every process in its
region are dead. While one of them lives the share stays booked, because what it holds is still held. A region is
made after its run is in the book and removed after the run has left it, so a region without a run is rubbish
whenever the book is locked for writing.

The book says what a run may use; whoever changes that lowers the region first and raises it last
(:mod:`tessera.local.resize`), so a region whose limits differ from the book's was left on the way and may be set
to them. One whose limits are all zero is being given back, and stays so.
"""

from collections.abc import Iterable
from contextlib import suppress

from tessera.core.errors import TesseraError, UnavailableError
from tessera.core.placement import Grant
from tessera.local.book import Book, Run, grants_of, region_path
from tessera.local.machine import Machine, bytes_of
from tessera.runtime.native import DeviceLimits, LiveRegion
from tessera.runtime.proc import boot_id, is_alive, pid_namespace, runs_since
from tessera.runtime.region import load_region
from tessera.wire.shm import Region, RegionDevice, RegionProcess


def read_region(machine: Machine, uid: str) -> Region | None:
    """The region of a run as it is now; ``None`` where there is none that can be read."""
    try:
        return load_region(region_path(machine, uid))
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
    """Release every run that is over, sweep the files of none, and put the book's limits in force.

    Gives the runs left. Call inside a change.
    """
    runs = book.runs()
    left = tuple(run for run in runs if not is_over(book.machine, run))
    for run in runs:
        if run not in left:
            book.remove(run.uid)
    sweep_regions(book.machine, left)
    for run in left:
        enforce(book.machine, run)
    return left


def limits_of(run: Run) -> tuple[DeviceLimits, ...]:
    """What the region of a run must say, in its order of devices."""
    return tuple(_limits(grant) for grant in grants_of(run))


def _limits(grant: Grant) -> DeviceLimits:
    return DeviceLimits(
        uuid=grant.uuid,
        memory_limit=bytes_of(grant.share.memory_limit),
        memory_request=bytes_of(grant.share.memory_request),
        compute_limit_milli=grant.share.compute_limit,
        compute_request_milli=grant.share.compute_request,
    )


def is_revoked(region: Region) -> bool:
    """Whether nothing of it may be used any more: its run is being given back."""
    return all(device.memory_limit == 0 for device in region.devices)


def differs(region: Region, run: Run) -> bool:
    """Whether a region says something else than the book, in what it enforces or shows."""
    return not is_revoked(region) and tuple(_said(device) for device in region.devices) != limits_of(run)


def _said(device: RegionDevice) -> DeviceLimits:
    return DeviceLimits(
        uuid=device.uuid,
        memory_limit=-1 if device.memory_limit is None else device.memory_limit,
        memory_request=device.memory_request,
        compute_limit_milli=device.compute_limit_milli,
        compute_request_milli=device.compute_request_milli,
    )


def enforce_now(book: Book, uid: str) -> None:
    """Let the region of a run say what the book says of it now. Call inside a change."""
    for run in book.runs():
        if run.uid == uid:
            enforce(book.machine, run)


def enforce(machine: Machine, run: Run) -> None:
    """Let the region of a run say what the book says. Call inside a change."""
    region = None if run.waits else read_region(machine, run.uid)
    if region is None or not differs(region, run):
        return
    limits = limits_of(run)
    with suppress(UnavailableError), LiveRegion(region_path(machine, run.uid), len(limits)) as live:
        for device, limit in enumerate(limits):  # another user's cannot be opened: its supervisor does this
            live.resize(device, limit)


def sweep_regions(machine: Machine, runs: Iterable[Run]) -> None:
    """Remove the regions, and the halves of some, that belong to no run of the book."""
    held = {run.uid for run in runs}
    for path in machine.regions.iterdir():
        if path.name.split(".", 1)[0] not in held:
            with suppress(PermissionError):  # another user's, in a sticky directory: they remove it themselves
                path.unlink(missing_ok=True)
