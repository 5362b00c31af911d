"""Kubernetes quantities, exactly: text to a rational number, and the units that Tessera counts in.

The API server rewrites what users write (``4000`` arrives as ``4k``, ``1000m`` as ``1``, ``0.5Gi`` as ``512Mi``),
so only the number counts, never the spelling. Nothing here rounds but :func:`to_mib` and :func:`to_milli`, which
round up: a share is never less than what was asked for.

Source: Kubernetes apimachinery pkg/api/resource/quantity.go (grammar and suffixes).
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from tessera.core.units import BYTES_PER_MIB, MiB, Milli

_LONGEST: Final = 64
_MOST: Final = 2**63 - 1
_GRAMMAR: Final = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i))?", re.ASCII)
_SUFFIXES: Final = {
    **{
        letter: Fraction(10) ** power
        for letter, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}


@dataclass(frozen=True, slots=True)
class Malformed:
    """Why something is no quantity, as the message and the remedy of a Problem."""

    message: str
    remedy: str


_NO_QUANTITY: Final = Malformed("is not a Kubernetes quantity", "write a number such as 4, 500m, 10Gi or 1e3")
_TOO_LARGE: Final = Malformed("is larger than Kubernetes can hold", "write at most 2^63-1")
_NEGATIVE: Final = Malformed("is negative", "write zero or more")


def quantity_text(raw: object) -> str | Malformed:
    """``raw`` as YAML or JSON delivered it (text, int or float), as text that :func:`parse_quantity` takes."""
    match raw:
        case str():
            return raw.strip()
        case bool() | None:
            return Malformed("is not a number", _NO_QUANTITY.remedy)
        case int():
            return str(raw) if abs(raw) <= _MOST else _TOO_LARGE
        case float():
            return repr(raw) if raw - raw == 0 else Malformed("is not a finite number", _NO_QUANTITY.remedy)
        case _:
            return Malformed("is not a number", _NO_QUANTITY.remedy)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction | Malformed:
    """Exact value of ``text``, which must not be negative nor above 2^63-1."""
    found = _GRAMMAR.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return _NO_QUANTITY
    sign, number, exponent, suffix = found.groups()
    value = Fraction(number)
    if exponent:
        value *= Fraction(10) ** int(exponent[1:])
    elif suffix:
        value *= _SUFFIXES[suffix]
    if sign == "-" and value:
        return _NEGATIVE
    return value if value <= _MOST else _TOO_LARGE


def to_mib(value: Fraction) -> MiB:
    """Bytes as MiB, rounded up."""
    return MiB(_ceil(value / BYTES_PER_MIB))


def to_milli(value: Fraction) -> Milli:
    """Thousandths of ``value``, rounded up."""
    return Milli(_ceil(value * 1000))


def to_count(value: Fraction) -> int | Malformed:
    """``value`` if it is whole, as Kubernetes demands of every extended resource."""
    if value.denominator == 1:
        return value.numerator
    return Malformed(
        "is not a whole number", "write a whole number; Kubernetes refuses fractions of this resource"
    )


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
