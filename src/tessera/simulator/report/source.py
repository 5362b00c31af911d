"""What a report is made from, read from the folder of a simulation."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tessera.core.errors import UnavailableError
from tessera.simulator.curve import Point
from tessera.simulator.files import CURVE, SUMMARY
from tessera.simulator.result import Run, Summary

_REMEDY: Final = "run `tessera simulate` again with the same --out"


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node as a run left it: milli-cores used of how many (``None``: not known), milli used of each device."""

    node: str
    model: str
    cpu_milli: int | None
    cpu_used: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """A simulation: its summary, the curve of each run, and the nodes that the first run of each policy left."""

    summary: Summary
    curves: Mapping[tuple[str, int], Sequence[Point]]
    nodes: Mapping[str, Sequence[NodeLeft]]


def read_results(folder: Path) -> Results:
    """What the simulation left in its folder.

    Raises:
        UnavailableError: a file is missing or is not what a simulation writes.
    """
    summary = _summary(folder / SUMMARY)
    firsts: dict[str, Run] = {}
    for run in summary.runs:
        firsts.setdefault(run.policy, run)
    nodes = {policy: _nodes(folder / run.cluster) for policy, run in firsts.items()}
    return Results(summary, _curves(folder / CURVE), nodes)


def _summary(path: Path) -> Summary:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}", _REMEDY) from error
    except msgspec.DecodeError as error:
        raise UnavailableError(f"{path} is not the summary of a simulation: {error}", _REMEDY) from error


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(lines))
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}", _REMEDY) from error


def _curves(path: Path) -> dict[tuple[str, int], list[Point]]:
    curves: dict[tuple[str, int], list[Point]] = {}
    try:
        for row in _rows(path):
            lost, ratio = (_optional(row[name]) for name in ("fragmentation", "fragmentation_ratio"))
            point = Point(int(row["arrived"]), float(row["allocation"]), lost, ratio)
            curves.setdefault((row["policy"], int(row["seed"])), []).append(point)
    except (KeyError, ValueError) as error:
        raise UnavailableError(f"{path} is not the curve of a simulation: {error}", _REMEDY) from error
    return curves


def _optional(cell: str) -> float | None:
    return float(cell) if cell else None


def _nodes(path: Path) -> list[NodeLeft]:
    try:
        return [_node(row) for row in _rows(path)]
    except (KeyError, ValueError) as error:
        raise UnavailableError(f"{path} is not a cluster that a simulation left: {error}", _REMEDY) from error


def _node(row: Mapping[str, str]) -> NodeLeft:
    devices = tuple(int(cell) for cell in row["devices"].split(";") if cell)
    cpu = int(row["cpu_milli"]) if row["cpu_milli"] else None
    return NodeLeft(row["node"], row["model"], cpu, int(row["cpu_used"]), devices)
