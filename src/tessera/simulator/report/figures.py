"""The numbers that a report shows, worked out from a simulation's results: means over the seeds.

Nothing here draws or words anything, so that every number on the page can be checked by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from tessera.core.units import WHOLE
from tessera.simulator.curve import Point
from tessera.simulator.report.source import Results
from tessera.simulator.result import Idle, Kind, Run, Summary

ALL_ARRIVED: Final = "100"
"""The point of the curve at which as much was asked for as there is."""

REASONS: Final = ("small", "host", "wrong", "usable")
"""Why idle devices are idle, in the order in which they are shown."""


def runs_of(summary: Summary, policy: str) -> list[Run]:
    """The runs of one policy."""
    return [run for run in summary.runs if run.policy == policy]


def policies_of(summary: Summary) -> list[str]:
    """The policies in the order in which they were named."""
    return [entry.policy for entry in summary.policies]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a policy did: percent of the devices held, in its mean, least and greatest run.

    With departures, ``turned_away`` is the percent of the demand for devices that was rejected; else ``None``.
    """

    policy: str
    held: float
    least: float
    greatest: float
    turned_away: float | None = None


def measured_at(summary: Summary) -> str | None:
    """Where policies are compared: when all was asked for that there is; ``None`` stands for the end."""
    reached = all(ALL_ARRIVED in entry.allocation for entry in summary.policies)
    return ALL_ARRIVED if reached and not has_churn(summary) else None


def has_churn(summary: Summary) -> bool:
    """Whether pods left again."""
    return any(run.churn is not None for run in summary.runs)


def standings(summary: Summary) -> list[Standing]:
    """All policies, the best first: who held most, or with departures who turned away least."""
    if has_churn(summary):
        found = [_over_time(summary, policy) for policy in policies_of(summary)]
        return sorted(found, key=lambda s: (s.turned_away or 0.0, -s.held))
    point = measured_at(summary)
    across = [(e.policy, e.allocation[point] if point else e.end) for e in summary.policies]
    return sorted((Standing(p, a.mean, a.least, a.greatest) for p, a in across), key=lambda s: -s.held)


def ahead(summary: Summary, policy: str, other: str) -> tuple[int, int]:
    """In how many runs ``policy`` held more than ``other`` did on the same seed, and of how many."""
    point = measured_at(summary)
    held, others = (
        {run.seed: run.allocation[point] if point else run.end for run in runs_of(summary, of)}
        for of in (policy, other)
    )
    seeds = held.keys() & others.keys()
    return sum(held[seed] > others[seed] for seed in seeds), len(seeds)


def _over_time(summary: Summary, policy: str) -> Standing:
    churns = [run.churn for run in runs_of(summary, policy) if run.churn is not None]
    held = [churn.allocation for churn in churns]
    return Standing(policy, fmean(held), min(held), max(held), fmean(churn.rejected_demand for churn in churns))


@dataclass(frozen=True, slots=True)
class IdlePart:
    """Devices' worth of one model that is idle at the end, mean over the seeds, and why.

    ``small``: too little is left on a device or on too few of a node's; ``host``: the node lacks processors or
    memory; ``wrong``: the workload may not use the model; ``usable``: nothing speaks against using it.
    """

    model: str
    idle: float
    small: float
    host: float
    wrong: float
    usable: float


def idle_parts(summary: Summary, policy: str) -> list[IdlePart]:
    """Where and why devices are idle at the end under one policy; the models with most of it first."""
    by_model: dict[str, list[Idle]] = {}
    runs = runs_of(summary, policy)
    for idle in (idle for run in runs for idle in run.idle):
        by_model.setdefault(idle.model, []).append(idle)
    parts = [
        IdlePart(
            model,
            *(sum(getattr(i, name) for i in found) / (WHOLE * len(runs)) for name in ("milli", "small", "host")),
            *(sum(getattr(i, name) for i in found) / (WHOLE * len(runs)) for name in ("model_only", "usable")),
        )
        for model, found in by_model.items()
    ]
    return sorted(parts, key=lambda part: (-part.idle, part.model))


def idle_in_all(parts: Iterable[IdlePart]) -> dict[str, float]:
    """Devices' worth by reason, of all models together."""
    listed = list(parts)
    return {reason: sum(getattr(part, reason) for part in listed) for reason in REASONS}


