"""Who goes first on a device and who may have memory beyond its request: the region library's governor, by ctypes.

``limiter/include/tessera_govern.h`` is the definition and has the formulas' place; here are its values in Python.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from tessera.runtime.native import LiveRegion, Signature, declare, region_library

RECLAIM: Final = 4
"""Policy of a region: the governor gets memory back for who is within its request."""
LEASE_NS: Final = 500_000_000
"""A cap or a freeze ends so long after the governor's last word."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A share of a device, in milli-devices. ``limit_milli`` is 1000 without one, ``mode`` as in the region.

    ``waits``: launches of it waited for their turn lately; ``active``: it launched something lately.
    """

    limit_milli: int
    request_milli: int
    mode: int
    used_milli: int
    priority: int
    waits: bool
    active: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """What a share may have now: ``granted_milli`` with what is lent to it, and a cap (0: none)."""

    granted_milli: int
    cap_milli: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A share's memory on a device, in bytes; ``used`` without what lies in host memory."""

    request: int
    limit: int
    used: int
    priority: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What a share is told on a device. A cap and a ceiling (bytes) of 0 are none.

    ``is_idle``: :func:`launches` has not changed for so long (half a second at least) that it may be frozen.
    """

    cap_milli: int = 0
    is_idle: bool = False
    memory_ceiling: int = 0


class _Contender(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint32)
        for name in ("limit", "request", "mode", "used", "priority", "waits", "is_active", "reserved")
    )


class _Grant(ctypes.Structure):
    _fields_ = (("granted_milli", ctypes.c_uint32), ("cap_milli", ctypes.c_uint32))


class _Holding(ctypes.Structure):
    _fields_ = (
        ("request", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("priority", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Rule(ctypes.Structure):
    _fields_ = (("cap_milli", ctypes.c_uint32), ("is_idle", ctypes.c_uint32), ("ceiling", ctypes.c_uint64))


@cache
def _library() -> ctypes.CDLL:
    library = region_library()
    pointer, word, size, number = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int
    signatures: dict[str, Signature] = {
        "tessera_govern_compute": ((ctypes.POINTER(_Contender), word, ctypes.POINTER(_Grant)), None),
        "tessera_govern_memory": ((ctypes.POINTER(_Holding), word, size, ctypes.POINTER(size)), None),
        "tessera_govern_victim": ((ctypes.POINTER(_Holding), word), word),
        "tessera_region_govern": ((pointer, word, ctypes.POINTER(_Rule), size), number),
        "tessera_region_launches": ((pointer, ctypes.POINTER(size)), number),
        "tessera_region_set_priority": ((pointer, word, word), number),
        "tessera_region_set_spill": ((pointer, word, size), number),
        "tessera_region_set_policy": ((pointer, word), number),
        "tessera_region_spilled": ((pointer, word, ctypes.POINTER(size)), number),
    }
    declare(library, signatures)
    return library


def turns(shares: Sequence[Contender]) -> tuple[Turn, ...]:
    """Device time of each share of one device, by priority and what others leave."""
    rows = (_Contender * len(shares))(
        *(
            _Contender(s.limit_milli, s.request_milli, s.mode, s.used_milli, s.priority, s.waits, s.active)
            for s in shares
        )
    )
    grants = (_Grant * len(shares))()
    _library().tessera_govern_compute(rows, len(shares), grants)
    return tuple(Turn(grant.granted_milli, grant.cap_milli) for grant in grants)


def ceilings(shares: Sequence[Holding], physical: int) -> tuple[int, ...]:
    """Bytes that each share of one device may have of it now; it has ``physical`` bytes for all of them."""
    found = (ctypes.c_uint64 * len(shares))()
    _library().tessera_govern_memory(_rows(shares), len(shares), physical, found)
    return tuple(found)


def victim(shares: Sequence[Holding]) -> int | None:
    """Which share is to give memory back; ``None`` where none has anything beyond its request."""
    found: int = _library().tessera_govern_victim(_rows(shares), len(shares))
    return None if found == len(shares) else found


def _rows(shares: Sequence[Holding]) -> "ctypes.Array[_Holding]":
    return (_Holding * len(shares))(*(_Holding(s.request, s.limit, s.used, s.priority) for s in shares))


def govern(region: LiveRegion, device: int, rule: Rule, now_ns: int) -> None:
    """Tell a share what holds for it on a device from now (of the monotonic clock) on.

    Raises :class:`~tessera.runtime.native.RegionCallError`.
    """
    row = _Rule(rule.cap_milli, rule.is_idle, rule.memory_ceiling)
    region.counted(_library().tessera_region_govern(region.pointer, device, ctypes.byref(row), now_ns))


def launches(region: LiveRegion) -> int:
    """A number that changes when the share launches work or asks to be let go; not a count."""
    number = ctypes.c_uint64()
    region.counted(_library().tessera_region_launches(region.pointer, ctypes.byref(number)))
    return number.value


def spilled_bytes(region: LiveRegion, device: int) -> int:
    """What of the share's memory lies in host memory."""
    amount = ctypes.c_uint64()
    region.counted(_library().tessera_region_spilled(region.pointer, device, ctypes.byref(amount)))
    return amount.value


def set_standing(region: LiveRegion, device: int, priority: int, spill_bytes: int) -> None:
    """Set a share's priority (1 to 4) on a device, and how many bytes of its memory may lie in host memory."""
    library = _library()
    region.counted(library.tessera_region_set_priority(region.pointer, device, priority))
    region.counted(library.tessera_region_set_spill(region.pointer, device, spill_bytes))


def set_policy(region: LiveRegion, policy: int) -> None:
    """Set what holds for a whole region: :data:`RECLAIM`, or 0."""
    region.counted(_library().tessera_region_set_policy(region.pointer, policy))
