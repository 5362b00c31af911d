"""The shared region of one share, decoded from the bytes of its file.

``limiter/include/tessera_region.h`` is the definition; the offsets below are tested against the compiled header,
line by line. Reading takes no lock and needs no library, so that anybody who may read the file can look. The
limits are of one moment (:func:`is_torn` tells when they may not be); what processes use moves while it is read.

Source: limiter/include/tessera_region.h, version 1.2.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from tessera.core.errors import TesseraError

MAGIC: Final = b"TESSERA\0"
MAJOR: Final = 1
MAX_DEVICES: Final = 16
MAX_SLOTS: Final = 1024
GRANULE: Final = 512
UNLIMITED: Final = (1 << 64) - 1

SIZES: Final = {
    "header": 4096,
    "device_control": 128,
    "control": 4096,
    "device_usage": 256,
    "export": 16,
    "usage": 8192,
    "slot_device": 64,
    "slot": 1152,
    "region": 1196032,
}
"""Bytes of each struct."""

FIELDS: Final = {
    "header.magic": (0, 8),
    "header.major": (8, 4),
    "header.minor": (12, 4),
    "header.total_size": (16, 8),
    "header.checksum": (24, 4),
    "header.device_count": (28, 4),
    "header.slot_count": (32, 4),
    "header.granule": (36, 4),
    "header.control_offset": (40, 8),
    "header.usage_offset": (48, 8),
    "header.slots_offset": (56, 8),
    "header.slot_stride": (64, 8),
    "header.created_unix_ns": (72, 8),
    "header.share_id": (80, 64),
    "header.device_uuid": (144, 768),
    "header.reserved": (912, 3184),
    "device_control.memory_limit": (0, 8),
    "device_control.memory_request": (8, 8),
    "device_control.compute_limit_milli": (16, 4),
    "device_control.compute_request_milli": (20, 4),
    "device_control.flags": (24, 4),
    "device_control.mode": (28, 4),
    "device_control.priority": (32, 4),
    "device_control.cap_milli": (36, 4),
    "device_control.rate_q32": (40, 8),
    "device_control.burst_ns": (48, 8),
    "device_control.in_flight_limit_ns": (56, 8),
    "device_control.unseen_bytes": (64, 8),
    "device_control.unseen_ns": (72, 8),
    "device_control.context_bytes": (80, 8),
    "device_control.floor_q32": (88, 8),
    "device_control.dilation_q32": (96, 8),
    "device_control.order": (104, 8),
    "device_control.memory_ceiling": (112, 8),
    "device_control.reserved": (120, 8),
    "control.generation": (0, 8),
    "control.pause": (8, 4),
    "control.policy": (12, 4),
    "control.agent_heartbeat_ns": (16, 8),
    "control.gated": (24, 8),
    "control.governor_ns": (32, 8),
    "control.reserved1": (40, 88),
    "control.device": (128, 2048),
    "control.reserved2": (2176, 1920),
    "device_usage.gauge": (0, 8),
    "device_usage.reserved0": (8, 56),
    "device_usage.refused_count": (64, 8),
    "device_usage.peak_granules": (72, 8),
    "device_usage.full_count": (80, 8),
    "device_usage.short_granules": (88, 8),
    "device_usage.short_ns": (96, 8),
    "device_usage.spill_count": (104, 8),
    "device_usage.reserved1": (112, 16),
    "device_usage.granted_ns": (128, 8),
    "device_usage.last_ns": (136, 8),
    "device_usage.spent_ns": (144, 8),
    "device_usage.owed_ns": (152, 8),
    "device_usage.finished_ns": (160, 8),
    "device_usage.longest_ns": (168, 8),
    "device_usage.throttled_ns": (176, 8),
    "device_usage.throttled_count": (184, 8),
    "device_usage.waited_ns": (192, 8),
    "device_usage.asked": (200, 8),
    "device_usage.yielded_ns": (208, 8),
    "device_usage.yielded_count": (216, 8),
    "device_usage.pressed_ns": (224, 24),
    "device_usage.reserved2": (248, 8),
    "export.tag": (0, 8),
    "export.holder": (8, 8),
    "usage.device": (0, 4096),
    "usage.slot_high_water": (4096, 8),
    "usage.reaped_count": (4104, 8),
    "usage.full_count": (4112, 8),
    "usage.unknown_count": (4120, 8),
    "usage.unknown_symbol": (4128, 64),
    "usage.export": (4192, 2048),
    "usage.reserved": (6240, 1952),
    "slot_device.used_granules": (0, 8),
    "slot_device.intent": (8, 8),
    "slot_device.intent_used_granules": (16, 8),
    "slot_device.acked": (24, 8),
    "slot_device.host_pinned_bytes": (32, 8),
    "slot_device.pool_granules": (40, 8),
    "slot_device.vmm_granules": (48, 8),
    "slot_device.hidden_granules": (56, 8),
    "slot.state": (0, 8),
    "slot.pid": (8, 4),
    "slot.priority": (12, 4),
    "slot.start_ticks": (16, 8),
    "slot.image_stack": (24, 8),
    "slot.image_random": (32, 8),
    "slot.pid_namespace": (40, 8),
    "slot.heartbeat_ns": (48, 8),
    "slot.registered_ns": (56, 8),
    "slot.command": (64, 16),
    "slot.booked": (80, 32),
    "slot.progress_ns": (112, 8),
    "slot.launches": (120, 8),
    "slot.device": (128, 1024),
    "region.header": (0, 4096),
    "region.control": (4096, 4096),
    "region.usage": (8192, 8192),
    "region.slot": (16384, 1179648),
}
"""Offset in its struct and size of every field, in bytes."""

SLOTS_AT: Final = FIELDS["region.slot"][0]
"""Where the slots begin: what is before them is what a share is and what it uses in all."""

GAUGE_USED_SHIFT: Final = 31
SPILL_ACCOUNT: Final = 8
"""Added to the number of a device: the row of what it has in host memory; for up to so many devices."""
ORDER_MASK: Final = 3
ORDER_FREEZE: Final = 1
ONE_Q32: Final = 1 << 32
STATE_PHASE_MASK: Final = 3
PHASE_LIVE: Final = 2

_INTEGERS: Final = {4: struct.Struct("<I"), 8: struct.Struct("<Q")}


class ComputeMode(IntEnum):
    """How a compute limit is meant."""

    OFF = 0
    HARD = 1
    BURST = 2
    BEST_EFFORT = 3


class RegionFault(StrEnum):
    """What is wrong with a file that should be a region."""

    TRUNCATED = "truncated"
    FOREIGN = "foreign"
    VERSION = "version"
    CHECKSUM = "checksum"
    LAYOUT = "layout"


class RegionError(TesseraError):
    """The bytes are not a region that this version can read; ``fault`` says which way."""

    def __init__(self, fault: RegionFault, message: str) -> None:
        self.fault = fault
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RegionProcess:
    """A process that is registered; bytes per device, in the region's order of devices.

    ``hidden_bytes`` is the part of ``used_bytes`` that no call shows (contexts, code, heaps), as measured.
    """

    pid: int
    start_ticks: int
    pid_namespace: int
    command: str
    used_bytes: tuple[int, ...]
    hidden_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionCompute:
    """How a device's compute limit is doing; nanoseconds. ``mode`` may be one that this version does not know.

    ``finished_ns`` is the charged time of work that is complete and ``throttled_ns`` the time that launches
    waited; both only grow. ``dilation`` is charged time per device time, 1 where it was never measured, and
    ``rate`` what is granted of the device now, dilation included.
    """

    mode: int
    rate: float
    dilation: float
    finished_ns: int
    throttled_ns: int
    throttled: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class RegionMemory:
    """How a device's memory is shared beyond requests; bytes. ``ceiling`` is ``None`` where only the limit holds.

    ``spilled_bytes`` is the part of what is used that lies in host memory, of which ``spill_limit`` may.
    ``full`` counts allocations within the limit that found the device full, ``spills`` those that went to host
    memory instead.
    """

    ceiling: int | None
    spill_limit: int
    spilled_bytes: int
    full: int
    spills: int


@dataclass(frozen=True, slots=True)
class RegionPriority:
    """Who goes first on a device. ``priority`` is 1 (low) to 4 (critical), 0 where none was said: medium.

    ``cap_milli`` is what shares of a higher priority leave of the device, 0 for all of it. ``yielded_ns`` is the
    time that launches waited to be let go, or for processes of a higher priority; it only grows.
    """

    priority: int
    cap_milli: int
    frozen: bool
    yielded_ns: int
    yielded: int


@dataclass(frozen=True, slots=True)
class RegionDevice:
    """One device of the share; bytes, and milli-devices of compute. ``memory_limit`` is ``None`` without one.

    ``unseen_bytes`` is what the host measured beyond ``used_bytes``: it leaves that much less to allocate.
    """

    uuid: str
    memory_limit: int | None
    memory_request: int
    compute_limit_milli: int
    compute_request_milli: int
    used_bytes: int
    unseen_bytes: int
    compute: RegionCompute
    memory: RegionMemory
    order: RegionPriority
    peak_bytes: int
    refused: int


@dataclass(frozen=True, slots=True)
class Region:
    """A share as its processes see it.

    ``unknown_symbols`` counts the driver functions that may take memory and that the library does not know;
    ``unknown_symbol`` is the first of them, empty without any.
    """

    share_id: str
    devices: tuple[RegionDevice, ...]
    processes: tuple[RegionProcess, ...]
    generation: int
    reaped: int
    full: int
    paused: bool
    unknown_symbols: int
    unknown_symbol: str

    @property
    def is_torn(self) -> bool:
        """Whether the limits were being changed while they were read: look again."""
        return self.generation % 2 == 1


def _integer(data: bytes, base: int, name: str) -> int:
    offset, size = FIELDS[name]
    value: int = _INTEGERS[size].unpack_from(data, base + offset)[0]
    return value


def _text(data: bytes, base: int, name: str) -> str:
    offset, size = FIELDS[name]
    return _c_string(data[base + offset : base + offset + size])


def _c_string(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace")


def parse_region(data: bytes, size: int | None = None) -> Region:
    """The share that these bytes describe. Raises :class:`RegionError` for anything but a sound region.

    ``data`` may be the beginning of a file of ``size`` bytes, as far as :func:`bytes_in_use` says: slots behind it
    count as never used.
    """
    check_header(data, size)
    count = _integer(data, 0, "header.device_count")
    usage = FIELDS["region.usage"][0]
    control = FIELDS["region.control"][0]
    return Region(
        share_id=_text(data, 0, "header.share_id"),
        devices=tuple(_device(data, index) for index in range(count)),
        processes=tuple(_processes(data, count)),
        generation=_integer(data, control, "control.generation"),
        reaped=_integer(data, usage, "usage.reaped_count"),
        full=_integer(data, usage, "usage.full_count"),
        paused=_integer(data, control, "control.pause") != 0,
        unknown_symbols=_integer(data, usage, "usage.unknown_count"),
        unknown_symbol=_text(data, usage, "usage.unknown_symbol"),
    )


def bytes_in_use(data: bytes) -> int:
    """How much of a region's file anything was ever written to, by its first :data:`SLOTS_AT` bytes."""
    used = _integer(data, FIELDS["region.usage"][0], "usage.slot_high_water")
    return SLOTS_AT + min(used, MAX_SLOTS) * SIZES["slot"]