def rests(summary: Summary, policy: str) -> dict[str, list[float]]:
    """How many devices of each model have how much left at the end, mean over the seeds: see ``Idle.rests``."""
    runs = runs_of(summary, policy)
    found: dict[str, list[float]] = {}
    for idle in (idle for run in runs for idle in run.idle):
        sums = found.setdefault(idle.model, [0.0] * len(idle.rests))
        for i, count in enumerate(idle.rests):
            sums[i] += count / len(runs)
    return dict(sorted(found.items(), key=lambda item: (-sum(item[1]), item[0])))


@dataclass(frozen=True, slots=True)
class Turned:
    """What became of one class of pods, sums over the seeds. Demand is in devices.

    ``early`` are those rejected while not more was asked for than there is, of the ``arrived_early``.
    """

    kind: Kind
    constrained: bool
    arrived: int
    rejected: int
    arrived_early: int
    early: int
    asked: float
    rejected_demand: float

    @property
    def percent(self) -> float:
        """Percent of the class that was rejected."""
        return 100 * self.rejected / self.arrived if self.arrived else 0.0

    @property
    def early_percent(self) -> float:
        """The same while not more had been asked for than there is."""
        return 100 * self.early / self.arrived_early if self.arrived_early else 0.0


def turned_away(summary: Summary, policy: str) -> list[Turned]:
    """The classes of pods in the order of their size, those that name their models after those that do not."""
    counts = [count for run in runs_of(summary, policy) for count in run.kinds]
    found = []
    for kind in Kind:
        for constrained in (False, True):
            mine = [count for count in counts if count.kind is kind and count.constrained is constrained]
            if mine:
                found.append(
                    Turned(
                        kind,
                        constrained,
                        arrived=sum(count.arrived for count in mine),
                        rejected=sum(count.rejected for count in mine),
                        arrived_early=sum(count.arrived_early for count in mine),
                        early=sum(count.early for count in mine),
                        asked=sum(count.asked_milli for count in mine) / WHOLE,
                        rejected_demand=sum(count.rejected_milli for count in mine) / WHOLE,
                    )
                )
    return found


def asked_in_all(summary: Summary, policy: str) -> float:
    """The demand for devices that had arrived at the end, percent of what the cluster has, mean over the seeds."""
    asked = [sum(count.asked_milli for count in run.kinds) for run in runs_of(summary, policy)]
    return 100 * fmean(asked) / max(summary.cluster.milli, 1)


@dataclass(frozen=True, slots=True)
class Spread:
    """A point of a policy's curve over its seeds."""

    arrived: int
    mean: float
    least: float
    greatest: float


def curve_of(results: Results, policy: str, value: Callable[[Point], float | None]) -> list[Spread]:
    """One column of the curve at each percent that every seed has; none where it was not measured."""
    curves = [points for (of, _), points in results.curves.items() if of == policy]
    found: dict[int, list[float]] = {}
    for point in (point for points in curves for point in points):
        measured = value(point)
        if measured is not None:
            found.setdefault(point.arrived, []).append(measured)
    return [
        Spread(arrived, fmean(values), min(values), max(values))
        for arrived, values in sorted(found.items())
        if len(values) == len(curves)
    ]


def held_by_model(results: Results, policy: str) -> dict[str, tuple[int, int, int]]:
    """Nodes, devices and milli in use of each model in the heat map's run."""
    found: dict[str, tuple[int, int, int]] = {}
    for node in results.nodes[policy]:
        if node.devices:
            nodes, devices, used = found.get(node.model, (0, 0, 0))
            found[node.model] = (nodes + 1, devices + len(node.devices), used + sum(node.devices))
    return found


def emptiest(results: Results, policy: str, most: int = 12) -> Sequence[tuple[str, str, int, int, float | None]]:
    """The nodes with most left: name, model, idle devices, milli left, percent of the processors that is left."""
    nodes = [node for node in results.nodes[policy] if sum(node.devices) < WHOLE * len(node.devices)]
    nodes.sort(key=lambda node: (sum(node.devices) - WHOLE * len(node.devices), node.node))
    return [
        (
            node.node,
            node.model,
            sum(not used for used in node.devices),
            WHOLE * len(node.devices) - sum(node.devices),
            100 * (1 - node.cpu_used / node.cpu_milli) if node.cpu_milli else None,
        )
        for node in nodes[:most]
    ]
