"""Nodes that are lost and come back: when, which. Every node fails alike and independently of the others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

DAY: Final = 86_400.0
REPAIR: Final = 4 * 3600.0
"""Seconds that a lost node is away."""


@dataclass(frozen=True, slots=True)
class Failure:
    """At ``time`` (seconds) the node of this row is lost, or (``mended``) is back."""

    time: float
    node: int
    mended: bool


def failures(node_count: int, rate: float, until: float, seed: int) -> tuple[Failure, ...]:
    """The losses of ``rate`` per node and day up to ``until``, each with its return, in order of time."""
    chance = np.random.Generator(np.random.PCG64([seed, 1]))
    found = sorted(_losses(chance, node_count, rate, until), key=lambda f: (f.time, f.node, f.mended))
    return tuple(found)


def _losses(chance: np.random.Generator, node_count: int, rate: float, until: float) -> Iterator[Failure]:
    back: dict[int, float] = {}
    time = 0.0
    while rate > 0:
        time += float(chance.exponential(DAY / (rate * node_count)))
        if time > until:
            return
        node = int(chance.integers(node_count))
        if time < back.get(node, 0.0):
            continue  # it is away already
        back[node] = time + REPAIR
        yield Failure(time, node, mended=False)
        yield Failure(time + REPAIR, node, mended=True)
