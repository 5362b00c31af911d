"""The target workload M, learned from the pods that came. Bounded in memory; what is long past fades.

Counts are whole numbers and change by arrivals alone, so that equal arrivals give equal outlooks.
"""

from collections.abc import Mapping
from typing import Final

from tessera.policy.target import MOST_KINDS, PRIOR, Kind

ONE_POD: Final = 1024
"""What one pod counts, so that it can be halved ten times before it is forgotten."""

PRIOR_PODS: Final = 20
"""How many pods the prior stands for; it fades with the first of them."""

HALF_LIFE: Final = 20_000
"""Pods after which an earlier one counts half."""

_FEWEST_NEW: Final = 50
_NEW_PERCENT: Final = 5

_CPU_GRAIN: Final = 100
_MILLI_GRAIN: Final = 10


class Workload:
    """Counts of kinds of pods. ``due`` once enough came for a new outlook to be worth its making."""

    def __init__(self, prior: Mapping[Kind, int] = PRIOR) -> None:
        total = max(sum(prior.values()), 1)
        self._counts = {kind: count * PRIOR_PODS * ONE_POD // total for kind, count in prior.items()}
        self._seen = 0
        self._read = 0

    @property
    def seen(self) -> int:
        """Pods that came."""
        return self._seen

    @property
    def due(self) -> bool:
        """Whether there is much that the last :meth:`counts` did not have."""
        new = self._seen - self._read
        return new >= max(_FEWEST_NEW, min(self._seen, HALF_LIFE) * _NEW_PERCENT // 100)

    def saw(self, kind: Kind) -> None:
        """A pod of this kind came."""
        like = coarse(kind)
        if like not in self._counts and len(self._counts) >= MOST_KINDS:
            del self._counts[min(self._counts, key=lambda known: (self._counts[known], known))]
        self._counts[like] = self._counts.get(like, 0) + ONE_POD
        self._seen += 1
        if self._seen % HALF_LIFE == 0:
            self.fade()

    def fade(self) -> None:
        """What was seen counts half from now on; what counts nothing any more is forgotten."""
        self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}

    def counts(self) -> dict[Kind, int]:
        """How much each kind counts; from now on nothing is due."""
        self._read = self._seen
        return dict(self._counts)


def coarse(kind: Kind) -> Kind:
    """The kind with CPU and share rounded up to steps, so that pods that are nearly alike count together."""
    cpu = -(-kind.cpu_milli // _CPU_GRAIN) * _CPU_GRAIN
    return Kind(cpu, -(-kind.milli // _MILLI_GRAIN) * _MILLI_GRAIN, kind.count, kind.models)
