"""Units. Memory is counted in MiB, compute in milli-devices (1000 is a whole device), CPU in milli-cores."""

from typing import Final, NewType

MiB = NewType("MiB", int)
Milli = NewType("Milli", int)

WHOLE: Final = Milli(1000)
"""A whole device's compute, and the denominator of every fraction of a device."""

BYTES_PER_MIB: Final = 1024 * 1024


MILLION: Final = 1_000_000


def fill_of(used: int, total: int) -> int:
    """How much of ``total`` is used, in parts per million rounded down; 0 of nothing."""
    return used * MILLION // max(total, 1)


def render_mib(mib: int) -> str:
    """``mib`` as a person reads it: ``20,480 MiB``."""
    return f"{mib:,} MiB"


def render_percent(milli: int) -> str:
    """A milli-fraction as percent without needless digits: ``300`` is ``30%``, ``125`` is ``12.5%``."""
    whole, tenths = divmod(milli, 10)
    return f"{whole}.{tenths}%" if tenths else f"{whole}%"
