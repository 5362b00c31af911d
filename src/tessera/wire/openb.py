"""The public openb trace: its node list becomes a fleet, its pod lists become native requests.

Both are CSV files of Alibaba's cluster-trace-gpu-v2023. A node line is ``sn,cpu_milli,memory_mib,gpu,model``;
a pod line starts ``name,cpu_milli,memory_mib,num_gpu,gpu_milli`` and may go on with columns about how and when
the pod ran, of which only ``gpu_spec`` (the models it may use, joined by ``|``) matters to a placement;
``creation_time`` and ``deletion_time`` say in seconds how long it was there.
Everything is checked before anything is used: one Problem for each wrong cell, with its line and column.

Source: kubernetes-scheduler-simulator (USENIX ATC'23), data/csv.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.core.device import Device, Node
from tessera.core.errors import Problem
from tessera.core.request import Claim, Constraints, Container, Dialect, ModelRule, Pod, Request
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.core.units import WHOLE, MiB, Milli
from tessera.wire.fleetfile import DEFAULT_VENDOR, FleetInput
from tessera.wire.manifests import PlannedPod

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
POD_HISTORY: Final = ("gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
NAMESPACE: Final = "openb"
CONTAINER: Final = "main"


@dataclass(frozen=True, slots=True)
class TraceModel:
    """What a model name of the trace stands for; ``milli_tflops`` is ``None`` where nobody knows."""

    memory_mib: MiB
    milli_tflops: int | None
    assumed: bool = False


# Source: memory from the names (T4, P100, A10: the only or the common size of that product; V100M16 and
# V100M32 say theirs). TFLOPS of FP16: NVIDIA's data sheets. The trace hides what G2 and G3 are and says
# nothing of their memory: 32 GiB and 80 GiB are our guesses, from the size of the nodes that carry them.
MODELS: Final[Mapping[str, TraceModel]] = {
    "T4": TraceModel(MiB(16 * 1024), 65_000),
    "P100": TraceModel(MiB(16 * 1024), 18_700),
    "V100M16": TraceModel(MiB(16 * 1024), 125_000),
    "V100M32": TraceModel(MiB(32 * 1024), 125_000),
    "A10": TraceModel(MiB(24 * 1024), 125_000),
    "G2": TraceModel(MiB(32 * 1024), None, assumed=True),
    "G3": TraceModel(MiB(80 * 1024), None, assumed=True),
}

_REMEDY: Final[Mapping[str, str]] = {
    "cpu_milli": "write milli-cores as digits, e.g. 96000 for 96 cores",
    "memory_mib": "write MiB as digits, e.g. 393216 for 384 GiB",
    "gpu": "write the number of devices of the node as digits, 0 for none",
    "num_gpu": "write the number of devices as digits, 0 for none",
    "gpu_milli": "write thousandths of each device as digits, e.g. 500 for half",
    "creation_time": "write seconds as digits, or nothing",
    "deletion_time": "write seconds as digits, or nothing",
}

_MOST: Final[Mapping[str, int]] = {"gpu": 1024, "num_gpu": 1024}
_MOST_OF_ALL: Final = 10**9
"""Milli-cores or MiB (1 PiB): beyond anything real, and far from where sums would overflow."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a CSV file: where it stands, its name, and its cells by column."""

    source: str
    name: str
    cells: Mapping[str, str]

    def problem(self, column: str, message: str, remedy: str) -> Problem:
        """A problem with one cell of this line."""
        return Problem(self.source, self.name, column, self.cells.get(column, ""), message, remedy)


@dataclass(frozen=True, slots=True)
class TracePods:
    """The pods of a pod list, or everything that is wrong with it."""

    pods: tuple[PlannedPod, ...]
    problems: tuple[Problem, ...]


def looks_like_nodes(text: str) -> bool:
    """Whether ``text`` starts as a node list does."""
    return _first_cell(text) == NODE_COLUMNS[0]


