"""Who holds what, and how sure that is: the ledger with the phases of a binding.

::

    reserved --> binding --> bound
        ^          |  |        ^
        |          |  +--> doubtful   (the API server's answer was lost: the pod may be bound, or become so)
        +- failed -+          |
    (released) <-- time ------+

A reservation and a doubt end by time; a binding in flight ends by its answer; bound is a fact and ends with the
pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Commit, Ledger, Overcommitted, Refused, Release, Reserve
from tessera.allocator.look import Looker
from tessera.core.fleet import Fleet
from tessera.core.placement import Placement
from tessera.policy.rank import Policy
from tessera.scheduler.foresight import Foresight
from tessera.scheduler.waiting import Waiting
from tessera.wire.kube.allocation import Allocation


class Phase(StrEnum):
    """How sure a holding is."""

    RESERVED = "reserved"
    BINDING = "binding"
    DOUBTFUL = "doubtful"
    BOUND = "bound"


@dataclass(slots=True)
class Held:
    """One pod's holding. ``text`` is its annotation, once written; ``until``: when it ends (monotonic seconds).

    ``doubted``: the answer to some Binding of it was lost, so a later refusal may mean that it is bound already.
    """

    placement: Placement
    tickets: Mapping[str, int]
    phase: Phase
    until: float | None = None
    text: str = ""
    doubted: bool = False

    @property
    def node(self) -> str:
        """The node of the placement."""
        return self.placement.node


FOREVER: Final = None
"""Ends by no clock."""


class Holdings:
    """The only owner of the ledger. Not thread-safe, as nothing here is: one event loop calls it."""

    def __init__(self, policy: Policy, foresight: Foresight, looker: Looker | None = None) -> None:
        self._policy, self._foresight, self._looker = policy, foresight, looker
        self._held: dict[str, Held] = {}
        self._open: dict[str, Held] = {}
        self._set_aside: dict[str, tuple[Placement, ...]] = {}
        self._by_node: dict[str, dict[str, Held]] = {}
        self.waiting = Waiting()
        self.ledger = Ledger(Fleet(()))
        self.index = Index(self.ledger, policy, looker=looker)

    def __len__(self) -> int:
        return len(self._held)

    def get(self, uid: str) -> Held | None:
        """The holding of a pod."""
        return self._held.get(uid)

    def items(self) -> Iterable[tuple[str, Held]]:
        """Every holding by uid."""
        return self._held.items()

    def open(self) -> Mapping[str, Held]:
        """Those that are not bound yet."""
        return self._open

    def on(self, node: str) -> Mapping[str, Held]:
        """The holdings on a node by uid."""
        return self._by_node.get(node, {})

    def aside(self, node: str) -> tuple[Placement, ...]:
        """What pods without us are taken to hold of a node."""
        return self._set_aside.get(node, ())

    def reserve(self, placement: Placement, tickets: Mapping[str, int], until: float) -> str:
        """Hold a placement for a pod that holds nothing; why not, or nothing."""
        for effect in self.ledger.apply(Reserve(placement)):
            if isinstance(effect, Refused):
                return effect.why
        self._keep(Held(placement, tickets, Phase.RESERVED, until))
        return ""

    def binding(self, held: Held, text: str) -> None:
        """The Binding is on its way."""
        held.phase, held.until, held.text = Phase.BINDING, FOREVER, text

    def doubt(self, held: Held, until: float) -> None:
        """Nobody knows whether the Binding was done."""
        held.phase, held.until, held.doubted = Phase.DOUBTFUL, until, True

    def bound(self, uid: str) -> None:
        """The Binding was done as we wrote it."""
        held = self._held[uid]
        held.phase, held.until = Phase.BOUND, FOREVER
        self._open.pop(uid, None)
        self.ledger.apply(Commit(uid))

    def adopt(self, allocation: Allocation, text: str) -> tuple[str, ...]:
        """A bound pod's allocation is a fact; the devices that it takes past what they have."""
        placement = allocation.placement
        uid = placement.pod_uid
        self._lose(uid)
        effects = self.ledger.apply(Adopt(placement))
        self._keep(Held(placement, allocation.tickets, Phase.BOUND, FOREVER, text))
        return next((e.uuids for e in effects if isinstance(e, Overcommitted)), ())

    def admitted(self, uid: str) -> bool:
        """The kubelet has taken the pod in: its tickets are free; whether that was news."""
        return self.waiting.drop(uid)

    def release(self, uid: str) -> bool:
        """The pod holds nothing any more; whether it did."""
        self.waiting.drop(uid)
        if self._lose(uid) is None:
            return False
        self.ledger.apply(Release(uid))
        return True

    def expire(self, now: float) -> tuple[Held, ...]:
        """Release what ended by time, and say what that was."""
        over = [(u, h) for u, h in self._open.items() if h.until is not None and h.until <= now]
        for uid, _ in over:
            self.release(uid)
        return tuple(held for _, held in over)

    def set_aside(self, node: str, placements: tuple[Placement, ...]) -> bool:
        """What pods without us are taken to hold of ``node`` is this now; whether that is a change."""
        if self._set_aside.get(node, ()) == placements:
            return False
        for old in self._set_aside.pop(node, ()):
            self.ledger.apply(Release(old.pod_uid))
        for new in placements:
            self.ledger.apply(Adopt(new))
        if placements:
            self._set_aside[node] = placements
        return True

    def restore(self, held: Held) -> None:
        """A holding of an earlier ledger, whatever stands beside it by now."""
        self.ledger.apply(Adopt(held.placement))
        self._keep(held)

    def move(self, fleet: Fleet) -> None:
        """Everything onto another fleet, whatever that says. What is set aside is to be decided anew."""
        for node in list(self._set_aside):
            self.set_aside(node, ())
        self.ledger = self.ledger.onto(fleet)
        outlook = self._foresight.onto(fleet, self.index.outlook)
        self.index = Index(self.ledger, self._policy, outlook, self._looker)

    def _keep(self, held: Held) -> None:
        uid = held.placement.pod_uid
        self._held[uid] = held
        self._by_node.setdefault(held.node, {})[uid] = held
        if held.phase is not Phase.BOUND:
            self._open[uid] = held
        self.waiting.put(uid, held.node, held.tickets.values())

    def _lose(self, uid: str) -> Held | None:
        held = self._held.pop(uid, None)
        if held is None:
            return None
        self._open.pop(uid, None)
        on = self._by_node[held.node]
        del on[uid]
        if not on:
            del self._by_node[held.node]
        return held
