"""Which pods arrive, in which order and when: recorded sequences, demand tuned to a share of the cluster, Poisson.

Everything drawn here comes from NumPy's PCG64 with the run's seed, so it is the same on every machine.

Source: of the tuning, the openb experiments of Weng et al. (USENIX ATC 2023): pods shuffled, random ones repeated
until the demand is 130 % of the cluster, or taken away where it is more; nodes shuffled, since ties go to the
first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.errors import Problem
from tessera.core.fleet import Ints
from tessera.simulator.trace import Trace

Floats = NDArray[np.float64]

HOUR: Final = 3600.0
MOST_ARRIVALS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrivals: the row of each one's pod in the trace, and where pods leave, when it comes and how long it stays.

    ``nodes`` is the order in which the cluster's nodes stand, ``None`` for their own.
    """

    pods: Ints
    nodes: Ints | None = None
    times: Floats | None = None
    stays: Floats | None = None


def as_listed(trace: Trace) -> Stream:
    """Every pod once, in the trace's order, nodes in theirs."""
    return Stream(np.arange(len(trace.names), dtype=np.int64))


def tuned(trace: Trace, node_count: int, capacity: int, arrivals: float, seed: int) -> Stream:
    """Shuffled pods, repeated or taken away until they ask for ``arrivals`` times the capacity (milli) at most."""
    chance = np.random.Generator(np.random.PCG64(seed))
    demand = demands(trace)
    goal = round(arrivals * capacity)
    pods = chance.permutation(len(demand))
    total = int(demand.sum())
    if total > goal:
        asked = np.cumsum(demand[pods])
        pods = pods[asked <= goal]
    elif total:
        clones = _drawn(chance, demand, goal - total)
        pods = np.concatenate((pods, clones))
    return Stream(pods.astype(np.int64), chance.permutation(node_count).astype(np.int64))


def poisson(  # noqa: PLR0913 -- they describe one process
    trace: Trace, node_count: int, *, capacity: int, load: float, lifetimes: str, arrivals: float, seed: int
) -> Stream:
    """Pods of the trace at random moments, so many that ``load`` times the capacity would be held if all were
    placed.

    ``lifetimes`` is ``trace`` (each pod stays as long as it did) or ``exponential`` (of one mean, that of the
    trace, or an hour where it says nothing).
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    demand = demands(trace)
    pods = _drawn(chance, demand, round(arrivals * capacity))
    known = np.array([-1 if stay is None else stay for stay in trace.lifetimes], dtype=np.float64)
    mean = float(known[known >= 0].mean()) if (known >= 0).any() else HOUR
    own = np.where(known >= 0, known, mean)
    if lifetimes == "trace":
        stays, held = own[pods], float((demand * own).mean())
    else:
        stays, held = chance.exponential(mean, len(pods)), float(demand.mean()) * mean
    gaps = chance.exponential(held / (load * capacity), len(pods))
    order = chance.permutation(node_count).astype(np.int64)
    return Stream(pods, order, np.cumsum(gaps), stays)


def demands(trace: Trace) -> Ints:
    """What each pod of the trace asks of devices, in milli."""
    of = np.array([shape.demand for shape in trace.shapes], dtype=np.int64)
    return np.asarray(of[np.array(trace.shape_of, dtype=np.int64)], dtype=np.int64)


def _drawn(chance: np.random.Generator, demand: Ints, goal: int) -> Ints:
    """Random rows, with repetition, whose demand together is ``goal`` at most."""
    found: list[Ints] = []
    total, mean = 0, float(demand.mean())
    while total <= goal and sum(map(len, found)) < MOST_ARRIVALS:
        rows = chance.integers(len(demand), size=max(16, int((goal - total) / mean) + 16), dtype=np.int64)
        found.append(rows)
        total += int(demand[rows].sum())
    rows = np.concatenate(found)
    return np.asarray(rows[np.cumsum(demand[rows]) <= goal], dtype=np.int64)


def recorded(arrays: Mapping[str, NDArray[np.integer]], seed: int) -> Stream:
    """What a sequence file has for ``seed``; look for :func:`sequence_problems` before."""
    return Stream(arrays[f"seq{seed}"].astype(np.int64), arrays[f"nodes{seed}"].astype(np.int64))


def sequence_problems(
    source: str, arrays: Mapping[str, NDArray[np.integer]], seeds: Sequence[int], pods: int, nodes: int
) -> list[Problem]:
    """All that is wrong with these seeds' arrays: missing, rows outside the trace, nodes left out or twice."""
    problems: list[Problem] = []
    for seed in seeds:
        sequence, order = arrays.get(f"seq{seed}"), arrays.get(f"nodes{seed}")
        if sequence is None or order is None:
            have = sorted(int(name[3:]) for name in arrays if name.startswith("seq") and name[3:].isdigit())
            remedy = f"it has the seeds {', '.join(map(str, have)) or 'none'}"
            problems.append(Problem(source, "", f"seq{seed}", "", "is not in the file", remedy))
            continue
        outside = np.flatnonzero((sequence.astype(np.int64) < 0) | (sequence.astype(np.int64) >= pods))
        if len(outside):
            at = int(outside[0])
            message = f"names a pod outside the trace, which has {pods:,}"
            remedy = "give the --pods that the sequence was made of"
            problems.append(Problem(source, "", f"seq{seed}[{at}]", str(int(sequence[at])), message, remedy))
        if not np.array_equal(np.sort(order.astype(np.int64)), np.arange(nodes)):
            message = f"is not an order of the {nodes:,} nodes"
            remedy = "give the --nodes that the sequence was made of"
            problems.append(Problem(source, "", f"nodes{seed}", str(len(order)), message, remedy))
    return problems
