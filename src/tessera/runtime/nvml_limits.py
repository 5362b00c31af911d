"""NVML's memory limits of cgroups: what the driver holds for a cgroup on a device, and how to change it.

From driver r615 on. Soft limits are never set: a soft limit is added to every cgroup above, stays there when the
cgroup is removed, and makes neighbours candidates for eviction.

Source: NVML API reference of CUDA 13.4 (``nvmlDeviceSetMemoryLimits_v1``); NVIDIA, "MPS v3 Memory Partitioning".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any, Final


class Cause(StrEnum):
    """Why the driver refuses, as far as it matters what to do about it."""

    OLD = "old"
    """It knows no such limits."""
    OFF = "off"
    """It does not account for cgroups, or (asked for a limit that nobody set) there is none."""
    FORBIDDEN = "forbidden"
    NO_GROUP = "no group"
    """The cgroup is not there, or has no files of the kernel's controller."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DriverSays:
    """A refusal of the driver: the cause, and its own words."""

    cause: Cause
    words: str


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """A cgroup's memory on a device, in bytes; ``limit`` is ``None`` where there is none."""

    limit: int | None
    used: int


_NOT_THERE: Final = DriverSays(Cause.OTHER, "the device cannot be read now")


class GroupLimits:
    """The limits of cgroups on the devices of an open NVML."""

    def __init__(self, pynvml: ModuleType, handles: Mapping[str, Any]) -> None:
        self._nvml: Any = pynvml
        self._handles = handles

    def memory(self, uuid: str, group: str) -> GroupMemory | DriverSays:
        """What holds for a cgroup (its directory), or for the nearest one above it that has a limit."""
        nvml, handle = self._nvml, self._handles.get(uuid)
        if handle is None:
            return _NOT_THERE
        asked = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=group.encode())
        try:
            nvml.nvmlDeviceGetMemoryLimits_v1(handle, asked)
        except nvml.NVMLError as error:
            return self._says(error)
        hard = int(asked.hardLimit)
        return GroupMemory(None if hard == nvml.NVML_DEVICE_MEMORY_LIMIT_MAX else hard, int(asked.currentUsed))

    def set(self, uuid: str, group: str, limit: int | None) -> DriverSays | None:
        """Limit a cgroup to so many bytes, or not at all; ``None`` where the driver took it."""
        nvml, handle = self._nvml, self._handles.get(uuid)
        if handle is None:
            return _NOT_THERE
        hard = nvml.NVML_DEVICE_MEMORY_LIMIT_MAX if limit is None else limit
        asked = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=group.encode(), softLimit=0, hardLimit=hard)
        try:
            nvml.nvmlDeviceSetMemoryLimits_v1(handle, asked)
        except nvml.NVMLError as error:
            return self._says(error)
        return None

    def _says(self, error: Any) -> DriverSays:
        cause = _CAUSES.get(int(error.value), Cause.OTHER)
        return DriverSays(cause, str(error))


# Source: nvmlReturn_t of nvml.h: INVALID_ARGUMENT and others say nothing that a person could act on.
_CAUSES: Final = {3: Cause.OFF, 4: Cause.FORBIDDEN, 6: Cause.NO_GROUP, 13: Cause.OLD}
