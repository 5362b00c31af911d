"""Reading untyped YAML and JSON without surprises, and collecting what is wrong with it.

A problem found here has no ``source`` and no ``object`` yet: whoever knows the file and the object fills them in
with :func:`located`, so that one reading can serve every pod of equal content.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from typing import Final

from tessera.core.errors import Problem, Severity

_SHOWN: Final = 120
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


@dataclass(slots=True)
class Findings:
    """What was found wrong so far, in the order of reading; ``warn`` notes what is odd but does not stop."""

    found: list[Problem] = field(default_factory=list)

    def error(self, field: str, value: object, message: str, remedy: str) -> None:
        """Note a problem that makes the object invalid."""
        self.found.append(Problem("", "", field, shown(value), message, remedy))

    def warn(self, field: str, value: object, message: str, remedy: str) -> None:
        """Note something that the user should know, though the object is valid."""
        self.found.append(Problem("", "", field, shown(value), message, remedy, Severity.WARNING))

    @property
    def failed(self) -> bool:
        """Whether any error was noted."""
        return any(problem.severity is Severity.ERROR for problem in self.found)


def shown(value: object) -> str:
    """``value`` as a message shows it, cut to a readable length; never walks into nested values."""
    match value:
        case str():
            text = value
        case bool() | None:
            text = {True: "true", False: "false", None: "null"}[value]
        case int():
            text = str(value) if abs(value) < 10**_SHOWN else "a very large number"
        case float():
            text = repr(value)
        case Mapping():
            text = "a mapping"
        case _:
            text = "a list"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def located(problems: Iterable[Problem], source: str, object_label: str) -> tuple[Problem, ...]:
    """Return ``problems`` with the file and the object that they were found in."""
    return tuple(replace(problem, source=source, object=object_label) for problem in problems)


def mapping_at(raw: Mapping[str, object], key: str, path: str, findings: Findings) -> Mapping[str, object]:
    """Mapping under ``key``; empty where it is absent or null, and an error where it is something else."""
    value = raw.get(key)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    findings.error(path, value, "must be a mapping", "indent its keys below it")
    return {}


def list_at(raw: Mapping[str, object], key: str, path: str, findings: Findings) -> Sequence[object]:
    """List under ``key``; empty where it is absent or null, and an error where it is something else."""
    value = raw.get(key)
    if value is None:
        return ()
    if isinstance(value, list):
        return value
    findings.error(path, value, "must be a list", "start each entry with '- '")
    return ()


def count_at(raw: Mapping[str, object], key: str, default: int, findings: Findings) -> int:
    """Whole number of zero or more under ``spec.<key>``, ``default`` where it is absent or null."""
    value = raw.get(key)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    findings.error(f"spec.{key}", value, "must be a whole number of zero or more", "write a number without quotes")
    return 0


def parse_bool(text: str) -> bool | None:
    """Boolean as Go's ``strconv.ParseBool`` reads it, ``None`` where it is none."""
    return True if text in _TRUE else False if text in _FALSE else None


def split_list(text: str, separators: str = ",") -> tuple[str, ...]:
    """Entries of a list in text, trimmed, without empty ones."""
    for separator in separators[1:]:
        text = text.replace(separator, separators[0])
    return tuple(entry for part in text.split(separators[0]) if (entry := part.strip()))


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a remedy that names the known word nearest to ``word``, or ``otherwise`` where none is near.

    A prefix that all of them share counts for nothing; two words that are about as near are both named.
    """
    tails = {name.rpartition("/")[2].casefold(): name for name in sorted(known)}
    tail = word.rpartition("/")[2].casefold()
    near = get_close_matches(tail, tails, n=2, cutoff=0.6)
    if len(near) == 2 and _likeness(tail, near[1]) < _likeness(tail, near[0]) - 0.1:
        near.pop()
    return f"did you mean {' or '.join(tails[name] for name in near)}?" if near else otherwise


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
