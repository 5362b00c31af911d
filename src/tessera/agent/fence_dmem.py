"""The fence of the kernel alone: the dmem controller of cgroup v2, for drivers that charge their memory to it.

Files in the cgroup's directory: ``dmem.max`` and ``dmem.current``, one line a region (a device's memory). AMD's
and Intel's drivers charge there; NVIDIA's does too, but its limits are its own to set.

What it does not hold: memory that AMD's driver moves to the system is charged to nobody, the whole device is still
what programs are shown, and a limit below what is used takes nothing back.

Source: Linux 6.14, ``kernel/cgroup/dmem.c`` and the cgroup-v2 document; names of regions from amdgpu
(``amdgpu_vram_mgr_init``) and xe; gaps from AMD's device plugin in Project-HAMi
(``internal/pkg/dmem/dmem.go@480ebd2``).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tessera.agent.fence import Held, Refused

CAPACITY, CURRENT, MAX = "dmem.capacity", "dmem.current", "dmem.max"
_UNLIMITED: Final = "max"
_PREFIX: Final = "drm/"
_MEMORY: Final = ("vram", "vram0")
"""Regions that are a device's own memory. A second tile's (``vram1``) would need a limit of its own."""
REMEDY: Final = (
    "see that the kernel's dmem controller is enabled for containers, or start the agent with --tier=hook"
)


class DmemFence:
    """See the module. ``regions`` are the devices' by uuid; ``enable`` brings a cgroup the controller's files."""

    name = "the kernel's dmem controller"

    def __init__(self, regions: Mapping[str, str], enable: Callable[[Path], None]) -> None:
        self._regions, self._enable = regions, enable

    def held(self, uuid: str, group: Path) -> Held | Refused:
        """What holds for a cgroup on a device."""
        region = self._regions[uuid]
        try:
            limits, used = read_regions(group / MAX), read_regions(group / CURRENT)
        except (OSError, ValueError) as error:
            return Refused(f"{group} cannot be read: {error}", REMEDY)
        return Held(limits.get(region), used.get(region) or 0)

    def set(self, uuid: str, group: Path, limit: int | None) -> Refused | None:
        """Limit a cgroup, or not at all. A line for one region leaves the others as they are."""
        self._enable(group)
        line = f"{self._regions[uuid]} {_UNLIMITED if limit is None else limit}\n"
        try:
            file = os.open(group / MAX, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        except OSError as error:
            return Refused(f"{group / MAX} cannot be written: {error.strerror}", REMEDY)
        return None


def read_regions(path: Path) -> dict[str, int | None]:
    """Bytes by region of a file of the controller, ``None`` where there is no limit; the last line counts.

    Raises ``OSError`` and, for what is no such file, ``ValueError``.
    """
    lines = (line.rsplit(None, 1) for line in path.read_text().splitlines() if line.strip())
    return {region: None if value == _UNLIMITED else int(value) for region, value in lines}


def region_of(address: str, capacity: Mapping[str, int | None]) -> str | None:
    """The region of the device at a PCI address, among those that the kernel has; ``None`` where it has none.

    Addresses are compared as numbers: domains are written with four digits or with eight, in either case.
    """
    wanted = _numbers(address)
    for region in capacity:
        place, _, memory = region.removeprefix(_PREFIX).rpartition("/")
        if region.startswith(_PREFIX) and memory in _MEMORY and wanted is not None and _numbers(place) == wanted:
            return region
    return None


def _numbers(address: str) -> tuple[int, ...] | None:
    """Domain, bus, device and function; KFD writes a colon before the function."""
    try:
        found = tuple(int(part, 16) for part in address.replace(".", ":").split(":"))
    except ValueError:
        return None
    return found if len(found) == 4 else None
