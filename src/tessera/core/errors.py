"""Errors of Tessera, one tree, each with fields and not only text.

::

    TesseraError
    ├── InputErrors        one or more Problems found in what a user wrote (exit code 2)
    └── UnavailableError   the world lacks something: a driver, a library, a device
        └── StaleLibraryError   (runtime.nvml) the driver was replaced under this process

A request that does not fit is not an error: it is a :class:`~tessera.core.placement.Rejected` value.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class TesseraError(Exception):
    """Root of the tree; catch this to catch everything that Tessera raises on purpose."""


class Severity(StrEnum):
    """Whether a problem stops the call (error) or is merely odd (warning)."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with what a user wrote: where, what, and how to mend it.

    ``source`` is a file or flag, ``object`` a ``Kind/namespace/name`` or empty, ``field`` a path inside the
    object or empty, ``value`` what stood there.
    """

    source: str
    object: str
    field: str
    value: str
    message: str
    remedy: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.source, self.object, self.field) if part)
        what = f"{self.message} (got {self.value!r})" if self.value else self.message
        return f"{where}: {what}; {self.remedy}" if where else f"{what}; {self.remedy}"


class InputErrors(TesseraError):
    """Everything wrong with one call's input, not only the first thing."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class UnavailableError(TesseraError):
    """Something outside of Tessera is missing; ``remedy`` says what to do about it."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}; {remedy}")
