"""The port of policies: what a policy sees of a pod and of the fleet, and what it answers.

A policy prefers and never changes what is legal: it scores nodes on which the pod fits, and puts in order devices
that fit. Everything is whole numbers, so that every machine and the compiled kernel answer alike, bit for bit.
Ties go to the first node of the fleet and to the lowest device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.policy.outlook import Outlook

OUT: Final = int(np.iinfo(np.int64).min)
"""The score of what cannot be chosen, below any that can."""

CPU_CAP: Final = 1 << 40
"""Milli-cores that stand for "more than anybody asks", where the inventory does not say how many there are."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a pod asks, as a policy sees it.

    ``takes`` is for each device of the fleet what one share takes of it in milli: the greater of its memory and
    its compute (the *dominant share*), so that pods that ask for memory alone count too. ``count`` devices are
    taken, none by a pod that only wants CPU. A pod of several claims is seen by its largest.
    """

    takes: Ints
    count: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What a decision is made on: the fleet and its usage, and what is expected to come."""

    snapshot: Snapshot
    outlook: Outlook


class Scorer(Protocol):
    """One ranking of nodes and of a node's devices; pure, and equal for equal arguments."""

    @property
    def worth(self) -> int:
        """What one unit of score weighs beside a pod's soft preferences, in parts per million of a node's fill."""
        ...

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """A score for each of these nodes, higher is better. ``fits`` says of every device whether a share
        fits.
        """
        ...

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """Device rows of one node, given in the fleet's order, the preferred ones first."""
        ...


def cpu_left(snapshot: Snapshot, nodes: Ints) -> Ints:
    """Milli-cores left on these nodes, at most ``CPU_CAP``."""
    left = snapshot.fleet.cpu[nodes] - snapshot.usage.cpu[nodes]
    return np.asarray(np.clip(left, 0, CPU_CAP), dtype=np.int64)


def padded(fleet: Fleet, nodes: Ints) -> tuple[Ints, Bools]:
    """The device rows of these nodes, one line a node, and which of them are real; lines are as long as the
    longest.
    """
    firsts = fleet.first[nodes]
    sizes = fleet.first[nodes + 1] - firsts
    places = np.arange(int(sizes.max(initial=0)), dtype=np.int64)
    real = np.asarray(places < sizes[:, None], dtype=np.bool_)
    return np.where(real, firsts[:, None] + places, 0), real
