"""This node's devices, real or simulated: found, found again when the driver comes or goes, and who uses them.

A driver that is missing is no failure of the agent: the node has no devices until it comes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tessera.agent.driver import DriverFiles, real_files, simulated_files
from tessera.core.device import Device
from tessera.core.errors import UnavailableError
from tessera.runtime.nvml import (
    DeviceProcess,
    FaultWatch,
    Inventory,
    Nvml,
    ProcessSample,
    Reading,
    StaleLibraryError,
    open_nvml,
)
from tessera.runtime.nvml_limits import GroupLimits
from tessera.runtime.proc import PROC, all_pids, inner_identity
from tessera.vendors.registry import VENDORS
from tessera.vendors.spec import VendorSpec

FAULTS_SUFFIX: Final = ".faults"
"""Beside a simulated machine's description: lines of ``<uuid> <code>``, read as its devices' fault reports."""
NODE_ROOT: Final = Path("/")
NOTHING: Final = Inventory((), (), "")

_VENDOR: Final = {vendor.name: vendor for vendor in VENDORS}


def vendor_of(device: Device) -> VendorSpec:
    """The row of a device's vendor."""
    return _VENDOR[device.vendor]


class FaultSource(Protocol):
    """Where devices report faults."""

    def take(self) -> tuple[tuple[str, int], ...]:
        """What came since the last call, as (uuid, code). Raises :class:`UnavailableError`."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What one look found; ``problem`` says why there may be less than there is."""

    inventory: Inventory
    files: DriverFiles
    problem: str = ""


class Machine:
    """See the module. Close it when done.

    ``description`` is that of a simulated machine, whose driver's libraries lie in ``simulator``; ``root`` is
    where we see the node's own root directory.
    """

    def __init__(self, description: Path | None, simulator: Callable[[], Path], root: Path = NODE_ROOT) -> None:
        self.description = description
        self._simulator, self._root = simulator, root
        self._stack = ExitStack()
        self._nvml: Nvml | None = None
        self._faults: FaultSource | None = None
        self._readable: frozenset[str] = frozenset()
        self._reopen = False
        self._outer: dict[int, int] = {}
        self._paused = ""
        self.openings = 0
        """How often the driver was opened."""
        self.is_stale = False
        """Whether the driver was replaced under the library that this process has: only a new process sees it."""

    def pause(self, why: str) -> None:
        """Let go of the driver and leave it alone, with the reason; go on with an empty one."""
        self._paused = why
        if why:
            self.close()

    def look(self) -> Found:
        """The devices now. The driver is opened anew by the look after one that found something wrong."""
        if self._paused:
            return Found(NOTHING, DriverFiles(()), self._paused)
        if self._reopen:
            self.close()
        try:
            nvml = self._opened()
            inventory = nvml.inventory()
        except UnavailableError as error:
            self.close()
            self.is_stale = isinstance(error, StaleLibraryError)
            return Found(NOTHING, DriverFiles(()), error.what)
        self._readable = frozenset(device.uuid for device in inventory.devices)
        if inventory.faults:
            problem = "; ".join(f"device {fault.index} is set aside: {fault.why}" for fault in inventory.faults)
            self._reopen = True
            return Found(inventory, self._files(nvml, inventory), problem)
        return Found(inventory, self._files(nvml, inventory))

    def _opened(self) -> Nvml:
        if self._nvml is None:
            self._nvml = self._stack.enter_context(open_nvml(self.description))
            self.openings += 1
        return self._nvml

    def _files(self, nvml: Nvml, inventory: Inventory) -> DriverFiles:
        devices = inventory.devices
        if self.description is not None:
            return simulated_files(devices, self.description, self._simulator())
        if not devices:
            return DriverFiles(())
        spec = vendor_of(devices[0])
        minors = [(device, nvml.minor(device.uuid)) for device in devices]
        return real_files(minors, spec.node, spec.visible_devices_env, self._root)

    def group_limits(self) -> GroupLimits | None:
        """The driver's memory limits of cgroups; ``None`` while it is away."""
        return None if self._nvml is None else self._nvml.group_limits()

    def address(self, uuid: str) -> str | None:
        """A device's PCI address; ``None`` where the driver is away or does not say."""
        return None if self._nvml is None or uuid not in self._readable else self._nvml.address(uuid)

    def reading(self, uuid: str) -> Reading:
        """What a device reports now; nothing where the driver is away."""
        if self._nvml is None or uuid not in self._readable:
            return Reading(None, None)
        return self._nvml.reading(uuid)

    def processes(self) -> tuple[DeviceProcess, ...]:
        """Who uses the devices, by PIDs of our own namespace."""
        if self._nvml is None:
            return ()
        found = self._nvml.processes()
        if self.description is None:
            return found
        self._outer = outer_pids({process.pid for process in found}, self._state(self.description))
        return tuple(renumbered(found, self._outer))

    def samples(self, uuid: str, after_us: int) -> tuple[ProcessSample, ...] | None:
        """What part of a device each process had, by PIDs of our namespace; ``None`` where nobody says.

        Of a simulated machine only processes that :meth:`processes` showed are told apart, and two of one PID in
        their containers not at all: each is shown with the samples of both.
        """
        if self._nvml is None or uuid not in self._readable:
            return None
        found = self._nvml.process_samples(uuid, after_us)
        if self.description is None or not found:
            return found
        if not {sample.pid for sample in found} <= set(self._outer.values()):
            self.processes()
        return tuple(
            ProcessSample(outer, sample.stamp_us, sample.percent)
            for outer, inner in self._outer.items()
            for sample in found
            if sample.pid == inner
        )

    @staticmethod
    def _state(description: Path) -> Path:
        return description.with_name(description.name + ".state")

    def take_faults(self) -> tuple[tuple[str, int], ...]:
        """Faults that devices reported since the last call, as (uuid, code)."""
        if self._paused:
            return ()
        if self._faults is None:
            self._faults = self._fault_source()
        if self._faults is None:
            return ()
        try:
            return self._faults.take()
        except UnavailableError:
            self.close()
            return ()

    def _fault_source(self) -> FaultSource | None:
        if self.description is not None:
            return FaultFile(self.description.with_name(self.description.name + FAULTS_SUFFIX))
        watch: FaultWatch | None = self._nvml.watch_faults() if self._nvml else None
        return watch

    def close(self) -> None:
        """Let go of the driver: nothing of ours may keep it from being replaced."""
        self._stack.close()
        self._stack = ExitStack()
        self._nvml = self._faults = None
        self._reopen = False


