"""The rankings of :mod:`tessera.policy.rank` over all nodes of a snapshot at once."""

import numpy as np

from tessera.core.fleet import Ints, Snapshot
from tessera.policy.rank import SIGN, Level, Ranking, order


def rank_nodes(snapshot: Snapshot, ranking: Ranking) -> Ints:
    """A score for every node, higher is better."""
    return np.asarray(SIGN[ranking] * snapshot.usage.node_fill, dtype=np.int64)


def order_devices(snapshot: Snapshot, rows: range, ranking: Ranking) -> list[int]:
    """The device rows of one node, the preferred one first."""
    fleet, usage = snapshot.fleet, snapshot.usage
    part = slice(rows.start, rows.stop)
    columns = (usage.memory, fleet.memory, usage.compute, fleet.compute, fleet.index)
    levels = [Level(*row) for row in zip(*(column[part].tolist() for column in columns), strict=True)]
    return [rows.start + i for i in order(levels, ranking)]
