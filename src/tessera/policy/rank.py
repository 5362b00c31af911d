"""Rankings, and the order of a node's devices. Integers only, so that every machine ranks alike.

The fill of something is what is used of it, without the pod to be placed, in parts per million, memory and compute
added: ``fill = memory_used * 10^6 // memory + compute_used * 10^6 // compute``.

* ``binpack`` prefers the greatest fill (keeps others whole).
* ``spread`` prefers the least (keeps neighbours away).

The other rankings weigh what a placement leaves for the workload that is to be expected; their formulas stand with
their scorers (:mod:`tessera.policy.scorers` has the table), since they need arrays and this module goes without.

Ties go to the first node of the fleet and to the lowest device index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tessera.core.request import Preference
from tessera.core.units import fill_of


class Ranking(StrEnum):
    """An order of preference."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FGD = "fgd"
    PWR = "pwr+"
    BEST_FIT = "best-fit"
    DOT_PRODUCT = "dot-product"
    GPU_PACKING = "gpu-packing"
    GPU_CLUSTERING = "gpu-clustering"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Policy:
    """How to choose among the nodes that can host a pod, and among the devices of the chosen one."""

    node: Ranking
    device: Ranking

    def preferring(self, preference: Preference) -> "Policy":
        """This policy with a pod's own wishes put over it; unknown names are not wishes."""
        return Policy(
            node=Ranking(preference.node) if preference.node in _NAMES else self.node,
            device=Ranking(preference.device) if preference.device in _NAMES else self.device,
        )


_NAMES: Final = frozenset(ranking.value for ranking in Ranking)
SIGN: Final[Mapping[Ranking, int]] = {Ranking.BINPACK: 1, Ranking.SPREAD: -1}

POLICIES: Final[Mapping[str, Policy]] = {
    "binpack": Policy(Ranking.BINPACK, Ranking.BINPACK),
    "spread": Policy(Ranking.SPREAD, Ranking.SPREAD),
    "node-binpack-device-spread": Policy(Ranking.BINPACK, Ranking.SPREAD),
    "node-spread-device-binpack": Policy(Ranking.SPREAD, Ranking.BINPACK),
    "fgd": Policy(Ranking.FGD, Ranking.FGD),
    "pwr+": Policy(Ranking.PWR, Ranking.PWR),
    "best-fit": Policy(Ranking.BEST_FIT, Ranking.BEST_FIT),
    "dot-product": Policy(Ranking.DOT_PRODUCT, Ranking.DOT_PRODUCT),
    "gpu-packing": Policy(Ranking.GPU_PACKING, Ranking.GPU_PACKING),
    "gpu-clustering": Policy(Ranking.GPU_CLUSTERING, Ranking.GPU_CLUSTERING),
    "random": Policy(Ranking.RANDOM, Ranking.RANDOM),
}
DEFAULT_POLICY: Final = "pwr+"


class Level(NamedTuple):
    """How far a device is used: MiB and milli of how much, and its index (``position``) on the node."""

    memory_used: int
    memory: int
    compute_used: int
    compute: int
    position: int

    def fill(self) -> int:
        """Parts per million, memory and compute added."""
        return fill_of(self.memory_used, self.memory) + fill_of(self.compute_used, self.compute)


def order(levels: Sequence[Level], ranking: Ranking) -> list[int]:
    """The positions of one node's devices, the preferred one first.

    Rankings that weigh a workload are ``binpack`` here: on a single node there is none to weigh.
    """
    sign = SIGN.get(ranking, 1)
    return sorted(range(len(levels)), key=lambda i: (-sign * levels[i].fill(), levels[i].position))
