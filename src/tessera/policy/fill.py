"""The rankings by fill, over arrays: the formula is that of :mod:`tessera.policy.rank`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tessera.core.fleet import Bools, Ints
from tessera.policy.rank import SIGN, Level, Ranking, order
from tessera.policy.score import Ask, Scene


@dataclass(frozen=True, slots=True)
class Fill:
    """``binpack`` or ``spread``: how full a node or a device is, or how empty."""

    ranking: Ranking
    worth: int = 1

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """The fill of the nodes, negative where the ranking spreads."""
        del ask, fits
        return np.asarray(SIGN[self.ranking] * scene.snapshot.usage.node_fill[nodes], dtype=np.int64)

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """The fullest device first, or the emptiest."""
        del ask
        if len(rows) < 2:
            return list(rows)
        fleet, usage = scene.snapshot.fleet, scene.snapshot.usage
        first = rows[0]
        part = slice(first, rows[-1] + 1)
        columns = (usage.memory, fleet.memory, usage.compute, fleet.compute, fleet.index)
        facts = list(zip(*(column[part].tolist() for column in columns), strict=True))
        levels = [Level(*facts[row - first]) for row in rows]
        return [rows[i] for i in order(levels, self.ranking)]


BINPACK: Final = Fill(Ranking.BINPACK)
SPREAD: Final = Fill(Ranking.SPREAD)