def check_header(data: bytes, size: int | None = None) -> None:
    """Raise the :class:`RegionError` of the first thing that is wrong with a file of ``size`` bytes.

    Without a size ``data`` is the whole file.
    """
    if len(data) < SIZES["header"]:
        raise RegionError(RegionFault.TRUNCATED, f"the region has {len(data):,} bytes, less than its header")
    if data[:8] != MAGIC:
        raise RegionError(RegionFault.FOREIGN, "the file is not a Tessera region")
    major = _integer(data, 0, "header.major")
    if major != MAJOR:
        message = f"the region has version {major}, this program reads version {MAJOR}; use what wrote it"
        raise RegionError(RegionFault.VERSION, message)
    if header_checksum(data) != _integer(data, 0, "header.checksum"):
        raise RegionError(RegionFault.CHECKSUM, "the region's header is damaged")
    _check_layout(data, len(data) if size is None else size)


def _check_layout(data: bytes, size: int) -> None:
    stated = {
        "header.total_size": SIZES["region"],
        "header.slot_count": MAX_SLOTS,
        "header.granule": GRANULE,
        "header.control_offset": FIELDS["region.control"][0],
        "header.usage_offset": FIELDS["region.usage"][0],
        "header.slots_offset": FIELDS["region.slot"][0],
        "header.slot_stride": SIZES["slot"],
    }
    for name, expected in stated.items():
        found = _integer(data, 0, name)
        if found != expected:
            raise RegionError(RegionFault.LAYOUT, f"the region's {name} is {found:,}, not {expected:,}")
    count = _integer(data, 0, "header.device_count")
    if not 1 <= count <= MAX_DEVICES:
        raise RegionError(RegionFault.LAYOUT, f"the region lists {count:,} devices, not 1 to {MAX_DEVICES}")
    if size != SIZES["region"] or len(data) < SLOTS_AT:
        message = f"the region has {min(size, len(data)):,} bytes, not {SIZES['region']:,}"
        raise RegionError(RegionFault.TRUNCATED, message)


