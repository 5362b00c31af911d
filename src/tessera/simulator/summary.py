"""Figures over all seeds of a policy, and the whole of ``summary.json``."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from tessera.core.device import Node
from tessera.core.fleet import Fleet
from tessera.simulator.result import (
    REPORTED,
    Across,
    ClusterEntry,
    Kind,
    ModelCapacity,
    PolicyEntry,
    Run,
    TraceEntry,
)
from tessera.simulator.trace import Trace


def across(values: Sequence[float]) -> Across:
    """One figure over all seeds."""
    spread = stdev(values) if len(values) > 1 else 0.0
    return Across(round(fmean(values), 3), round(spread, 3), min(values), max(values))


def policy_entries(runs: Iterable[Run]) -> tuple[PolicyEntry, ...]:
    """One entry a policy, in the order of the runs."""
    by_policy: dict[str, list[Run]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    return tuple(_entry(policy, mine) for policy, mine in by_policy.items())


def _entry(policy: str, runs: Sequence[Run]) -> PolicyEntry:
    points = [str(at) for at in REPORTED if all(str(at) in run.allocation for run in runs)]
    firsts = [run.first_rejection for run in runs if run.first_rejection is not None]
    accepted = [percent for run in runs if (percent := many_accepted(run)) is not None]
    return PolicyEntry(
        policy=policy,
        allocation={at: across([run.allocation[at] for run in runs]) for at in points},
        end=across([run.end for run in runs]),
        rejected=across([float(run.rejected) for run in runs]),
        early=across([float(run.early) for run in runs]),
        first_rejection=across(firsts) if firsts else None,
        many_accepted=across(accepted) if accepted else None,
    )


def many_accepted(run: Run) -> float | None:
    """Percent of the multi-device pods that were placed while not more had arrived than there is."""
    mine = [count for count in run.kinds if count.kind is Kind.MANY]
    arrived = sum(count.arrived_early for count in mine)
    return round(100 * (1 - sum(count.early for count in mine) / arrived), 2) if arrived else None


def cluster_entry(nodes: Sequence[Node]) -> ClusterEntry:
    """The cluster in figures."""
    fleet = Fleet(nodes)
    with_model = [(device.model, node.name) for node in nodes for device in node.devices]
    models = [
        ModelCapacity(
            model, len({name for of, name in with_model if of == model}), sum(of == model for of, _ in with_model)
        )
        for model in fleet.models
    ]
    return ClusterEntry(
        nodes=len(nodes),
        devices=len(fleet.devices),
        milli=int(fleet.compute.sum()),
        cpu_milli=sum(node.cpu_milli or 0 for node in nodes),
        memory_mib=sum(node.memory_mib or 0 for node in nodes),
        models=tuple(models),
    )


def trace_entry(trace: Trace) -> TraceEntry:
    """The pods in figures."""
    kinds = dict.fromkeys(Kind, 0)
    for row in trace.shape_of:
        kinds[trace.shapes[row].kind] += 1
    return TraceEntry(len(trace.names), kinds, len(trace.shapes), trace.demand)
