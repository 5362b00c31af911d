"""The target workload M: which kinds of pods are to be expected, and how often; and its tables for one fleet.

F_n(M), the *fragmentation* of a node, is what of its idle devices the next pod, drawn from M, could not use::

    F_n(M) = sum over kinds m of p_m * f_m(n)
    f_m(n) = the idle milli of n, if m asks for CPU alone or cannot run there now (devices, CPU, model), else
             the idle milli on those of its devices that have less left than m takes of one

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023, sections 3 and 4; covering 95 % of the pods: the same, its simulator's typical pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tessera.core.fleet import Bools, Ints
from tessera.core.units import WHOLE

ONE: Final = 1 << 32
"""The probability of what is certain: probabilities are whole numbers of this."""

COVERED_PERCENT: Final = 95
MOST_KINDS: Final = 256


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A kind of pod: CPU, milli of each of ``count`` devices, and the models that it may use (``()``: any)."""

    cpu_milli: int
    milli: int
    count: int
    models: tuple[str, ...] = ()


def popular(counts: Mapping[Kind, int]) -> tuple[tuple[Kind, int], ...]:
    """The most frequent kinds, until they cover 95 % of the pods; of those of one frequency the greater kind
    first.
    """
    goal = COVERED_PERCENT * sum(counts.values())
    found: list[tuple[Kind, int]] = []
    covered = 0
    for kind, count in sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if covered * 100 >= goal or len(found) == MOST_KINDS:
            break
        found.append((kind, count))
        covered += count
    return tuple(found)


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kinds:
    """M kind by kind, the most frequent first: as ``fgd`` sums it up, in this order.

    ``group[k]`` is the kind's place in the target's ``count``, -1 for one that asks for CPU alone; ``may[k, m]``
    says whether it may use model ``m``. ``chance`` is a double, computed as the published simulator does.
    """

    cpu: Ints
    group: Ints
    may: Bools
    chance: Floats


@dataclass(frozen=True, slots=True)
class Target:
    """M as the fragmentation reads it.

    A *group* is the kinds of equal milli and count. ``weight[m, c, g]`` is the probability of those kinds of group
    ``g`` that may use model ``m`` and need at most the CPU of rank ``c``: the number of ``cpus`` that are not
    above what a node has left. ``value[g]`` is the place of the group's milli in ``values``, ``count[g]`` its
    count.
    """

    cpus: Ints
    values: Ints
    value: Ints
    count: Ints
    weight: Ints
    total: int
    kinds: Kinds


def target_of(kinds: Iterable[tuple[Kind, int]], models: Sequence[str], of_pods: int = 0) -> Target:
    """The tables of these kinds, each with how often it came, for a fleet of these models.

    ``of_pods`` is how many pods came in all, of these kinds and others (0: none of others).
    """
    listed = list(kinds)
    pods = sum(count for _, count in listed)
    probability = [(kind, count * ONE // pods) for kind, count in listed]
    groups = sorted({_group(kind) for kind, _ in listed if kind.count})
    values = sorted({milli for milli, _ in groups})
    cpus = sorted({kind.cpu_milli for kind, _ in listed if kind.count})
    weight = np.zeros((max(len(models), 1), len(cpus) + 1, len(groups)), dtype=np.int64)
    for kind, p in probability:
        if kind.count:
            allowed = [row for row, model in enumerate(models) if not kind.models or model in kind.models]
            weight[allowed, cpus.index(kind.cpu_milli) + 1 :, groups.index(_group(kind))] += p
    return Target(
        cpus=np.array(cpus, dtype=np.int64),
        values=np.array(values, dtype=np.int64),
        value=np.array([values.index(milli) for milli, _ in groups], dtype=np.int64),
        count=np.array([count for _, count in groups], dtype=np.int64),
        weight=weight,
        total=sum(p for _, p in probability),
        kinds=_kinds(listed, groups, models, of_pods or pods),
    )


def _group(kind: Kind) -> tuple[int, int]:
    """A device that is full serves nobody, also one that asks for next to nothing."""
    return max(kind.milli, 1), kind.count


def _kinds(
    listed: Sequence[tuple[Kind, int]], groups: Sequence[tuple[int, int]], models: Sequence[str], of_pods: int
) -> Kinds:
    ordered = sorted(listed, key=lambda item: (item[1], item[0]), reverse=True)
    pods = sum(count for _, count in listed)
    may = [[not kind.models or model in kind.models for model in models] or [True] for kind, _ in ordered]
    return Kinds(
        cpu=np.array([kind.cpu_milli for kind, _ in ordered], dtype=np.int64),
        group=np.array([groups.index(_group(kind)) if kind.count else -1 for kind, _ in ordered], dtype=np.int64),
        may=np.array(may, dtype=np.bool_).reshape(len(ordered), max(len(models), 1)),
        # Divided twice and not once: the last digit of a chance is what the published scores depend on.
        chance=np.array([(count / of_pods) / (pods / of_pods) for _, count in ordered], dtype=np.float64),
    )


PRIOR: Final[Mapping[Kind, int]] = {
    Kind(8_000, WHOLE, 1): 40,
    Kind(4_000, 500, 1): 20,
    Kind(2_000, 250, 1): 20,
    Kind(64_000, WHOLE, 8): 4,
    Kind(16_000, WHOLE, 2): 6,
    Kind(4_000, 0, 0): 10,
}
"""What is expected where nothing is known: mostly whole devices, some halves and quarters, few large jobs."""