def header_checksum(data: bytes) -> int:
    """CRC-32 of the header with the checksum itself taken as zero."""
    offset, size = FIELDS["header.checksum"]
    return zlib.crc32(data[:offset] + bytes(size) + data[offset + size : SIZES["header"]])


def _device(data: bytes, index: int) -> RegionDevice:
    offset, size = FIELDS["header.device_uuid"]
    uuid_size = size // MAX_DEVICES
    control = FIELDS["region.control"][0] + FIELDS["control.device"][0] + index * SIZES["device_control"]
    usage = FIELDS["region.usage"][0] + index * SIZES["device_usage"]
    limit = _integer(data, control, "device_control.memory_limit")
    return RegionDevice(
        uuid=_c_string(data[offset + index * uuid_size : offset + (index + 1) * uuid_size]),
        memory_limit=None if limit == UNLIMITED else limit,
        memory_request=_integer(data, control, "device_control.memory_request"),
        compute_limit_milli=_integer(data, control, "device_control.compute_limit_milli"),
        compute_request_milli=_integer(data, control, "device_control.compute_request_milli"),
        used_bytes=(_integer(data, usage, "device_usage.gauge") >> GAUGE_USED_SHIFT) * GRANULE,
        unseen_bytes=_integer(data, control, "device_control.unseen_bytes"),
        compute=_compute(data, control, usage),
        memory=_memory(data, control, usage),
        order=_order(data, control, usage),
        peak_bytes=_integer(data, usage, "device_usage.peak_granules") * GRANULE,
        refused=_integer(data, usage, "device_usage.refused_count"),
    )


