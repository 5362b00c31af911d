"""Rollouts that wait for themselves: a Deployment's new pod for devices that old ones hold, and they for it.

Whether the Deployment may take an old pod away first is not ours to read, so that is said as a condition.
"""

from typing import Final

from tessera.scheduler.facts import PodFacts
from tessera.scheduler.holdings import Phase
from tessera.scheduler.state import State

REVISION: Final = "pod-template-hash"
"""The label by which pods of one Deployment's revisions differ."""

WAITS_FOR_ITSELF: Final = (
    " Pods of another revision of the same Deployment hold devices: unless it may take one of them away first"
    " (maxUnavailable), the rollout waits for itself."
)
REMEMBERED: Final = 256
REMEMBERED_SECONDS: Final = 60.0

Workload = tuple[str, str, tuple[tuple[str, str], ...]]
"""A namespace, a revision in it, and the labels beside that."""


def workload_of(facts: PodFacts) -> Workload | None:
    """What a pod belongs to; ``None`` where it is of no Deployment."""
    revision = next((value for name, value in facts.labels if name == REVISION), None)
    if revision is None:
        return None
    return facts.namespace, revision, tuple(label for label in facts.labels if label[0] != REVISION)


class Rollouts:
    """Who waits for its own. A look goes over all holdings, so it is remembered for a minute."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[Workload, tuple[float, str]] = {}

    def words(self, facts: PodFacts, now: float, *, fresh: bool) -> tuple[bool, str] | None:
        """Whether that took a look, and what to tell a waiting pod, empty for nothing; ``None``: not this time."""
        workload = workload_of(facts)
        if workload is None:
            return False, ""
        known = self._known.get(workload)
        if known is not None and now - known[0] < REMEMBERED_SECONDS:
            return False, known[1]
        if not fresh:
            return None
        words = WAITS_FOR_ITSELF if self._others_hold(workload) else ""
        self._known.pop(workload, None)
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[workload] = (now, words)
        return True, words

    def _others_hold(self, workload: Workload) -> bool:
        namespace, revision, labels = workload
        for uid, held in self._state.holdings.items():
            facts = self._state.pods.get(uid)
            if facts is None or facts.namespace != namespace or held.phase is not Phase.BOUND:
                continue
            other = workload_of(facts)
            if other is not None and other[1] != revision and other[2] == labels:
                return True
        return False