class FaultFile:
    """Fault reports of a simulated machine: lines that somebody appends to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def take(self) -> tuple[tuple[str, int], ...]:
        """The whole lines that were appended since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        words = (line.split() for line in whole.decode(errors="replace").splitlines())
        return tuple((w[0], int(w[1])) for w in words if len(w) == 2 and w[1].isdigit())


def outer_processes(found: Iterable[DeviceProcess], state: Path) -> Iterable[DeviceProcess]:
    """A simulated machine's processes by PIDs of our namespace: it only knows each one's own."""
    listed = tuple(found)
    return renumbered(listed, outer_pids({process.pid for process in listed}, state))


def outer_pids(inner: Collection[int], state: Path) -> dict[int, int]:
    """PIDs of our namespace to the PIDs that a simulated machine knows them by.

    A process of the machine has its state file mapped, whatever that file is called in its container.
    """
    if not inner:
        return {}
    try:
        mark = f" {state.stat().st_ino} ".encode()
    except OSError:
        return {}
    own = ((pid, inner_identity(pid)[1]) for pid in all_pids())
    return {pid: number for pid, number in own if number in inner and _maps(pid, mark)}


def renumbered(found: Iterable[DeviceProcess], outer: Mapping[int, int]) -> Iterable[DeviceProcess]:
    """Processes by the PIDs that :func:`outer_pids` found for theirs; memory only where it is one process's."""
    by_inner: dict[int, list[DeviceProcess]] = {}
    for process in found:
        by_inner.setdefault(process.pid, []).append(process)
    inners = list(outer.values())
    for pid, inner in outer.items():
        is_one = inners.count(inner) == 1  # of two that the machine knows by one PID, it shows one's memory
        for process in by_inner.get(inner, ()):
            yield DeviceProcess(pid, process.uuid, process.used_bytes if is_one else None)


def _maps(pid: int, mark: bytes) -> bool:
    try:
        return mark in (PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return False
