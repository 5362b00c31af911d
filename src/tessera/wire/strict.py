"""Strict reading of mappings by a table of their keys: everything wrong is reported, nothing is guessed.

A reader turns one written value into what it means, or raises ``ValueError`` with what is wrong with it; the
table adds what to write instead. The readers here are those that more than one kind of file needs.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.errors import Problem
from tessera.wire.fields import did_you_mean, shown

Read = Callable[[object], Any]

_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Field:
    """One key: how its value is read, what to write where that fails, and whether it must be there."""

    read: Read
    remedy: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Collects the problems of one object of one file."""

    source: str
    about: str
    problems: list[Problem]

    def add(self, path: str, value: object, message: str, remedy: str) -> None:
        """One more problem; ``value`` is what stood there, ``None`` where nothing did."""
        text = "" if value is None else shown(value)
        self.problems.append(Problem(self.source, self.about, path, text, message, remedy))


def read_mapping(report: Report, path: str, value: object, fields: Mapping[str, Field]) -> dict[str, Any]:
    """The values of ``value`` by key, without those that are absent, null or wrong (which are reported)."""
    if not isinstance(value, Mapping):
        report.add(path, value, "is not a mapping", f"write keys and values; known are {', '.join(fields)}")
        return {}
    for key in value:
        if key not in fields:
            _unknown(report, path, key, fields)
    found = {}
    for key, field in fields.items():
        where = f"{path}.{key}" if path else key
        if value.get(key) is None:
            if field.required:
                report.add(where, None, "is missing", field.remedy)
            continue
        try:
            found[key] = field.read(value[key])
        except ValueError as error:
            report.add(where, value[key], str(error), field.remedy)
    return found


def _unknown(report: Report, path: str, key: object, fields: Mapping[str, Field]) -> None:
    remedy = did_you_mean(str(key), fields, f"leave it out; known are {', '.join(fields)}")
    report.add(f"{path}.{key}" if path else str(key), None, "is an unknown key", remedy)


def whole(least: int, most: int) -> Read:
    """A reader of whole numbers between the two bounds."""

    def read(value: object) -> int:
        # YAML's true is an int to Python, and is not a number to anybody who writes it.
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("is not a whole number")
        if not least <= value <= most:
            raise ValueError(f"is not between {least} and {most:,}")
        return value

    return read


def flag(value: object) -> bool:
    """``true`` or ``false`` and nothing like it."""
    if not isinstance(value, bool):
        raise ValueError("is not true or false")
    return value


def word(value: object) -> str:
    """A string that is not empty and has no blanks at its ends."""
    if not isinstance(value, str):
        raise ValueError("is not a string")
    if not value.strip():
        raise ValueError("is empty")
    return value.strip()


def dns_name(value: object) -> str:
    """A name that Kubernetes would take for a node."""
    name = word(value)
    if not _DNS_NAME.fullmatch(name):
        raise ValueError("is not a name of lower-case letters, digits, '-' and '.'")
    return name


def strings(value: object) -> dict[str, str]:
    """A mapping of strings to strings."""
    if not isinstance(value, Mapping):
        raise ValueError("is not a mapping")
    wrong = [key for key, item in value.items() if not (isinstance(key, str) and isinstance(item, str))]
    if wrong:
        raise ValueError(f"has a value at {wrong[0]} that is not a string")
    return dict(value)


def listed(value: object) -> list[object]:
    """A list that is not empty."""
    if not isinstance(value, list):
        raise ValueError("is not a list")
    if not value:
        raise ValueError("is empty")
    return value


def exactly(text: str) -> Read:
    """A reader that takes this one string."""

    def read(value: object) -> str:
        if value != text:
            raise ValueError(f"is not {text}")
        return text

    return read
