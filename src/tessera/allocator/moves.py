"""What a drain is made of: who sits where and may be moved, the plan or why there is none, and the words for it.

The planner is :mod:`tessera.allocator.drain`. A *tenant* is a pod that holds a placement and whose request is
known, so that another place can be found for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tessera.allocator.ledger import Commit, Entry, Event, Release, Reserve
from tessera.core.placement import Placement
from tessera.core.request import Pod

MOST_MOVES: Final = 8
"""Moves that one plan may have at most. Source: beyond 8 the departure study found nothing to gain."""


class Reach(StrEnum):
    """Whose pods may be moved for a pod: those of lower priority, of equal priority too, or anybody's."""

    LOWER = "lower"
    EQUAL = "equal"
    ANY = "any"


class Stays(StrEnum):
    """Why what holds a device is not moved."""

    MARKED = "marked to stay"
    EXCLUSIVE = "holds its devices exclusively"
    RESERVED = "reserved and not bound yet"
    PRIORITY = "of no lower priority"
    FOREIGN = "not ours"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on its node; ``marked`` says that its owner wants it left where it is."""

    pod: Pod
    placement: Placement
    priority: int = 0
    committed: bool = True
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What a drain may do: ``most_moves`` of 0 (the default) means that nobody is moved at all.

    Raises ``ValueError`` for a number of moves that is not 0 to ``MOST_MOVES``.
    """

    most_moves: int = 0
    reach: Reach = Reach.LOWER

    def __post_init__(self) -> None:
        if not 0 <= self.most_moves <= MOST_MOVES:
            raise ValueError(f"most_moves={self.most_moves}: write 0 (never) to {MOST_MOVES}")


@dataclass(frozen=True, slots=True)
class Move:
    """One pod leaves ``source`` for ``target``; moves are applied in the order of their plan."""

    source: Placement
    target: Placement


@dataclass(frozen=True, slots=True)
class Drain:
    """The plan: after ``moves``, one after another, ``placement`` of the pod is free.

    ``rivals`` is how many other nodes could have become free with no more than the moves allowed.
    """

    placement: Placement
    moves: tuple[Move, ...]
    rivals: int


class Why(StrEnum):
    """Why nobody is moved."""

    OFF = "off"
    NOT_WHOLE = "not-whole"
    FITS = "fits"
    NO_NODE = "no-node"
    HELD = "held"
    TOO_MANY = "too-many"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class NoDrain:
    """No plan. ``nodes`` counts the nodes by what kept each from becoming free, among those ever fit for the pod.

    ``nearest`` is the fewest moves that would free a node, where that is more than allowed; ``stays`` counts
    the pods (or foreign holders) in the way by why they are not moved.
    """

    why: Why
    nodes: Mapping[Why, int] = field(default_factory=dict)
    nearest: int | None = None
    stays: Mapping[Stays, int] = field(default_factory=dict)


def events_of(drain: Drain) -> tuple[Event, ...]:
    """The plan as events for the ledger: every step is checked there again. The pod itself is left reserved."""
    steps: list[Event] = []
    for move in drain.moves:
        uid = move.source.pod_uid
        steps += [Release(uid), Reserve(move.target), Commit(uid)]
    return (*steps, Reserve(drain.placement))


def tenants_by_node(
    entries: Mapping[str, Entry],
    pods: Mapping[str, Pod],
    *,
    priorities: Mapping[str, int] | None = None,
    marked: frozenset[str] = frozenset(),
) -> dict[str, list[Tenant]]:
    """Who sits where, from a ledger's entries and the pods by uid; holders without a pod are not ours to move."""
    ranks = priorities or {}
    found: dict[str, list[Tenant]] = {}
    for uid, entry in entries.items():
        if (pod := pods.get(uid)) is not None:
            tenant = Tenant(pod, entry.placement, ranks.get(uid, 0), entry.committed, uid in marked)
            found.setdefault(entry.placement.node, []).append(tenant)
    return found


def _devices(placement: Placement) -> str:
    indices = {grant.uuid: grant.index for grants in placement.grants.values() for grant in grants}
    listed = ", ".join(map(str, sorted(indices.values())))
    return f"{placement.node} [{listed}]" if listed else placement.node


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def drain_lines(drain: Drain) -> tuple[str, ...]:
    """Why this node, and who moves where, a line each."""
    rivals = f"; {_counted(drain.rivals, 'other node')} could be freed too" if drain.rivals else ""
    head = (
        f"{drain.placement.pod_key} fits on {_devices(drain.placement)} after {_counted(len(drain.moves), 'move')}"
        f" (the fewest and smallest that work{rivals})"
    )
    moves = (f"{m.source.pod_key}: {_devices(m.source)} -> {_devices(m.target)}" for m in drain.moves)
    return (head, *moves)


_WORDS: Final[Mapping[Why, str]] = {
    Why.OFF: "moving pods is switched off",
    Why.NOT_WHOLE: "only a pod that asks for whole devices is given room by moving others",
    Why.FITS: "the pod fits without any move",
    Why.NO_NODE: "no node could host the pod even if it were empty",
    Why.HELD: "too much on every node must stay where it is",
    Why.TOO_MANY: "every node needs more moves than are allowed",
    Why.NOWHERE: "the pods in the way have no other place to go",
}
_ON_NODES: Final[Mapping[Why, str]] = {
    Why.HELD: "held by what must stay",
    Why.TOO_MANY: "in need of more moves",
    Why.NOWHERE: "whose pods have no other place",
}


def no_drain_lines(none: NoDrain) -> tuple[str, ...]:
    """Why nobody moves: the chief reason, then the nodes by theirs and who must stay, where that is known."""
    lines = [_WORDS[none.why]]
    if none.nodes:
        kinds = (f"{_counted(n, 'node')} {_ON_NODES[why]}" for why, n in sorted(none.nodes.items(), key=_most))
        lines.append(", ".join(kinds))
    if none.nearest is not None:
        lines.append(f"the nearest node needs {_counted(none.nearest, 'move')}")
    if none.stays:
        stays = (f"{n:,} {stay}" for stay, n in sorted(none.stays.items(), key=_most))
        lines.append(f"in the way: {', '.join(stays)}")
    return tuple(lines)


def _most(counted: tuple[str, int]) -> tuple[int, str]:
    return (-counted[1], counted[0])


def stay_of(tenant: Tenant, priority: int, reach: Reach) -> Stays | None:
    """Why the tenant is not moved for a pod of ``priority``; ``None`` where it may be."""
    bars: Sequence[tuple[bool, Stays]] = (
        (tenant.marked, Stays.MARKED),
        (any(charge.exclusive for charge in tenant.placement.charges), Stays.EXCLUSIVE),
        (not tenant.committed, Stays.RESERVED),
        (_outranks(tenant.priority, priority, reach), Stays.PRIORITY),
        (tenant.pod.request is None, Stays.FOREIGN),
    )
    return next((why for barred, why in bars if barred), None)


def _outranks(theirs: int, ours: int, reach: Reach) -> bool:
    """Whether a pod of priority ``theirs`` is out of reach for one of ``ours``."""
    return reach is not Reach.ANY and theirs >= ours + (reach is Reach.EQUAL)
