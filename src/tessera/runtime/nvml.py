"""Devices of this machine, through NVML: what there is, what is used of it, and by which processes.

``nvidia-ml-py`` is imported only here and only when asked. A simulated machine goes the same way: its description
is named by ``TESSERA_SIM_MACHINE``, and the simulated library is loaded before NVML's bindings look for theirs, so
that they find it by its name. One process sees one machine, real or simulated, for its whole life.

A device that fails to answer does not hide the others: it is set aside with what the driver said.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from tessera.core.device import Device
from tessera.core.errors import UnavailableError
from tessera.core.units import BYTES_PER_MIB, MiB
from tessera.runtime.native import SIMULATED_NVML, require_library
from tessera.runtime.nvml_limits import GroupLimits
from tessera.vendors.models import find_model

MACHINE_VARIABLE: Final = "TESSERA_SIM_MACHINE"
VENDOR: Final = "NVIDIA"
DEVICE_FILES: Final = ("/dev/nvidia", "/dev/dxg")
"""What every process that uses a real device has open."""

_NO_DRIVER: Final = "--simulate 1xA100-SXM4-80GB runs without a device"
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Fault:
    """A device that could not be read, by its index, and what the driver said."""

    index: int
    why: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of a machine and those set aside."""

    devices: tuple[Device, ...]
    faults: tuple[Fault, ...]
    driver: str


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that uses a device, as the driver sees it; ``used_bytes`` is ``None`` where it does not say."""

    pid: int
    uuid: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device reports now: bytes in use by anybody, and percent of time with work, if it says so."""

    used_bytes: int | None
    busy_percent: int | None


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process's part of a device over one sample period of the driver.

    ``percent`` of the period's time, in whole percents; ``stamp_us`` is the end of the period, in microseconds of
    the wall clock. How long a period is, the driver does not say.

    Source: NVML API reference, nvmlProcessUtilizationSample_t.
    """

    pid: int
    stamp_us: int
    percent: int


class StaleLibraryError(UnavailableError):
    """The driver is another than this process's library speaks with: it was replaced since the process started."""


