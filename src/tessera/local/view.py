"""What the commands show: machines, devices and runs as values, from the book, the regions and the driver.

These are the documents of ``-o json``: field names are stable, memory is in MiB (rounded up where something is in
use), compute in thousandths of a device, time in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.core.device import Device
from tessera.core.fleet import Usage
from tessera.core.placement import Grant
from tessera.core.units import BYTES_PER_MIB
from tessera.local.book import Run, grants_of, open_book
from tessera.local.machine import LEDGER, Machine, node_of
from tessera.local.refusal import snapshot_of
from tessera.local.repair import is_watched, living, read_region, repair
from tessera.runtime.nvml import Fault, Inventory, Nvml, Reading
from tessera.runtime.proc import age_seconds, command_of
from tessera.wire.shm import Region, RegionDevice

ISOLATION: Final = "hook"
"""Who enforces a share on this machine: the preloaded library."""
NO_READING: Final = Reading(None, None)


class State(StrEnum):
    """How a run stands."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    """It runs, and its launches are held until it is resumed."""
    UNWATCHED = "unwatched"
    """Its supervisor was killed; processes that it left still hold the share, and the share stays theirs."""


@dataclass(frozen=True, slots=True)
class ShareView:
    """What a run has of one device, and what it uses of it."""

    index: int
    uuid: str
    model: str
    memory_limit_mib: int
    memory_used_mib: int
    memory_peak_mib: int
    compute_request_milli: int
    compute_limit_milli: int
    refused: int
    exclusive: bool
    priority: str = "medium"
    memory_spilled_mib: int = 0
    device_full: int = 0


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process that holds a part of a share."""

    pid: int
    command: str
    memory_used_mib: int


@dataclass(frozen=True, slots=True)
class RunView:
    """One run."""

    id: str
    name: str
    state: State
    user: str
    pid: int
    supervisor_pid: int
    age_seconds: float
    command: tuple[str, ...]
    machine: str
    simulated: bool
    devices: tuple[ShareView, ...]
    processes: tuple[ProcessView, ...]
    paused: bool = False

    @property
    def memory_used_mib(self) -> int:
        """On all its devices together."""
        return sum(share.memory_used_mib for share in self.devices)

    @property
    def memory_limit_mib(self) -> int:
        """On all its devices together."""
        return sum(share.memory_limit_mib for share in self.devices)

    @property
    def compute_milli(self) -> int:
        """Reserved, on all its devices together."""
        return sum(share.compute_request_milli for share in self.devices)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device: what there is, what is allocated (the ledger's), what is in use (the driver's)."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    memory_allocated_mib: int
    memory_free_mib: int
    memory_used_mib: int | None
    busy_percent: int | None
    compute_allocated_milli: int
    shares: int
    exclusive: bool
    numa: int | None
    healthy: bool
    isolation: str = ISOLATION


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine and everything on it."""

    machine: str
    simulated: bool
    driver: str
    devices: tuple[DeviceView, ...]
    set_aside: tuple[Fault, ...]
    runs: tuple[RunView, ...]


def mended_runs(machine: Machine) -> tuple[Run, ...]:
    """The runs of a machine, after what crashed ones left was mended. Makes no book where there is none."""
    if not (machine.directory / LEDGER).exists():
        return ()
    with open_book(machine) as book, book.change():
        return repair(book)


def run_view(machine: Machine, run: Run) -> RunView:
    """One run as it is now."""
    region = read_region(machine, run.uid)
    who = run.child or run.supervisor
    return RunView(
        id=run.uid,
        name=run.name,
        state=_state(run, region),
        user=run.user,
        pid=who.pid,
        supervisor_pid=run.supervisor.pid,
        age_seconds=round(age_seconds(run.supervisor), 1),
        command=run.command,
        machine=machine.name,
        simulated=machine.is_simulated,
        paused=region is not None and region.paused,
        devices=_shares(run, region),
        processes=tuple(
            ProcessView(p.pid, command_of(p.pid) or p.command, _mib(sum(p.used_bytes))) for p in living(region)
        ),
    )


def _state(run: Run, region: Region | None) -> State:
    if run.waits:
        return State.WAITING
    if not is_watched(run):
        return State.UNWATCHED
    if run.child is None:
        return State.STARTING
    return State.PAUSED if region is not None and region.paused else State.RUNNING


def _mib(amount: int) -> int:
    return -(-amount // BYTES_PER_MIB)


def _shares(run: Run, region: Region | None) -> tuple[ShareView, ...]:
    used = {device.uuid: device for device in region.devices} if region else {}
    return tuple(_share(grant, used.get(grant.uuid)) for grant in grants_of(run))


def _share(grant: Grant, device: RegionDevice | None) -> ShareView:
    return ShareView(
        index=grant.index,
        uuid=grant.uuid,
        model=grant.model,
        memory_limit_mib=grant.share.memory_limit,
        memory_used_mib=_mib(device.used_bytes) if device else 0,
        memory_peak_mib=_mib(device.peak_bytes) if device else 0,
        compute_request_milli=grant.share.compute_request,
        compute_limit_milli=grant.share.compute_limit,
        refused=device.refused if device else 0,
        exclusive=grant.share.exclusive,
        priority=grant.share.priority.word,
        memory_spilled_mib=_mib(device.memory.spilled_bytes) if device else 0,
        device_full=device.memory.full if device else 0,
    )


def look_at(machine: Machine, nvml: Nvml) -> MachineView:
    """The whole machine now, mended: its devices, what the driver counts, and its runs."""
    inventory = nvml.inventory()
    readings = {device.uuid: nvml.reading(device.uuid) for device in inventory.devices}
    return machine_view(machine, inventory, readings, mended_runs(machine))


def machine_view(
    machine: Machine, inventory: Inventory, readings: Mapping[str, Reading], runs: Sequence[Run]
) -> MachineView:
    """The whole machine as it is now; ``readings`` by uuid."""
    usage = snapshot_of(node_of(machine, inventory), runs).usage
    return MachineView(
        machine=machine.name,
        simulated=machine.is_simulated,
        driver=inventory.driver,
        devices=tuple(
            _device(device, readings.get(device.uuid, NO_READING), usage, row)
            for row, device in enumerate(inventory.devices)
        ),
        set_aside=inventory.faults,
        runs=tuple(run_view(machine, run) for run in runs),
    )


def _device(device: Device, reading: Reading, usage: Usage, row: int) -> DeviceView:
    taken, exclusive = int(usage.memory[row]), bool(usage.exclusive[row])
    return DeviceView(
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        memory_mib=device.memory_mib,
        memory_allocated_mib=taken,
        memory_free_mib=0 if exclusive else max(0, device.memory_mib - taken),
        memory_used_mib=None if reading.used_bytes is None else _mib(reading.used_bytes),
        busy_percent=reading.busy_percent,
        compute_allocated_milli=int(usage.compute[row]),
        shares=int(usage.slots[row]),
        exclusive=exclusive,
        numa=device.numa,
        healthy=device.healthy,
    )
