"""The limiter's figures: what the programs in limiter/bench print, as values with the goal of each."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

POINTS: Final = 2.0
"""How far a mean may lie from what the mode promises."""
NEAR_SECONDS: Final = 95.0
"""Percent of the seconds that must lie within 15 points of it."""
FLOOR_MS: Final = 500.0
"""How long an owner may wait for its own."""
_SHORT: Final = -1.0
"""Percent of its limit that a share may lose where a family takes more at once than it was asked for."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``is_met`` is None for what has no goal."""

    what: str
    goal: str
    measured: str
    is_met: bool | None


@dataclass(frozen=True, slots=True)
class Run:
    """A minute under a limit; percent of the device. ``promised`` is what the mode promises of it."""

    mode: str
    work: str
    sms: int
    limit: float
    promised: float
    mean: float
    near: float

    @property
    def is_held(self) -> bool:
        """Whether the promise was kept."""
        return abs(self.mean - self.promised) <= POINTS and self.near >= NEAR_SECONDS


@dataclass(frozen=True, slots=True)
class Floor:
    """How long an owner waited, from its first launch, for a half-second with nine tenths of its limit in it.

    ``then`` is what it had in the half-second after the promise, in percent of the device.
    """

    kernel: str
    sms: int
    limit: float
    ms: float
    then: float


def parse_runs(text: str) -> tuple[Run, ...]:
    """The runs in the output of bench_accuracy; lines that are none are passed over."""
    rows = (line.split("\t") for line in text.splitlines())
    return tuple(
        Run(r[0], r[1], int(r[2]), float(r[3]), float(r[4]), float(r[5]), float(r[6]))
        for r in rows
        if len(r) >= 7 and r[0] != "floor"
    )


def parse_floors(text: str) -> tuple[Floor, ...]:
    """The lines of ``bench_accuracy floor``."""
    rows = (line.split("\t") for line in text.splitlines())
    return tuple(Floor(r[1], int(r[2]), *map(float, r[3:6])) for r in rows if r[0] == "floor")


def refusal_figures(text: str) -> tuple[Figure, ...]:
    """What the host sees past the limit when each family is refused."""
    found = re.findall(
        r"^(\S.*?) +host sees +[\d.]+ MiB of \d+, +([+-][\d.]+) MiB = ([+-][\d.]+) %", text, re.MULTILINE
    )
    return tuple(
        Figure(
            f"refused, {family}: bytes that the host sees less the limit",
            "0 MiB at most, -1 % at least",
            f"{mib} MiB, {percent} %",
            float(mib) <= 0 and float(percent) >= _SHORT,
        )
        for family, mib, percent in found
    )


def launch_figures(text: str) -> tuple[Figure, ...]:
    """What a launch costs more, without a limit and under one, in the order in which bench_compute was called."""
    medians = re.findall(r"overhead (-?[\d.]+) ns median", text)
    kinds = (("launch, no compute limit", 15.0), ("launch, compute limit", 100.0))
    return tuple(_nanoseconds(what, float(ns), goal) for (what, goal), ns in zip(kinds, medians, strict=False))


def call_figures(text: str) -> tuple[Figure, ...]:
    """What allocation, free and memory query cost more, with nothing and with 4,096 allocations held."""
    found = re.findall(r"^(nothing held|4,096 held): +(\w+) +driver.*overhead +(-?[\d.]+) ns", text, re.MULTILINE)
    sums: dict[str, float] = defaultdict(float)
    for held, call, ns in found:
        sums[f"{held}, memory query" if call == "cuMemGetInfo" else f"{held}, allocate + free"] += float(ns)
    return tuple(_nanoseconds(what, ns, 20.0 if what.endswith("query") else 60.0) for what, ns in sums.items())


def kill_figure(text: str) -> tuple[Figure, ...]:
    """How long others wait for what a killed process held."""
    found = re.search(
        r"^(\d+) kills, seed (\d+).*p50 (\d+) us, p99 (\d+) us, worst (\d+) us, of which .* wait (\d+)",
        text,
        re.MULTILINE,
    )
    if found is None:
        return ()
    kills, seed, p50, p99, worst, asleep = map(int, found.groups())
    what = f"acquire after SIGKILL at {kills:,} random points (seed {seed}), 16 waiters, the last of them"
    measured = (
        f"worst {worst / 1000:.1f} ms, {asleep / 1000:.1f} of them until the system ran it "
        f"(p50 {p50 / 1000:.1f}, p99 {p99 / 1000:.1f})"
    )
    return (Figure(what, "1,000 ms always", measured, worst <= 1_000_000),)


