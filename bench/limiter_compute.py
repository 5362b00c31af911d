"""How well compute limits hold, and what a launch costs under them: the limiter over the simulated driver.

Runs ``make -C limiter bench-accuracy`` (minutes of virtual time for every card, limit and kind of work) and
``make -C limiter bench-compute`` (nanoseconds, the same machine in turns), prints both as tables and, with
``--page``, writes a page with a plot of limit against measured time for every kind of work.

    python bench/limiter_compute.py [--page FILE.html] [--table FILE.tsv]

On a machine with a real device nothing here is measured on it: the driver is the simulated one.
"""

import argparse
import html
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMITER: Final = Path(__file__).resolve().parent.parent / "limiter"
POINTS: Final = 2.0
"""How far a mean may lie from its limit."""
NEAR_SECONDS: Final = 95.0
"""Percent of the seconds that must lie within 15 points."""
_PLOT: Final = 220
_OVERHEAD: Final = re.compile(r"overhead (-?[\d.]+) ns median")


@dataclass(frozen=True, slots=True)
class Run:
    """A minute under a limit; percent of the device."""

    work: str
    sms: int
    limit: float
    mean: float
    near: float

    @property
    def is_held(self) -> bool:
        """Whether the promise was kept."""
        return abs(self.mean - self.limit) <= POINTS and self.near >= NEAR_SECONDS


def parse_runs(lines: Iterable[str]) -> tuple[Run, ...]:
    """The runs in the program's output; lines that are none are passed over."""
    rows = (line.rstrip("\n").split("\t") for line in lines)
    return tuple(Run(r[0], int(r[1]), float(r[2]), float(r[3]), float(r[4])) for r in rows if len(r) >= 5)


def render_table(runs: Sequence[Run]) -> str:
    """For each kind of work and limit: the worst mean and the worst seconds over all cards."""
    groups: dict[tuple[str, float], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.work, run.limit].append(run)
    lines = [f"{'work':<20} {'limit':>6} {'lowest':>7} {'highest':>8} {'seconds near':>13}  cards"]
    for (work, limit), found in groups.items():
        means = [run.mean for run in found]
        cards = f"{min(r.sms for r in found)}-{max(r.sms for r in found)} SMs"
        mark = "" if all(run.is_held for run in found) else "  NOT HELD"
        near = min(run.near for run in found)
        lines.append(
            f"{work:<20} {limit:>5.0f}% {min(means):>6.2f}% {max(means):>7.2f}% {near:>12.1f}%  {cards}{mark}"
        )
    return "\n".join(lines)


def _plot(work: str, runs: Sequence[Run]) -> str:
    def at(percent: float) -> float:
        return percent / 100 * _PLOT

    dots = "".join(
        f'<circle cx="{at(run.limit):.1f}" cy="{_PLOT - at(run.mean):.1f}" r="3" fill-opacity="0.4">'
        f"<title>{run.sms} SMs, limit {run.limit:.0f} %: {run.mean:.2f} %</title></circle>"
        for run in runs
    )
    return (
        f"<figure><figcaption>{html.escape(work)}</figcaption>"
        f'<svg viewBox="-10 -10 {_PLOT + 20} {_PLOT + 20}" width="{_PLOT + 20}">'
        f'<rect width="{_PLOT}" height="{_PLOT}" fill="none" stroke="#bbb"/>'
        f'<line x1="0" y1="{_PLOT}" x2="{_PLOT}" y2="0" stroke="#bbb"/>{dots}</svg></figure>'
    )


def render_page(runs: Sequence[Run], overheads: Sequence[float]) -> str:
    """A page of its own: the table, and a plot for every kind of work (limit across, measured up, in percent)."""
    works = tuple(dict.fromkeys(run.work for run in runs))
    plots = "".join(_plot(work, [run for run in runs if run.work == work]) for work in works)
    without, limited = overheads
    return (
        '<!doctype html><meta charset="utf-8"><title>Compute limits: accuracy</title>'
        "<style>body{font:15px sans-serif;max-width:60em;margin:2em auto}figure{display:inline-block}</style>"
        "<h1>Compute limits: accuracy</h1>"
        "<p>The limiter's own hooks over the simulated driver, a minute of virtual time a run. Across: the limit; "
        "up: the share's device time, both in percent of the device.</p>"
        f"{plots}<pre>{html.escape(render_table(runs))}</pre>"
        f"<p>A launch costs {without:.1f} ns more without a limit, {limited:.1f} ns under one (medians).</p>"
    )


def _make(target: str) -> str:
    command = ["make", "--no-print-directory", "-C", str(LIMITER), target]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    """Run both, print, write what was asked for; 1 if a limit did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    overheads = [float(found) for found in _OVERHEAD.findall(_make("bench-compute"))]
    output = _make("bench-accuracy")
    runs = parse_runs(output.splitlines())
    print(render_table(runs))
    print(f"\nadded to a launch: {overheads[0]:.1f} ns without a limit, {overheads[1]:.1f} ns under one (medians)")
    if options.table:
        options.table.write_text(output)
    if options.page:
        options.page.write_text(render_page(runs, overheads))
    return 0 if runs and all(run.is_held for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
