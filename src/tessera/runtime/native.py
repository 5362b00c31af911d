"""The compiled libraries that Tessera ships: where they are, and the region helpers by ctypes.

A library that is missing is an :class:`UnavailableError`, never a reason to go on without it: nothing starts
under a share that nobody would enforce.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import tessera
from tessera.core.errors import UnavailableError
from tessera.wire.shm import FIELDS, PHASE_LIVE, SIZES, STATE_PHASE_MASK

NATIVE: Final = Path(tessera.__file__).parent / "_native"
LIMITER: Final = NATIVE / "libtessera.so"
REGION_LIBRARY: Final = NATIVE / "libtessera_region.so"
SIMULATED: Final = NATIVE / "sim"
SIMULATED_NVML: Final = SIMULATED / "libnvidia-ml.so.1"
SIMULATED_CUDA: Final = SIMULATED / "libcuda.so.1"

MAX_DEVICES: Final = 16
MAX_PROCESSES: Final = 1024
_UUID_SIZE: Final = 48
_SHARE_ID_SIZE: Final = 64
_CALIBRATION_SIZE: Final = 312
_MADV_DONTNEED: Final = 4
_SEPARATORS: Final = frozenset(" :")


def require_library(path: Path) -> Path:
    """``path`` where it is. Raises :class:`UnavailableError` with what builds it otherwise."""
    if not path.is_file():
        what = f"{path.name} is missing from {path.parent}"
        raise UnavailableError(what, "build it with 'make native' in the source tree, or reinstall tessera")
    return path


def preload_value(existing: str) -> str:
    """``LD_PRELOAD`` with the limiter in front of what was preloaded already.

    Raises :class:`UnavailableError` where the limiter is missing, or its path has a character at which the
    dynamic loader would split it.
    """
    path = str(require_library(LIMITER))
    if _SEPARATORS & set(path):
        what = f"{path} cannot be preloaded: its path has a blank or a colon"
        raise UnavailableError(what, "install tessera in a directory without them")
    return f"{path}:{existing}" if existing else path


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a share may take of one device: bytes, and milli-devices of compute."""

    uuid: str
    memory_limit: int
    memory_request: int
    compute_limit_milli: int
    compute_request_milli: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A living process of a share; ``used_bytes`` per device, in the region's order."""

    pid: int
    start_ticks: int
    pid_namespace: int
    command: str
    used_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Borrower:
    """A share of a device, for who gets what others leave. ``mode`` as in the region; ``waits``: it had to."""

    limit_milli: int
    mode: int
    used_milli: int
    weight: int
    waits: bool


class RegionCallError(UnavailableError):
    """A call of the region library failed; ``code`` is its error code."""

    def __init__(self, path: Path, code: int) -> None:
        self.path = path
        self.code = code
        text: bytes = _library().tessera_region_strerror(code)
        what, _, remedy = text.decode().partition("; ")
        super().__init__(f"{path}: {what}", remedy or "run tessera ps to repair what a crash left")


class _DeviceSpec(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * _UUID_SIZE),
        ("memory_limit", ctypes.c_uint64),
        ("memory_request", ctypes.c_uint64),
        ("compute_limit_milli", ctypes.c_uint32),
        ("compute_request_milli", ctypes.c_uint32),
    )


