"""What is expected to come, learned from the pods that came, and made into an outlook beside the road of pods.

A pod costs that road a count under what it asks. The rest is done when somebody has time: counting
(:meth:`Foresight.learn`), and the new outlook (:func:`foreseen`), which takes some ten milliseconds and touches
nothing that is shared, so that a thread may do it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tessera.allocator.kinds import kind_of
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.request import Pod, Request
from tessera.policy.keeping import NOT_KEPT
from tessera.policy.outlook import Outlook, outlook_of, protecting
from tessera.policy.target import Kind
from tessera.policy.workload import Workload

MOST_UNCOUNTED: Final = 4096
"""Different asks that may wait to be counted; one that comes after so many is not."""

REMEMBERED_KINDS: Final = 4096

PODS_PER_LOOK: Final = 100
"""Pods after which what is scarce is looked at again, also where the workload is what it was."""


class Foresight:
    """See the module. One event loop calls it."""

    def __init__(self) -> None:
        self.workload = Workload()
        self._waiting: dict[tuple[int, int], tuple[Pod, int]] = {}
        self._kinds: dict[tuple[Request | None, int], Kind] = {}
        self._of: Fleet | None = None
        self._generation = 0
        self._new = 0

    def saw(self, pod: Pod) -> None:
        """A pod with a request came."""
        # Equal texts give one object, which the pod that is kept holds.
        like = (id(pod.request), pod.weighed_cpu_milli)
        first, pods = self._waiting.get(like, (pod, 0))
        if pods or len(self._waiting) < MOST_UNCOUNTED:
            self._waiting[like] = (first, pods + 1)

    def learn(self, fleet: Fleet) -> None:
        """Count the pods that came."""
        if self._of is not fleet:
            self._kinds.clear()
            self._of = fleet
        waiting, self._waiting = self._waiting, {}
        for pod, pods in waiting.values():
            kind = self._kind(fleet, pod)
            for _ in range(pods):
                self.workload.saw(kind)
            self._new += pods

    def _kind(self, fleet: Fleet, pod: Pod) -> Kind:
        like = (pod.request, pod.weighed_cpu_milli)
        kind = self._kinds.get(like)
        if kind is None:
            if len(self._kinds) >= REMEMBERED_KINDS:
                self._kinds.clear()
            kind = self._kinds[like] = kind_of(fleet, pod)
        return kind

    @property
    def due(self) -> bool:
        """Whether a new outlook is worth its making."""
        return self.workload.due or self._new >= PODS_PER_LOOK

    def task(self, outlook: Outlook) -> tuple[Mapping[Kind, int] | None, int]:
        """What :func:`foreseen` is to be called with after ``outlook``; nothing is due from now on."""
        self._new = 0
        self._generation = max(self._generation, outlook.generation) + 1
        return (self.workload.counts() if self.workload.due else None), self._generation

    def onto(self, fleet: Fleet, outlook: Outlook) -> Outlook:
        """An outlook for a fleet that changed: the same prices where it has the same models, else made anew."""
        self._generation = max(self._generation, outlook.generation) + 1
        if outlook.models != fleet.models:
            return outlook_of(fleet, self.workload.counts(), self._generation)
        kept = np.full(len(fleet.nodes), NOT_KEPT, dtype=np.int64)
        return replace(outlook, kept=kept, generation=self._generation)


def foreseen(snapshot: Snapshot, outlook: Outlook, counts: Mapping[Kind, int] | None, generation: int) -> Outlook:
    """The outlook after ``outlook``: of another workload where ``counts`` says one, and with what is scarce
    now.
    """
    if counts is not None:
        outlook = outlook_of(snapshot.fleet, counts, generation)
    return protecting(outlook, snapshot, generation)
