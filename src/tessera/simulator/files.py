"""The files of a simulation: each appears whole or not at all. What is in them: :mod:`tessera.simulator`."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tessera.core.errors import UnavailableError
from tessera.runtime.state import temporary_for
from tessera.simulator.curve import Point
from tessera.simulator.ending import CLUSTER_COLUMNS
from tessera.simulator.one import Outcome
from tessera.simulator.result import Run, Summary

PLACEMENTS: Final = "placements.csv"
CLUSTER: Final = "cluster.csv"
CURVE: Final = "curve.csv"
SUMMARY: Final = "summary.json"
PLACEMENT_COLUMNS: Final = ("arrival", "pod", "node", "gpus")
CURVE_COLUMNS: Final = ("policy", "seed", "arrived", "allocation", "fragmentation", "fragmentation_ratio")


class Done(msgspec.Struct, frozen=True):
    """A run that is through; ``key`` says of what it is the outcome, ``points`` is its curve."""

    key: str
    run: Run
    points: tuple[Point, ...]


def folder_of(policy: str, seed: int, *, alone: bool) -> str:
    """Where a run's files lie, relative to the output folder: in it where the run is the only one."""
    return "" if alone else f"{policy}/{seed}/"


def save_run(out: Path, folder: str, outcome: Outcome, key: str) -> Done:
    """Write a run's files, last the one that says that the others are there."""
    placements, cluster = f"{folder}{PLACEMENTS}", f"{folder}{CLUSTER}"
    run = msgspec.structs.replace(outcome.run, placements=placements, cluster=cluster)
    write(out / placements, csv_text(PLACEMENT_COLUMNS, outcome.placement_rows()))
    write(out / cluster, csv_text(CLUSTER_COLUMNS, outcome.cluster_rows()))
    done = Done(key, run, outcome.points)
    write(_note(out, run.policy, run.seed), msgspec.json.encode(done).decode())
    return done


def saved_run(out: Path, policy: str, seed: int, key: str) -> Done | None:
    """The run that an earlier call finished; ``None`` where it did not, or where it was another simulation."""
    try:
        done = msgspec.json.decode(_note(out, policy, seed).read_bytes(), type=Done)
    except (OSError, msgspec.DecodeError):
        return None
    there = all((out / name).is_file() for name in (done.run.placements, done.run.cluster))
    return done if there and done.key == key else None


def _note(out: Path, policy: str, seed: int) -> Path:
    return out / ".runs" / f"{policy}-{seed}.json"


def save_summary(out: Path, summary: Summary, runs: Iterable[Done]) -> None:
    """Write what is told of all runs together."""
    write(out / CURVE, csv_text(CURVE_COLUMNS, (row for done in runs for row in _curve_rows(done))))
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()
    write(out / SUMMARY, text + "\n")


def _curve_rows(done: Done) -> Iterable[Sequence[object]]:
    for point in done.points:
        lost = "" if point.fragmentation is None else f"{point.fragmentation:.2f}"
        ratio = "" if point.ratio is None else f"{point.ratio:.2f}"
        yield done.run.policy, done.run.seed, point.arrived, f"{point.allocation:.2f}", lost, ratio


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file's text, lines ended by a line feed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def write(path: Path, text: str) -> None:
    """Let ``path`` hold ``text``; whoever looks finds the old file or the new one.

    Raises:
        UnavailableError: the place cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_for(path)
        temporary.write_text(text, encoding="utf-8", newline="")
        temporary.replace(path)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path}: {error.strerror}", "name another folder with --out"
        ) from error