class _ShareSpec(ctypes.Structure):
    _fields_ = (
        ("share_id", ctypes.c_char * _SHARE_ID_SIZE),
        ("device_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("device", _DeviceSpec * MAX_DEVICES),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint32),
        ("slot", ctypes.c_uint32),
        ("start_ticks", ctypes.c_uint64),
        ("pid_namespace", ctypes.c_uint64),
        ("command", ctypes.c_char * 16),
        ("used_bytes", ctypes.c_uint64 * MAX_DEVICES),
    )


class _Reading(ctypes.Structure):
    _fields_ = (("busy_ns", ctypes.c_uint64), ("busy_at_ns", ctypes.c_uint64))


class _Borrower(ctypes.Structure):
    _fields_ = (
        ("limit_milli", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("used_milli", ctypes.c_uint32),
        ("weight", ctypes.c_uint32),
        ("waits", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class Calibration:
    """What is remembered of one device of one share between :meth:`LiveRegion.tick` calls."""

    def __init__(self) -> None:
        self.state = (ctypes.c_char * _CALIBRATION_SIZE)()


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(require_library(REGION_LIBRARY)))
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    signatures = {
        "tessera_region_create": ((text, ctypes.POINTER(_ShareSpec)), number),
        "tessera_region_open": ((text, ctypes.POINTER(pointer)), number),
        "tessera_region_close": ((pointer,), None),
        "tessera_region_strerror": ((number,), text),
        "tessera_region_reap": ((pointer,), number),
        "tessera_region_used": ((pointer, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)), number),
        "tessera_region_processes": ((pointer, ctypes.POINTER(_Process), ctypes.c_size_t), number),
        "tessera_region_set_memory_limit": ((pointer, ctypes.c_uint32, ctypes.c_uint64), number),
        "tessera_region_set_compute_limit": ((pointer, ctypes.c_uint32, ctypes.c_uint32), number),
        "tessera_region_set_compute": ((pointer, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32), number),
        "tessera_region_pause": ((pointer, ctypes.c_uint32), number),
        "tessera_region_set_requests": ((pointer, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32), number),
        "tessera_region_set_context_bytes": ((pointer, ctypes.c_uint32, ctypes.c_uint64), number),
        "tessera_region_set_unseen": ((pointer, ctypes.c_uint32, ctypes.c_uint64), number),
        "tessera_region_tick": (
            (pointer, ctypes.c_uint32, pointer, ctypes.POINTER(_Reading), ctypes.c_uint32, ctypes.c_uint64),
            number,
        ),
        "tessera_compute_lend": (
            (ctypes.POINTER(_Borrower), ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)),
            None,
        ),
        "tessera_region_layout": ((text, ctypes.c_size_t), ctypes.c_size_t),
    }
    declare(library, signatures)
    return library


Signature = tuple[tuple[Any, ...], Any]
"""Types of a function's arguments, and of its result."""


def declare(library: ctypes.CDLL, signatures: Mapping[str, Signature]) -> None:
    """Tell ctypes what functions of a library take and give."""
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = result


def region_library() -> ctypes.CDLL:
    """The region helpers, loaded once. Raises :class:`UnavailableError` where they are missing."""
    return _library()


def region_layout() -> str:
    """The compiled layout, a line per field and struct: ``struct.field offset size`` and ``struct size``."""
    size: int = _library().tessera_region_layout(None, 0)
    text = ctypes.create_string_buffer(size + 1)
    _library().tessera_region_layout(text, size + 1)
    return text.value.decode()


def lend_compute(shares: Sequence[Borrower]) -> tuple[int, ...]:
    """Milli-devices for each share of one device: its limit, and a part of what others leave if it may have it."""
    rows = (_Borrower * len(shares))(
        *(_Borrower(s.limit_milli, s.mode, s.used_milli, s.weight, s.waits) for s in shares)
    )
    granted = (ctypes.c_uint32 * len(shares))()
    _library().tessera_compute_lend(rows, len(shares), granted)
    return tuple(granted)


def _file_of(path: Path) -> tuple[int, int]:
    """Inode and length of a file; of none, where there is nothing that can be looked at."""
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_ino, about.st_size


def create_region(path: Path, share_id: str, devices: Sequence[DeviceLimits]) -> None:
    """Write a new region at ``path``, whole or not at all. Raises :class:`RegionCallError`."""
    if len(devices) > MAX_DEVICES:
        what = f"a share of {len(devices)} devices; a region holds {MAX_DEVICES} at most"
        raise UnavailableError(what, "ask for fewer devices")
    spec = _ShareSpec(share_id=share_id.encode(), device_count=len(devices))
    for at, device in enumerate(devices):
        spec.device[at] = _DeviceSpec(
            uuid=device.uuid.encode(),
            memory_limit=device.memory_limit,
            memory_request=device.memory_request,
            compute_limit_milli=device.compute_limit_milli,
            compute_request_milli=device.compute_request_milli,
        )
    code: int = _library().tessera_region_create(str(path).encode(), ctypes.byref(spec))
    if code:
        raise RegionCallError(path, code)


class LiveRegion:
    """A region mapped read-write, for the supervisor of its share; a context manager.

    Where a tenant cuts the file off, what is read turns to zeros and what is written is lost; nobody is ended by
    it. Ask :attr:`is_whole` before believing what was read.
    """

    def __init__(self, path: Path, device_count: int) -> None:
        self.path = path
        self._devices = device_count
        self._pointer = ctypes.c_void_p()
        self._inode = _file_of(path)
        code: int = _library().tessera_region_open(str(path).encode(), ctypes.byref(self._pointer))
        if code:
            raise RegionCallError(path, code)

    @property
    def is_whole(self) -> bool:
        """Whether its path still leads to the file that was opened, at its full length."""
        return _file_of(self.path) == self._inode and self._inode[1] == SIZES["region"]

    def __enter__(self) -> "LiveRegion":
        return self

    def __exit__(self, *_: object) -> None:
        _library().tessera_region_close(self._pointer)
        self._pointer = ctypes.c_void_p()

    @property
    def pointer(self) -> ctypes.c_void_p:
        """Where it is mapped, for functions of the region library."""
        return self._pointer

    def reap(self) -> int:
        """Give back what dead processes held; how many there were."""
        return self.counted(_library().tessera_region_reap(self._pointer))

    def used_bytes(self) -> tuple[int, ...]:
        """Bytes that the share uses of each device."""
        used = ctypes.c_uint64()
        amounts = []
        for device in range(self._devices):
            self.counted(_library().tessera_region_used(self._pointer, device, ctypes.byref(used)))
            amounts.append(used.value)
        return tuple(amounts)

    def processes(self) -> tuple[Registered, ...]:
        """The registered processes that live (those that died since the last :meth:`reap` included)."""
        rows = (_Process * MAX_PROCESSES)()
        count = self.counted(_library().tessera_region_processes(self._pointer, rows, MAX_PROCESSES))
        return tuple(
            Registered(
                row.pid,
                row.start_ticks,
                row.pid_namespace,
                row.command.decode(errors="replace"),
                tuple(row.used_bytes[: self._devices]),
            )
            for row in rows[: min(count, MAX_PROCESSES)]
        )

    def members(self) -> frozenset[tuple[int, int]]:
        """Who is registered, as slot and a word that no two processes share; cheaper than :meth:`processes`.

        Who died stays a member until somebody gives back what it held.
        """
        usage, first = FIELDS["region.usage"][0], FIELDS["region.slot"][0]
        used = min(self._word(usage, "usage.slot_high_water"), MAX_PROCESSES)
        words = ((slot, self._word(first + slot * SIZES["slot"], "slot.state")) for slot in range(used))
        return frozenset((slot, word) for slot, word in words if word & STATE_PHASE_MASK == PHASE_LIVE)

    def limit_memory(self, limits: Sequence[int]) -> None:
        """Set the limit of each device, in bytes; the next allocation of any process sees it."""
        for device, limit in enumerate(limits):
            self.counted(_library().tessera_region_set_memory_limit(self._pointer, device, limit))

    def limit_compute(self, device: int, milli: int, mode: int) -> None:
        """Set a device's compute limit and what it means; launches that wait see it within 10 ms."""
        self.counted(_library().tessera_region_set_compute(self._pointer, device, milli, mode))

    def resize(self, device: int, limits: DeviceLimits) -> None:
        """Put another share of a device in force, under running processes.

        A compute limit keeps its mode; one that was of no effect becomes a hard one.
        """
        library, milli = _library(), limits.compute_limit_milli
        request = limits.memory_request, limits.compute_request_milli
        self.counted(library.tessera_region_set_memory_limit(self._pointer, device, limits.memory_limit))
        self.counted(library.tessera_region_set_requests(self._pointer, device, *request))
        self.counted(library.tessera_region_set_compute_limit(self._pointer, device, milli))

    def expect_context(self, device: int, amount: int) -> None:
        """Say what a process's first context on a device is charged, in bytes, where it cannot measure it."""
        self.counted(_library().tessera_region_set_context_bytes(self._pointer, device, amount))

    def demand(self, device: int) -> tuple[int, int, int]:
        """A device's compute limit in milli-devices, its mode, and when a launch waited last.

        That moment is in nanoseconds of the monotonic clock, 0 where none ever waited.
        """
        control, usage = self._rows(device)
        return (
            self._word(control, "device_control.compute_limit_milli"),
            self._word(control, "device_control.mode"),
            self._word(usage, "device_usage.waited_ns"),
        )

    def word(self, device: int, name: str) -> int:
        """A field of ``device_control`` or ``device_usage`` of a device, such as ``device_usage.short_ns``."""
        control, usage = self._rows(device)
        return self._word(control if name.startswith("device_control.") else usage, name)

    def unseen_bytes(self, device: int) -> int:
        """What :meth:`set_unseen` said of a device last."""
        return self._word(self._rows(device)[0], "device_control.unseen_bytes")

    def let_pages_go(self) -> None:
        """Keep none of the region's pages resident: a look maps 64 KiB of it, which adds up over many shares."""
        _libc().madvise(self._pointer, SIZES["region"], _MADV_DONTNEED)

    def _rows(self, device: int) -> tuple[int, int]:
        """Where a device's control and usage are in the region."""
        if not 0 <= device < self._devices:
            what = f"{self.path}: device {device} of a region of {self._devices}"
            raise UnavailableError(what, "ask for a device that the share has")
        control = FIELDS["region.control"][0] + FIELDS["control.device"][0] + device * SIZES["device_control"]
        return control, FIELDS["region.usage"][0] + device * SIZES["device_usage"]

    def _word(self, base: int, name: str) -> int:
        """A field of the mapped region; aligned words are read whole."""
        offset, size = FIELDS[name]
        kind = ctypes.c_uint32 if size == 4 else ctypes.c_uint64
        value: int = kind.from_address((self._pointer.value or 0) + base + offset).value
        return value

    def set_unseen(self, device: int, amount: int) -> None:
        """Say how many bytes the share uses beyond what its region counts: that much less can be allocated."""
        self.counted(_library().tessera_region_set_unseen(self._pointer, device, amount))

    def pause(self, *, paused: bool) -> None:
        """Hold every launch of the share, or let them go on; what is under way goes on either way."""
        self.counted(_library().tessera_region_pause(self._pointer, paused))

    def tick(
        self, device: int, calibration: Calibration, busy: tuple[int, int], granted_milli: int, now_ns: int
    ) -> None:
        """Take a measurement from outside into account and put ``granted_milli`` in force.

        ``busy`` is the device time of the share's processes in all, in nanoseconds, and until when that was
        measured; that moment and ``now_ns`` are of the monotonic clock. Call it every 50 to 250 ms: a loan ends
        500 ms after the last call.
        """
        reading = _Reading(*busy)
        state = ctypes.cast(calibration.state, ctypes.c_void_p)
        library = _library()
        result = library.tessera_region_tick(
            self._pointer, device, state, ctypes.byref(reading), granted_milli, now_ns
        )
        self.counted(result)

    def counted(self, result: int) -> int:
        """What a function of the region library gave. Raises :class:`RegionCallError` for an error code."""
        if result < 0:
            raise RegionCallError(self.path, result)
        return result
