"""Which processes of a run use a device without being limited: a decision on what driver and region say.

A limited process registers in the region before it reaches the driver. One that the driver lists and the region
does not has no limit: a static program, a dropped ``LD_PRELOAD``, another libc. A single look may catch a process
between the two, so it takes two looks in a row.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from tessera.core.units import BYTES_PER_MIB, render_mib
from tessera.runtime.nvml import DeviceProcess


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found: processes seen unlimited for the first time, and those seen so again."""

    suspects: frozenset[int]
    escaped: tuple[DeviceProcess, ...]


def look_at(
    using: Iterable[DeviceProcess],
    registered: Collection[tuple[int, int]],
    identify: Callable[[int], tuple[int, int] | None],
    before: Look,
) -> Look:
    """The unlimited processes among those that use a device.

    ``registered`` are (PID namespace, PID in it) of the region's processes; ``identify`` gives the same of a
    process of this run, and ``None`` for everybody else's.
    """
    found: dict[int, DeviceProcess] = {}
    for process in using:
        identity = identify(process.pid)
        if identity is not None and identity not in registered:
            found.setdefault(process.pid, process)
    again = tuple(process for pid, process in found.items() if pid in before.suspects)
    return Look(frozenset(found), again)


NOTHING_SEEN = Look(frozenset(), ())


def escape_message(process: DeviceProcess, command: str, device: str, *, stopped: bool) -> str:
    """What happened, to whom, and the way past it."""
    held = "" if process.used_bytes is None else f" ({render_mib(process.used_bytes // BYTES_PER_MIB)})"
    what = f"process {process.pid} ({command}) used {device}{held} without libtessera.so, so no limit holds for it"
    if not stopped:
        return f"warning: {what}; it goes on because of --allow-unlimited"
    why = "it is a static program, lost LD_PRELOAD or uses another libc"
    return f"stopped: {what}; {why}; --allow-unlimited lets such programs run"
