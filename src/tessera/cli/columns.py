"""Columns and small units for the commands of one machine; plain text, nothing cut in a pipe."""

from collections.abc import Iterator, Sequence
from typing import Final

import click

from tessera.core.units import render_percent

_MIB_PER_GIB: Final = 1024
_STEPS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """A table as lines, the header first; ``right`` are the positions of columns of numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def aligned(cells: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:>{width}}" if at in right else f"{cell:<{width}}"
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    yield click.style(aligned(header), bold=True)
    for row in rows:
        yield aligned(row)


def gib(mib: int) -> str:
    """Memory in the unit of device memory: ``20Gi``, ``7.5Gi``, ``512Mi``, ``0``."""
    if mib < _MIB_PER_GIB:
        return f"{mib}Mi" if mib else "0"
    whole, rest = divmod(mib, _MIB_PER_GIB)
    return f"{mib / _MIB_PER_GIB:.1f}Gi" if rest else f"{whole}Gi"


def percent(milli: int) -> str:
    """Compute as percent; a dash for none."""
    return render_percent(milli) if milli else "-"


def span(seconds: float) -> str:
    """A time span with its two largest units: ``45s``, ``3m10s``, ``2h5m``, ``3d4h``."""
    left = int(seconds)
    for size, unit, next_size, next_unit in _STEPS:
        if left >= size:
            rest = left % size // next_size
            return f"{left // size}{unit}{rest}{next_unit}" if rest else f"{left // size}{unit}"
    return f"{left}s"


def command_text(words: Sequence[str]) -> str:
    """A command on one line, whatever blanks and line breaks it has."""
    return " ".join(" ".join(words).split())
