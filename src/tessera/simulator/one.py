"""One run from start to end, as values: figures, curve, and the lines of its files. Reads and writes nothing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.core.fleet import Bools
from tessera.simulator.curve import Point, at_percent, curve, first_percent
from tessera.simulator.ending import cluster_rows, idle_parts, kind_counts
from tessera.simulator.engine import Engine, Parts, Record, Rules
from tessera.simulator.fragmentation import over_time, workload_of
from tessera.simulator.result import REPORTED, Churn, Kind, Run
from tessera.simulator.stream import demands


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's figures (paths of its files still empty), its curve, and what happened."""

    run: Run
    points: tuple[Point, ...]
    parts: Parts
    engine: Engine

    def placement_rows(self) -> Iterator[Sequence[object]]:
        """The lines of ``placements.csv``."""
        names, fleet, record = self.parts.trace.names, self.parts.fleet, self.engine.record
        listed = zip(self.parts.stream.pods.tolist(), record.nodes, record.devices, strict=True)
        for arrival, (row, node, devices) in enumerate(listed):
            where = fleet.node_names[node] if node >= 0 else ""
            indices = [str(int(fleet.index[fleet.first[node] + device])) for device in devices]
            yield arrival, names[row], where, ";".join(indices)

    def cluster_rows(self) -> Iterator[Sequence[object]]:
        """The lines of ``cluster.csv``."""
        return cluster_rows(self.parts.fleet, self.engine.tally)


def simulated(
    parts: Parts, rules: Rules, *, fragmentation: bool = True, tick: Callable[[int], None] | None = None
) -> Outcome:
    """Run it."""
    engine = Engine(parts, rules, tick)
    record = engine.run()
    fleet, pods = parts.fleet, parts.stream.pods
    capacity = int(fleet.compute.sum())
    arrived = np.cumsum(demands(parts.trace)[pods]) if len(pods) else np.zeros(0, dtype=np.int64)
    used = np.array(record.used, dtype=np.int64)
    workload = workload_of(parts.trace.kinds(), fleet.models)
    lost = over_time(fleet, workload, engine.tally.trail, len(pods)) if fragmentation else None
    points = curve(capacity, arrived, used, lost, workload)
    early = int(np.searchsorted(arrived, capacity, side="right"))
    rejected = np.asarray(np.array(record.nodes, dtype=np.int64) < 0, dtype=np.bool_)
    held = [(str(at), point.allocation) for at in REPORTED if (point := at_percent(points, at)) is not None]
    run = Run(
        policy=rules.policy,
        seed=rules.seed,
        placements="",
        cluster="",
        arrived=len(pods),
        placed=int((~rejected).sum()),
        rejected=int(rejected.sum()),
        early=int(rejected[:early].sum()),
        first_rejection=first_percent(capacity, arrived, record.nodes),
        allocation=dict(held),
        end=round(100 * int(used[-1]) / capacity, 2) if len(used) and capacity else 0.0,
        kinds=kind_counts(parts.trace, pods, record, early),
        idle=idle_parts(fleet, workload, engine.tally),
        tries=record.looks,
        churn=None if parts.stream.times is None else _churn(parts, record, rejected, capacity),
    )
    return Outcome(run, points, parts, engine)


def _churn(parts: Parts, record: Record, rejected: Bools, capacity: int) -> Churn:
    """Figures over the last two thirds of the arrivals."""
    since = len(rejected) // 3
    pods = parts.stream.pods[since:]
    demand = demands(parts.trace)[pods]
    shape_of = np.array(parts.trace.shape_of, dtype=np.int64)[pods]
    many = np.isin(shape_of, [i for i, s in enumerate(parts.trace.shapes) if s.kind is Kind.MANY])
    out = rejected[since:]
    placed = int((~out).sum())
    moves = sum(count for at, count in zip(record.drained, record.moves, strict=True) if at >= since)
    return Churn(
        allocation=round(100 * record.held / record.span / capacity, 2) if record.span and capacity else 0.0,
        rejected_demand=_percent(int(demand[out].sum()), int(demand.sum())),
        rejected_many=_percent(int((many & out).sum()), int(many.sum())),
        placed=placed,
        departed=record.departed,
        moves=moves,
        moves_per_100=_percent(moves, placed),
        drained=sum(at >= since for at in record.drained),
        lost=record.lost,
        homeless=record.homeless,
        failures=record.failures,
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 3) if whole else 0.0
