"""The scheduler's log as pods: what asked for devices while it was written, in that order, and for how long.

One JSON object a line (:mod:`tessera.runtime.log`). Of the lines of the logger ``scheduler`` these matter::

    {"time": ..., "message": "bound",   "pod": "team/a", "uid": ..., "request": text, "cpu_milli": 4000, ...}
    {"time": ..., "message": "refused", the same}
    {"time": ..., "message": "ended",   "uid": ...}

Other lines, and lines that are no objects (a log that was cut, another container's), are passed over. A pod counts
once, from the first line that names it. What a pod asks of its node's memory is not in the log.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import msgspec

from tessera.core.errors import Problem
from tessera.core.request import Container, Pod, Request
from tessera.wire.kube.request import decode_request
from tessera.wire.manifests import PlannedPod

LOGGER: Final = "scheduler"
BOUND: Final = "bound"
REFUSED: Final = "refused"
ENDED: Final = "ended"

_REMEDY: Final = "give the log of a `tessera scheduler`, one JSON object a line"


class _Line(msgspec.Struct, frozen=True, gc=False):
    """A line as the scheduler writes it; what other lines have is left out."""

    time: str = ""
    logger: str = ""
    message: str = ""
    pod: str = ""
    uid: str = ""
    request: str = ""
    cpu_milli: int = 0


@dataclass(frozen=True, slots=True)
class LoggedPods:
    """The pods of a log, or all that is wrong with it; ``skipped`` counts pods whose request is not told."""

    pods: tuple[PlannedPod, ...] = ()
    problems: tuple[Problem, ...] = ()
    skipped: int = 0


def read_log(source: str, text: str) -> LoggedPods:
    """The pods that a log tells of, in the order in which they were first decided on."""
    log = _Log(source)
    for number, line in _lines(text):
        if line.message == ENDED:
            log.ended(line)
        elif line.message in (BOUND, REFUSED):
            log.asked(number, line)
    if not log.found and not log.problems:
        log.problems.append(Problem(source, "", "", "", "tells of no pod that asked for devices", _REMEDY))
    return LoggedPods((), tuple(log.problems)) if log.problems else LoggedPods(log.pods(), (), len(log.untold))


@dataclass(slots=True)
class _Log:
    """What was read so far, by uid."""

    source: str
    found: dict[str, PlannedPod] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def asked(self, number: int, line: _Line) -> None:
        """A pod was bound or refused."""
        if line.uid not in self.found:
            if not line.request:
                self.untold.add(line.uid)
                return
            made = _planned(f"{self.source}:{number}", line)
            if isinstance(made, Problem):
                self.problems.append(made)
                return
            self.found[line.uid] = made
        if line.message == BOUND:
            self.bound[line.uid] = _seconds(line.time)

    def ended(self, line: _Line) -> None:
        """A pod is gone."""
        if line.uid in self.bound:
            stays = max(0, round(_seconds(line.time) - self.bound[line.uid]))
            self.found[line.uid] = replace(self.found[line.uid], stays=stays)

    def pods(self) -> tuple[PlannedPod, ...]:
        """The pods, in the order in which they were first decided on."""
        return tuple(self.found.values())


def _lines(text: str) -> Iterator[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("{"):
            continue
        try:
            read = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if read.logger == LOGGER and read.uid:
            yield number, read


def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


def _planned(where: str, line: _Line) -> PlannedPod | Problem:
    try:
        request, dialect = decode_request(line.request)
    except ValueError as error:
        remedy = "give the log of the scheduler of this version"
        return Problem(where, f"Pod/{line.pod}", "request", line.request, str(error), remedy)
    namespace, _, name = line.pod.rpartition("/")
    pod = Pod(namespace, name, line.uid, _containers(request), request, dialect, cpu_milli=line.cpu_milli)
    return PlannedPod(pod, where, f"Pod/{line.pod}")


def _containers(request: Request) -> tuple[Container, ...]:
    """The containers that the request is for, as if all ran at the same time."""
    names: Mapping[str, None] = dict.fromkeys(name for claim in request.claims for name in claim.containers)
    return tuple(Container(name) for name in names)