def _memory(data: bytes, control: int, usage: int) -> RegionMemory:
    has_spill = _integer(data, 0, "header.device_count") <= SPILL_ACCOUNT
    account_control = control + SPILL_ACCOUNT * SIZES["device_control"]
    account_usage = usage + SPILL_ACCOUNT * SIZES["device_usage"]
    gauge = _integer(data, account_usage, "device_usage.gauge") if has_spill else 0
    return RegionMemory(
        ceiling=_integer(data, control, "device_control.memory_ceiling") or None,
        spill_limit=_integer(data, account_control, "device_control.memory_limit") if has_spill else 0,
        spilled_bytes=(gauge >> GAUGE_USED_SHIFT) * GRANULE,
        full=_integer(data, usage, "device_usage.full_count"),
        spills=_integer(data, usage, "device_usage.spill_count"),
    )


def _order(data: bytes, control: int, usage: int) -> RegionPriority:
    order = _integer(data, control, "device_control.order")
    return RegionPriority(
        priority=_integer(data, control, "device_control.priority"),
        cap_milli=_integer(data, control, "device_control.cap_milli"),
        frozen=order & ORDER_MASK == ORDER_FREEZE,
        yielded_ns=_integer(data, usage, "device_usage.yielded_ns"),
        yielded=_integer(data, usage, "device_usage.yielded_count"),
    )


def _compute(data: bytes, control: int, usage: int) -> RegionCompute:
    return RegionCompute(
        mode=_integer(data, control, "device_control.mode"),
        rate=_integer(data, control, "device_control.rate_q32") / ONE_Q32,
        dilation=(_integer(data, control, "device_control.dilation_q32") or ONE_Q32) / ONE_Q32,
        finished_ns=_integer(data, usage, "device_usage.finished_ns"),
        throttled_ns=_integer(data, usage, "device_usage.throttled_ns"),
        throttled=_integer(data, usage, "device_usage.throttled_count"),
        waited_ns=_integer(data, usage, "device_usage.waited_ns"),
    )


def _processes(data: bytes, device_count: int) -> list[RegionProcess]:
    """The registered processes. No slot past the high-water mark was ever used."""
    used = _integer(data, FIELDS["region.usage"][0], "usage.slot_high_water")
    known = (len(data) - SLOTS_AT) // SIZES["slot"]
    bases = (SLOTS_AT + slot * SIZES["slot"] for slot in range(min(used, known, MAX_SLOTS)))
    return [
        _process(data, base, device_count)
        for base in bases
        if _integer(data, base, "slot.state") & STATE_PHASE_MASK == PHASE_LIVE
    ]


def _process(data: bytes, base: int, device_count: int) -> RegionProcess:
    devices = [base + FIELDS["slot.device"][0] + d * SIZES["slot_device"] for d in range(device_count)]
    return RegionProcess(
        pid=_integer(data, base, "slot.pid"),
        start_ticks=_integer(data, base, "slot.start_ticks"),
        pid_namespace=_integer(data, base, "slot.pid_namespace"),
        command=_text(data, base, "slot.command"),
        used_bytes=tuple(_integer(data, at, "slot_device.used_granules") * GRANULE for at in devices),
        hidden_bytes=tuple(_integer(data, at, "slot_device.hidden_granules") * GRANULE for at in devices),
    )
