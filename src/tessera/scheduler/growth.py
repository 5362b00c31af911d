"""Nodes that join or grow, and the pods that may wait for that without ever having reached us.

kube-scheduler looks again at a pod that it refused itself, for CPU, memory or the number of pods, when a node
comes or grows and its own test says that the node helps. That test counts what it was told to ignore, finds no
node with the resources that users ask devices by, and says no, so such a pod would wait for five minutes; the cure
is in :mod:`.waker`.

Source: Kubernetes 1.37 pkg/scheduler/framework/plugins/noderesources/fit.go (isSchedulableAfterNodeChange, isFit).
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from tessera.scheduler.facts import MARK, PodFacts
from tessera.scheduler.stock import managed_resources
from tessera.wire.quantity import Malformed, parse_quantity

Room = tuple[tuple[str, str], ...]
"""What a node has for pods by resource, as the API server writes it, without what kube-scheduler ignores."""

IGNORED: Final = frozenset(resource["name"] for resource in managed_resources())


def room_of(allocatable: Mapping[str, str] | None) -> Room:
    """The room of a node, by its ``status.allocatable``."""
    return tuple(
        _kept_once(name, text) for name, text in sorted((allocatable or {}).items()) if name not in IGNORED
    )


@lru_cache(maxsize=4096)
def _kept_once(name: str, text: str) -> tuple[str, str]:
    """Nodes come in few sizes: equal parts of 5,000 of them are one object."""
    return name, text


def grew(before: Room, now: Room) -> bool:
    """Whether there is more of anything."""
    if before == now:
        return False
    had = dict(before)
    return any(_amount(text) > _amount(had.get(name, "0")) for name, text in now)


def _amount(text: str) -> Fraction:
    value = parse_quantity(text)
    return Fraction(0) if isinstance(value, Malformed) else value


class Growth:
    """See the module. ``due`` is set when a node joined or grew, and is for whoever wakes to take back."""

    def __init__(self) -> None:
        self.due = False
        self.marked: dict[str, PodFacts] = {}
        """Pods that bear the mark of a waking, which ought to be off in the next moment, by uid."""
        self._rooms: dict[str, Room] = {}
        self._waiting: dict[str, PodFacts] = {}

    def set_node(self, name: str, room: Room | None) -> None:
        """What a node has; ``None`` where it is gone."""
        if room is None:
            self._rooms.pop(name, None)
            return
        before = self._rooms.get(name)
        self._rooms[name] = room
        if before is None or grew(before, room):
            self.due = True

    def put(self, facts: PodFacts) -> None:
        """A pod with a request is not bound."""
        self._waiting[facts.uid] = facts
        if facts.nominated == MARK:
            self.marked[facts.uid] = facts
        else:
            self.marked.pop(facts.uid, None)

    def drop(self, uid: str) -> None:
        """A pod is bound, or gone."""
        self._waiting.pop(uid, None)
        self.marked.pop(uid, None)

    def empty(self) -> None:
        """No pods are known; nodes are."""
        self._waiting.clear()
        self.marked.clear()

    def foremost(self, holds: Callable[[str], object]) -> tuple[PodFacts, ...]:
        """For each kube-scheduler the pod of the highest priority among those that may be nominated by us.

        ``holds`` says whether the pod of a uid holds devices: such a one is being bound.
        """
        found: dict[str, PodFacts] = {}
        for facts in self._waiting.values():
            known = found.get(facts.scheduler)
            if (known is None or facts.priority > known.priority) and _free(facts) and not holds(facts.uid):
                found[facts.scheduler] = facts
        return tuple(found.values())


def _free(facts: PodFacts) -> bool:
    """Whether the pod is there to stay, and not expected on a node by somebody else."""
    return not facts.leaving and facts.nominated in ("", MARK)