def looks_like_pods(text: str) -> bool:
    """Whether ``text`` starts as a pod list does."""
    return text.lstrip("\ufeff").startswith("name,cpu_milli,")


def _first_cell(text: str) -> str:
    return text.lstrip("\ufeff").split("\n", 1)[0].split(",", 1)[0].strip()


def read_nodes(source: str, text: str) -> FleetInput:
    """The nodes of a node list, devices named ``GPU-<node>-<index>``, or all of its problems."""
    lines, problems = _lines(source, text, NODE_COLUMNS, ())
    nodes = []
    for line in lines:
        counts = _counts(line, ("cpu_milli", "memory_mib", "gpu"), problems)
        model = line.cells["model"].strip()
        if counts["gpu"] and model not in MODELS:
            known = ", ".join(MODELS)
            problems.append(line.problem("model", "is not a model of the trace", f"use one of {known}"))
        elif not problems:
            nodes.append(_node(line.name, counts, model))
    return FleetInput(problems=tuple(problems)) if problems else FleetInput(tuple(nodes), _notes(nodes))


def _node(name: str, counts: Mapping[str, int], model: str) -> Node:
    devices = tuple(_device(name, index, model) for index in range(counts["gpu"]))
    return Node(name, devices, counts["cpu_milli"], counts["memory_mib"], labels={"kubernetes.io/hostname": name})


def _device(node: str, index: int, model: str) -> Device:
    known = MODELS[model]
    return Device(
        uuid=f"GPU-{node}-{index}",
        index=index,
        model=model,
        memory_mib=known.memory_mib,
        vendor=DEFAULT_VENDOR,
        milli_tflops=known.milli_tflops,
    )


def _notes(nodes: Sequence[Node]) -> tuple[str, ...]:
    present = {device.model for node in nodes for device in node.devices[:1]}
    return tuple(
        f"the trace hides what {name} is: assumed {model.memory_mib // 1024} GiB of memory, TFLOPS unknown"
        for name, model in MODELS.items()
        if model.assumed and name in present
    )


def read_pods(source: str, text: str) -> TracePods:
    """The pods of a pod list in its order, each with one container that asks for all of the pod's devices.

    A share of ``gpu_milli`` is that part of a device's compute and the same part of its memory, since the
    trace has one number for both.
    """
    lines, problems = _lines(source, text, POD_COLUMNS, POD_HISTORY)
    pods = []
    for line in lines:
        before = len(problems)
        counts = _counts(line, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), problems)
        stays = _lifetime(line, problems)
        if len(problems) == before and counts["num_gpu"] and not 0 < counts["gpu_milli"] <= WHOLE:
            remedy = "write 1 to 1000 thousandths of each device"
            problems.append(line.problem("gpu_milli", "is not a part of one device", remedy))
        elif not problems:
            where = f"Pod/{NAMESPACE}/{line.name}"
            pods.append(PlannedPod(_pod(line, counts), line.source, where, stays=stays))
    return TracePods((), tuple(problems)) if problems else TracePods(tuple(pods), ())


def _lifetime(line: Line, problems: list[Problem]) -> int | None:
    """Seconds from creation to deletion; ``None`` where one of the two is not said."""
    columns = ("creation_time", "deletion_time")
    if any(not (line.cells.get(column) or "").strip() for column in columns):
        return None
    before = len(problems)
    counts = _counts(line, columns, problems)
    seconds = counts["deletion_time"] - counts["creation_time"]
    if seconds < 0 and len(problems) == before:
        problems.append(line.problem("deletion_time", "is before the creation", _REMEDY["deletion_time"]))
    return max(seconds, 0)


def _pod(line: Line, counts: Mapping[str, int]) -> Pod:
    spec = (line.cells.get("gpu_spec") or "").strip()
    request = _request(counts["num_gpu"], counts["gpu_milli"], spec) if counts["num_gpu"] else None
    return Pod(
        namespace=NAMESPACE,
        name=line.name,
        uid=f"{line.source}/{line.name}",
        containers=(Container(CONTAINER),),
        request=request,
        dialect=Dialect.NATIVE if request else None,
        cpu_milli=counts["cpu_milli"],
        memory_mib=counts["memory_mib"],
    )


