"""Rankings of nodes and of a node's devices. Integers only, so that every machine ranks alike.

The fill of something is what would be used of it in parts per million, memory and compute added:
``fill = memory_used * 10^6 // memory + compute_used * 10^6 // compute``.

* ``binpack`` prefers the greatest fill (keeps others whole).
* ``spread`` prefers the least (keeps neighbours away).

Ties go to the first node of the fleet and to the lowest device index.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from tessera.core.fleet import Ints, Snapshot
from tessera.core.request import Preference

MILLION: Final = 1_000_000


class Ranking(StrEnum):
    """An order of preference."""

    BINPACK = "binpack"
    SPREAD = "spread"


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
_SIGN: Final[Mapping[Ranking, int]] = {Ranking.BINPACK: 1, Ranking.SPREAD: -1}

POLICIES: Final[Mapping[str, Policy]] = {
    "binpack": Policy(Ranking.BINPACK, Ranking.BINPACK),
    "spread": Policy(Ranking.SPREAD, Ranking.SPREAD),
    "node-binpack-device-spread": Policy(Ranking.BINPACK, Ranking.SPREAD),
    "node-spread-device-binpack": Policy(Ranking.SPREAD, Ranking.BINPACK),
}
DEFAULT_POLICY: Final = "binpack"


def _fill(used: Ints, total: Ints) -> Ints:
    return np.asarray(used * MILLION // np.maximum(total, 1), dtype=np.int64)


def rank_nodes(snapshot: Snapshot, ranking: Ranking) -> Ints:
    """A score for every node, higher is better; what the pod itself adds is the same everywhere or smaller
    than what tells nodes apart, so it is left out.
    """
    fleet, usage = snapshot.fleet, snapshot.usage
    fill = _fill(usage.node_memory, fleet.node_memory) + _fill(usage.node_compute, fleet.node_compute)
    return np.asarray(_SIGN[ranking] * fill, dtype=np.int64)


def order_devices(snapshot: Snapshot, rows: range, ranking: Ranking) -> list[int]:
    """The device rows of one node, the preferred one first."""
    fleet, usage = snapshot.fleet, snapshot.usage
    part = slice(rows.start, rows.stop)
    fill = _fill(usage.memory[part], fleet.memory[part]) + _fill(usage.compute[part], fleet.compute[part])
    keys = (-_SIGN[ranking] * fill).tolist()
    index = fleet.index[part].tolist()
    return [rows.start + i for i in sorted(range(len(rows)), key=lambda i: (keys[i], index[i]))]
