"""Is a device fit for new shares? From the faults that it reported, by a table of codes that users may change.

An application's fault changes nothing, a transient one is forgotten after a quiet period, a fatal one stays until
the machine restarts or somebody says that the device was reset.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.core.errors import InputErrors, Problem
from tessera.vendors.faults import FaultClass, FaultCode

QUIET_SECONDS: Final = 30.0
"""After which a transient fault is forgotten."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a device reported: its code, what it means, and when it was last seen (monotonic seconds)."""

    uuid: str
    row: FaultCode
    code: int
    seen: float


class FaultBook:
    """The faults that count now. A code that no row has is treated as ``unknown``."""

    def __init__(self, rows: Iterable[FaultCode], unknown: FaultCode, quiet: float = QUIET_SECONDS) -> None:
        self._rows = {row.code: row for row in rows}
        self._unknown = unknown
        self._quiet = quiet
        self._faults: dict[tuple[str, int], Fault] = {}

    def row(self, code: int) -> FaultCode:
        """What a code means."""
        return self._rows.get(code, self._unknown)

    def report(self, uuid: str, code: int, now: float) -> Fault:
        """Note a fault; what it means."""
        fault = Fault(uuid, self.row(code), code, now)
        if fault.row.kind is not FaultClass.APPLICATION:
            self._faults[uuid, code] = fault
        return fault

    def reasons(self, now: float) -> dict[str, str]:
        """Why devices are not fit now, by uuid; the fatal reason first. Devices without one are fit."""
        for key, fault in list(self._faults.items()):
            if fault.row.kind is FaultClass.TRANSIENT and now - fault.seen >= self._quiet:
                del self._faults[key]
        found: dict[str, str] = {}
        for fault in sorted(self._faults.values(), key=lambda f: (f.row.kind is not FaultClass.FATAL, f.code)):
            found.setdefault(fault.uuid, reason_of(fault))
        return found

    def fatal(self) -> tuple[tuple[str, int], ...]:
        """The faults that outlive us, as (uuid, code)."""
        return tuple(sorted(key for key, fault in self._faults.items() if fault.row.kind is FaultClass.FATAL))


def reason_of(fault: Fault) -> str:
    """A fault in a sentence."""
    return f"XID {fault.code}: {fault.row.what}; {fault.row.remedy}"


class _Override(msgspec.Struct, forbid_unknown_fields=True):
    """What a user says of a code; what is left out stays as in our table."""

    kind: FaultClass = msgspec.field(name="class")
    what: str = ""
    remedy: str = ""


def overridden(rows: Sequence[FaultCode], unknown: FaultCode, data: bytes, source: str) -> tuple[FaultCode, ...]:
    """The table with a user's changes: a JSON object of codes, ``{"94": {"class": "fatal", "remedy": "..."}}``.

    Raises :class:`InputErrors`.
    """
    try:
        changes = msgspec.json.decode(data, type=dict[int, _Override])
    except msgspec.MsgspecError as error:
        remedy = 'write {"94": {"class": "application|transient|fatal", "remedy": "..."}}'
        raise InputErrors([Problem(source, "", "", "", f"is no table of codes: {error}", remedy)]) from error
    table: dict[int, FaultCode] = {row.code: row for row in rows}
    for code, change in changes.items():
        before = table.get(code, unknown)
        table[code] = FaultCode(code, change.kind, change.what or before.what, change.remedy or before.remedy)
    return tuple(table.values())


class _Saved(msgspec.Struct):
    """Fatal faults of one boot."""

    boot: str
    faults: tuple[tuple[str, int], ...]


def encode_fatal(boot: str, faults: Sequence[tuple[str, int]]) -> bytes:
    """Fatal faults as they are kept for the next agent."""
    return msgspec.json.encode(_Saved(boot, tuple(faults)))


def decode_fatal(data: bytes, boot: str) -> tuple[tuple[str, int], ...]:
    """What an earlier agent of this boot left; nothing after a restart of the machine or of what is unreadable."""
    try:
        saved = msgspec.json.decode(data, type=_Saved)
    except msgspec.MsgspecError:
        return ()
    return saved.faults if saved.boot == boot else ()


def why_unfit(uuid: str, faults: Mapping[str, str], vanished: Mapping[str, str]) -> str:
    """Why a device is not fit, from its faults or because it cannot be read; empty where it is fit."""
    return vanished.get(uuid) or faults.get(uuid, "")