def _request(count: int, milli: int, spec: str) -> Request:
    memory, compute = MemoryFraction(Milli(milli)), ComputeMilli(Milli(milli))
    # As written, repeats included: the published target workload counts differently written pods apart.
    models = tuple(ModelRule(name.strip(), exact=True) for name in spec.split("|") if name.strip())
    claim = Claim((CONTAINER,), count, ShareSpec(memory, memory, compute, compute))
    return Request((claim,), Constraints(models_allowed=models))


def _lines(
    source: str, text: str, required: Sequence[str], optional: Sequence[str]
) -> tuple[list[Line], list[Problem]]:
    """The lines of a CSV file whose header has all of ``required`` and nothing beside ``optional``."""
    reader = csv.reader(text.lstrip("\ufeff").splitlines())
    header = [cell.strip() for cell in next(reader, [])]
    problems = list(_header_problems(source, header, required, optional))
    if problems:
        return [], problems
    lines = list(_rows(reader, source, header, problems.append))
    seen: set[str] = set()
    for line in lines:
        if line.name in seen:
            problems.append(line.problem(header[0], "is on an earlier line too", "give every line its own name"))
        seen.add(line.name)
    if not lines and not problems:
        problems.append(Problem(source, "", "", "", "has a header and no lines", "add a line for each"))
    return lines, problems


def _rows(
    reader: Iterator[list[str]], source: str, header: Sequence[str], report: Callable[[Problem], None]
) -> Iterator[Line]:
    for number, cells in enumerate(reader, start=2):
        where = f"{source}:{number}"
        if not cells:
            continue
        if len(cells) != len(header):
            message = f"has {len(cells)} cells where the header has {len(header)}"
            report(Problem(where, cells[0], "", ",".join(cells), message, "give each column one cell"))
            continue
        line = Line(where, cells[0].strip(), dict(zip(header, cells, strict=True)))
        if not line.name:
            report(line.problem(header[0], "is empty", "give every line a name"))
        yield line


def _header_problems(
    source: str, header: Sequence[str], required: Sequence[str], optional: Sequence[str]
) -> Iterator[Problem]:
    where = f"{source}:1"
    expected = ",".join(required)
    if missing := [name for name in required if name not in header]:
        message = f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        yield Problem(where, "", "", ",".join(header), message, _swapped(header) or f"start with {expected}")
        return
    for name in header:
        if name not in (*required, *optional):
            yield Problem(where, "", name, "", "is an unknown column", f"leave it out; known are {expected}")
    for name in sorted({name for name in header if header.count(name) > 1}):
        yield Problem(where, "", name, "", "is there twice", "keep one of them")


def _swapped(header: Sequence[str]) -> str:
    """A remedy where the other kind of list was given."""
    if set(NODE_COLUMNS) <= set(header):
        return "this is a node list: give it with --fleet"
    if set(POD_COLUMNS) <= set(header):
        return "this is a pod list: give it with -f"
    return ""


def _counts(line: Line, columns: Sequence[str], problems: list[Problem]) -> dict[str, int]:
    """The cells of ``columns`` as numbers, 0 where a problem was added."""
    found = dict.fromkeys(columns, 0)
    for column in columns:
        cell, most = line.cells[column].strip(), _MOST.get(column, _MOST_OF_ALL)
        if not (cell.isascii() and cell.isdigit()):
            problems.append(line.problem(column, "is not a whole number of 0 or more", _REMEDY[column]))
        elif len(cell) > len(str(most)) or int(cell) > most:
            problems.append(line.problem(column, f"is more than {most:,}", _REMEDY[column]))
        else:
            found[column] = int(cell)
    return found