def start_figures(text: str) -> tuple[Figure, ...]:
    """What a start costs more with 512 slots taken; judged by processor time: wall time has other work in it."""
    found = re.findall(
        r"^start of (.*?): bare (\d+) us.*with 512 slots taken (-?\d+) us \(processor (-?\d+)\)",
        text,
        re.MULTILINE,
    )
    return tuple(
        Figure(
            f"start of {what} with 512 slots taken, added",
            "1,000 us",
            f"{processor} us of processor, {wall} us of wall time (bare {bare} us)",
            int(processor) <= 1000,
        )
        for what, bare, wall, processor in found
    )


def audit_figures(text: str) -> tuple[Figure, ...]:
    """Symbols interposed where control is disabled."""
    found = re.search(r"^control disabled: (\d+) of \d+ driver symbols, (\d+) of \d+ NVML", text, re.MULTILINE)
    if found is None:
        return ()
    count = sum(map(int, found.groups()))
    return (Figure("symbols interposed with control disabled", "0", str(count), count == 0),)


def compute_figures(runs: Sequence[Run], floors: Sequence[Floor]) -> tuple[Figure, ...]:
    """How well limits hold, by mode, and how soon a floor is back."""
    found = [
        _mode_figure(mode, [run for run in runs if run.mode == mode]) for mode in _in_order(r.mode for r in runs)
    ]
    if floors:
        late = max(floors, key=lambda floor: floor.ms)
        case = f"{late.kernel}, {late.sms} SMs, {late.limit:.0f} %"
        then = min(floor.then / floor.limit for floor in floors)
        measured = (
            f"{late.ms:.0f} ms at worst ({case}); {then:.0%} of the limit at least in the half-second after "
            f"{FLOOR_MS:.0f} ms; {len(floors)} cases"
        )
        found.append(
            Figure(
                "floor (nine tenths of it) back with a busy owner",
                f"{FLOOR_MS:.0f} ms",
                measured,
                late.ms <= FLOOR_MS,
            )
        )
    return tuple(found)


def _mode_figure(mode: str, runs: Sequence[Run]) -> Figure:
    off = max(runs, key=lambda run: abs(run.mean - run.promised))
    near = min(run.near for run in runs)
    cards = f"{min(r.sms for r in runs)} to {max(r.sms for r in runs)} SMs"
    measured = (
        f"{off.mean - off.promised:+.2f} points at worst ({off.work}, {off.sms} SMs, {off.limit:.0f} %); "
        f"{near:.1f} % of the seconds at least; {len(runs)} runs"
    )
    goal = f"within {POINTS:.0f} points; {NEAR_SECONDS:.0f} % of the seconds within 15"
    return Figure(
        f"{mode}: mean device time against the promise, {cards}", goal, measured, all(r.is_held for r in runs)
    )


def device_figures(text: str) -> tuple[Figure, ...]:
    """How well a limit holds in real time: lines of limit, mean and seconds near it."""
    rows = [line.split("\t") for line in text.splitlines()]
    return tuple(
        Figure(
            f"limit of {float(limit):.0f} % in real time, alone, without an agent",
            f"within 5 points; {NEAR_SECONDS:.0f} % of the seconds within 15",
            f"{float(mean):.2f} %; {float(near):.1f} % of the seconds",
            abs(float(mean) - float(limit)) <= 5 and float(near) >= NEAR_SECONDS,
        )
        for limit, mean, near in (row for row in rows if len(row) == 3)
    )


def render_figures(figures: Sequence[Figure]) -> str:
    """The table, for a terminal."""
    marks = {True: "met", False: "NOT MET", None: "-"}
    return "\n".join(f"{marks[f.is_met]:<8} {f.what}: {f.measured} (goal {f.goal})" for f in figures)


def render_runs(runs: Sequence[Run]) -> str:
    """For each mode, kind of work and limit: the worst mean and the worst seconds over all cards."""
    groups: dict[tuple[str, str, float], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.mode, run.work, run.limit].append(run)
    lines = [
        f"{'mode':<12} {'work':<20} {'limit':>6} {'promise':>8} {'lowest':>8} {'highest':>8} {'seconds near':>13}"
    ]
    for (mode, work, limit), found in groups.items():
        means = [run.mean for run in found]
        mark = "" if all(run.is_held for run in found) else "  NOT HELD"
        lines.append(
            f"{mode:<12} {work:<20} {limit:>5.0f}% {found[0].promised:>7.0f}% {min(means):>7.2f}% "
            f"{max(means):>7.2f}% {min(run.near for run in found):>12.1f}%{mark}"
        )
    return "\n".join(lines)


def _nanoseconds(what: str, ns: float, goal: float) -> Figure:
    return Figure(f"{what}, added", f"{goal:.0f} ns", f"{ns:.1f} ns", ns <= goal)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
