"""The rankings of :mod:`tessera.policy.rank` over all nodes of a snapshot at once."""

from collections.abc import Sequence

import numpy as np

from tessera.core.fleet import Ints, Snapshot
from tessera.policy.rank import SIGN, Level, Ranking, order


def rank_nodes(snapshot: Snapshot, ranking: Ranking) -> Ints:
    """A score for every node, higher is better."""
    return np.asarray(SIGN[ranking] * snapshot.usage.node_fill, dtype=np.int64)


def order_devices(snapshot: Snapshot, rows: Sequence[int], ranking: Ranking) -> list[int]:
    """Device rows of one node, in the fleet's order, put in order of preference."""
    if len(rows) < 2:
        return list(rows)
    fleet, usage = snapshot.fleet, snapshot.usage
    first = rows[0]
    part = slice(first, rows[-1] + 1)
    columns = (usage.memory, fleet.memory, usage.compute, fleet.compute, fleet.index)
    facts = list(zip(*(column[part].tolist() for column in columns), strict=True))
    levels = [Level(*facts[row - first]) for row in rows]
    return [rows[i] for i in order(levels, ranking)]