class Nvml:
    """An initialised NVML. Opened by :func:`open_nvml`."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}

    def inventory(self) -> Inventory:
        """All devices, by index. Raises :class:`UnavailableError` where they cannot even be counted."""
        count = self._or_raise(self._nvml.nvmlDeviceGetCount)
        found = [self._device(index) for index in range(count)]
        driver = self._or_none(self._nvml.nvmlSystemGetDriverVersion)
        return Inventory(
            devices=tuple(entry for entry in found if isinstance(entry, Device)),
            faults=tuple(entry for entry in found if isinstance(entry, Fault)),
            driver=_text(driver or ""),
        )

    def _device(self, index: int) -> Device | Fault:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            name = _text(nvml.nvmlDeviceGetName(handle))
            memory = self._usable(handle) // BYTES_PER_MIB
        except nvml.NVMLError as error:
            return Fault(index, str(error))
        if self._is_partitioned(handle):
            return Fault(index, f"{name} is partitioned by MIG, which is not shared")
        self._handles[uuid] = handle
        model = find_model(name)
        return Device(
            uuid=uuid,
            index=index,
            model=name,
            memory_mib=MiB(memory),
            vendor=VENDOR,
            numa=self._numa(handle),
            milli_tflops=model.milli_tflops if model else None,
        )

    def _usable(self, handle: object) -> int:
        """Bytes that programs can have: without what the driver keeps, where it tells them apart.

        Shares of the whole card would not fit on it otherwise (KAI-Scheduler#2212: 450 MiB of a T4).
        """
        nvml = self._nvml
        told = self._or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        if told is not None:
            return int(told.total) - int(told.reserved)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)

    def _is_partitioned(self, handle: object) -> bool:
        mode = self._or_none(lambda: self._nvml.nvmlDeviceGetMigMode(handle))
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _numa(self, handle: object) -> int | None:
        """The NUMA node that the driver names, else the one that the kernel names for its PCI address."""
        node = self._or_none(lambda: self._nvml.nvmlDeviceGetNumaNodeId(handle))
        if node is not None:
            return int(node)
        address = self._address(handle)
        if address is None or os.environ.get(MACHINE_VARIABLE):
            return None
        try:
            found = int(Path("/sys/bus/pci/devices", address, "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return found if found >= 0 else None

    def _address(self, handle: object) -> str | None:
        pci = self._or_none(lambda: self._nvml.nvmlDeviceGetPciInfo(handle))
        return None if pci is None else _text(pci.busId).lower()[-12:]

    def address(self, uuid: str) -> str | None:
        """A device's PCI address as the kernel writes it (``0000:07:00.0``); ``None`` where the driver does not
        say.
        """
        return self._address(self._handles[uuid])

    def group_limits(self) -> GroupLimits:
        """The memory limits of cgroups, for as long as this NVML is open."""
        return GroupLimits(self._nvml, self._handles)

    def processes(self) -> tuple[DeviceProcess, ...]:
        """Every process that uses a known device, once a device; those of devices that fail are left out."""
        calls = (self._nvml.nvmlDeviceGetComputeRunningProcesses, self._nvml.nvmlDeviceGetGraphicsRunningProcesses)
        found: dict[tuple[int, str], DeviceProcess] = {}
        for uuid, handle in self._handles.items():
            for row in (row for call in calls for row in self._or_none(partial(call, handle)) or ()):
                used = None if row.usedGpuMemory is None else int(row.usedGpuMemory)
                found[row.pid, uuid] = DeviceProcess(int(row.pid), uuid, used)
        return tuple(found.values())

    def reading(self, uuid: str) -> Reading:
        """What the device says now; ``None`` for what it does not."""
        handle = self._handles[uuid]
        memory = self._or_none(lambda: self._nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = self._or_none(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle))
        return Reading(
            used_bytes=None if memory is None else int(memory.used),
            busy_percent=None if rates is None else int(rates.gpu),
        )

    def process_samples(self, uuid: str, after_us: int) -> tuple[ProcessSample, ...] | None:
        """The newest sample of each process that was busy in a period which ended after ``after_us``.

        Empty where none was, and now and then when processes begin: the next look has them. ``None`` where the
        driver does not say. One process may have several rows.

        Source: NVML API reference, nvmlDeviceGetProcessUtilization: NOT_FOUND where there is no newer sample;
        INSUFFICIENT_SIZE comes where a process begins between the question for the size and that for the samples.
        """
        nvml = self._nvml
        try:
            rows = nvml.nvmlDeviceGetProcessUtilization(self._handles[uuid], after_us)
        except nvml.NVMLError as error:
            nothing = (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INSUFFICIENT_SIZE)
            return () if error.value in nothing else None
        return tuple(ProcessSample(int(row.pid), int(row.timeStamp), int(row.smUtil)) for row in rows)

    def minor(self, uuid: str) -> int | None:
        """The number in the name of the device's node; ``None`` where the driver does not say."""
        found = self._or_none(lambda: self._nvml.nvmlDeviceGetMinorNumber(self._handles[uuid]))
        return None if found is None else int(found)

    def watch_faults(self) -> "FaultWatch | None":
        """The faults that devices report from now on; ``None`` where the driver does not report any."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return None
        return FaultWatch(nvml, events)

    def _or_raise(self, call: Callable[[], _Value]) -> _Value:
        try:
            return call()
        except self._nvml.NVMLError as error:
            raise UnavailableError(f"the driver does not list its devices: {error}", "see nvidia-smi") from error

    def _or_none(self, call: Callable[[], _Value]) -> _Value | None:
        try:
            return call()
        except self._nvml.NVMLError:
            return None


class FaultWatch:
    """Faults of devices as NVML's events tell them."""

    def __init__(self, pynvml: Any, events: Any) -> None:
        self._nvml, self._events = pynvml, events

    def take(self) -> tuple[tuple[str, int], ...]:
        """What was reported since the last call, as (uuid, code). Never waits.

        Raises :class:`UnavailableError` where the driver reports no more.
        """
        nvml = self._nvml
        found: list[tuple[str, int]] = []
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                found.append((_text(nvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)))
            except nvml.NVMLError_Timeout:
                return tuple(found)
            except nvml.NVMLError as error:
                raise UnavailableError(
                    f"the driver reports no faults any more: {error}", "see nvidia-smi"
                ) from error


def _text(value: object) -> str:
    """NVML's strings are bytes in some versions of its bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@contextmanager
def open_nvml(description: Path | None = None) -> Iterator[Nvml]:
    """NVML of this machine, or of the simulated one described in a file.

    Raises :class:`UnavailableError` where there is no driver (or no simulated library).
    """
    if description is not None:
        _simulate(description)
    nvml = import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise StaleLibraryError(f"the driver was replaced ({error})", "start this process anew") from error
        raise UnavailableError(f"no NVIDIA driver found ({error})", _NO_DRIVER) from error
    try:
        yield Nvml(nvml)
    finally:
        nvml.nvmlShutdown()


def _simulate(description: Path) -> None:
    """Make the simulated library the one that NVML's bindings find: a loaded library is found by its SONAME."""
    os.environ[MACHINE_VARIABLE] = str(description)
    ctypes.CDLL(str(require_library(SIMULATED_NVML)), mode=ctypes.RTLD_GLOBAL)


def discover(description: Path | None = None) -> tuple[Device, ...]:
    """The devices of this machine that can be shared. Raises as :func:`open_nvml` and :meth:`Nvml.inventory`."""
    with open_nvml(description) as nvml:
        return nvml.inventory().devices
