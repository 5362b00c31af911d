"""What of the idle devices the target workload cannot use: the fragmentation F of the openb experiments.

For each node, F is the sum over the kinds of pods of ``weight * f``: ``f`` is all that is idle there where the
kind cannot run (too few devices with enough left, too few cores, a model that it may not use, or it asks for no
device), else what is idle on those devices that have less left than it takes of one.

Whole numbers throughout: F is kept times the sum of the weights. Written beside the formula that policies use
(:mod:`tessera.policy.fragment`) on purpose: the measure of a policy should not be the policy's own code.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tessera.core.fleet import Fleet, Ints
from tessera.core.units import WHOLE
from tessera.policy.target import Kind, popular
from tessera.simulator.tally import Change

NEVER: Final = 1 << 40
"""What a kind takes of a device that it may not use: more than any has."""

_AT_ONCE: Final = 512
"""States of nodes that are looked at together; bounds the memory to some ten MB."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Kinds of pods as columns; ``needs`` is kinds x models of the fleet."""

    cpu: Ints
    count: Ints
    weight: Ints
    needs: Ints

    @property
    def total(self) -> int:
        """The sum of the weights."""
        return int(self.weight.sum())


@dataclass(frozen=True, slots=True)
class States:
    """States of nodes: each one's row, what is left of its devices (0 beyond them), its free milli-cores."""

    nodes: Ints
    left: Ints
    cpu: Ints


def workload_of(counts: Mapping[Kind, int], models: Sequence[str]) -> Workload:
    """The most frequent of these kinds for a fleet of these models."""
    kinds = popular(counts)
    needs = [
        [kind.milli if not kind.models or model in kind.models else NEVER for model in models] for kind, _ in kinds
    ]
    return Workload(
        cpu=np.array([kind.cpu_milli for kind, _ in kinds], dtype=np.int64),
        count=np.array([kind.count for kind, _ in kinds], dtype=np.int64),
        weight=np.array([times for _, times in kinds], dtype=np.int64),
        needs=np.array(needs, dtype=np.int64).reshape(len(kinds), len(models)),
    )


def model_table(fleet: Fleet) -> Ints:
    """The model of each device of each node, one line a node; beyond a node's devices any."""
    width = int(np.diff(fleet.first).max(initial=0))
    rows = np.minimum(fleet.first[:-1, None] + np.arange(width), max(len(fleet.devices) - 1, 0))
    return np.asarray(fleet.model[rows] if rows.size else np.zeros(rows.shape), dtype=np.int64)


def fragmentation(fleet: Fleet, workload: Workload, states: States) -> Ints:
    """F of each state, times the workload's total."""
    table = model_table(fleet)
    found = np.zeros(len(states.nodes), dtype=np.int64)
    devices = np.flatnonzero(workload.count > 0)
    weight, count, cpu = workload.weight[devices], workload.count[devices], workload.cpu[devices]
    rest = workload.total - int(weight.sum())
    for start in range(0, len(found), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        left = states.left[part]
        idle = left.sum(axis=1)
        needs = workload.needs[devices][:, table[states.nodes[part]]]
        able = left >= needs
        runs = (able.sum(axis=2) >= count[:, None]) & (states.cpu[part] >= cpu[:, None])
        lost = np.where(runs, np.where(able, 0, left).sum(axis=2), idle)
        found[part] = rest * idle + (weight[:, None] * lost).sum(axis=0)
    return found


def over_time(fleet: Fleet, workload: Workload, trail: Sequence[Change], arrivals: int) -> Ints:
    """F of the whole cluster after each arrival, times the workload's total, from an empty start."""
    empty = _states(fleet, [(0, row, (WHOLE,) * len(node.devices), 0) for row, node in enumerate(fleet.nodes)])
    before = fragmentation(fleet, workload, empty)
    after = fragmentation(fleet, workload, _states(fleet, trail))
    steps = np.zeros(arrivals, dtype=np.int64)
    last = before.tolist()
    growth = np.zeros(len(trail), dtype=np.int64)
    for i, ((_, row, _, _), value) in enumerate(zip(trail, after.tolist(), strict=True)):
        growth[i] = value - last[row]
        last[row] = value
    np.add.at(steps, np.array([change[0] for change in trail], dtype=np.int64), growth)
    return np.asarray(int(before.sum()) + np.cumsum(steps), dtype=np.int64)


def _states(fleet: Fleet, trail: Sequence[Change]) -> States:
    width = int(np.diff(fleet.first).max(initial=0))
    nodes = np.array([row for _, row, _, _ in trail], dtype=np.int64)
    padded = [left + (0,) * (width - len(left)) for _, _, left, _ in trail]
    used = np.array([cpu for _, _, _, cpu in trail], dtype=np.int64)
    return States(nodes, np.array(padded, dtype=np.int64).reshape(len(trail), width), fleet.cpu[nodes] - used)
