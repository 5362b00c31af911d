"""What nodes offer of the ticket resources, what their pods leave of it, and on which nodes that is too little.

kube-scheduler ignores tickets (:mod:`tessera.scheduler.stock` says why), so this is what keeps a pod from a node
whose kubelet would turn it away, and fail it for good. Counted is what the kubelet counts when it takes a pod in:
each pod of the node at its peak, whoever placed it there, until all its containers have ended. What is reserved
counts too. A resource that a node does not list is not checked by the kubelet at all, so that the container would
start without its share: to us that is a node without tickets.

Source: Kubernetes 1.37 pkg/kubelet/lifecycle/predicate.go (Admit, removeMissingExtendedResources).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tessera.core.request import Container, ContainerKind
from tessera.core.ticket import DEVICES_PER_KEY, KEYS, QUANTITIES, RESOURCES, TICKETS, Ticket
from tessera.wire.quantity import Malformed, parse_quantity, to_count

Amounts = tuple[int, ...]
"""So many devices of each ticket resource, by key."""

Demand = tuple[tuple[int, int], ...]
"""Keys, and how many devices of each."""

NOTHING: Final[Amounts] = (0,) * KEYS
FULL: Final[Amounts] = (DEVICES_PER_KEY,) * KEYS
"""What an agent offers while it hands out shares."""

TIGHT: Final = 8 * QUANTITIES
"""A node with less than that of some key is looked at for every pod: what a pod of eight containers asks at most.
On a node with 330 containers some 1,700 of each key are free, so usually there is no such node."""

NO_TICKETS: Final = "no agent of Tessera hands out devices on this node now"
LONGEST_MESSAGE: Final = 160
"""Of an agent's own words in a reason; an event has room for 1,024 characters in all."""

USED_UP: Final = tuple(
    f"too few of {resource} are left on this node (a pod that is created anew asks for others)"
    for resource in RESOURCES
)
"""By key, and without figures, so that nodes say it alike; without commas, which stand between reasons."""

_NUMBERS: Final = tuple(map(Ticket, range(TICKETS)))
_KEY_OF: Final = {name: key for key, name in enumerate(RESOURCES)}
_ALONE: Final[tuple[Demand, ...]] = tuple(((_KEY_OF[t.resource], t.quantity),) for t in _NUMBERS)
"""The demand of a pod with one ticket, by its number."""

_NONE: Final[Mapping[str, str]] = {}


def withheld(message: str) -> str:
    """The reason of a node whose agent hands out nothing and says why."""
    short = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
    return f"Tessera's agent hands out no devices on this node: {short}"


def offered_by(allocatable: Mapping[str, str] | None) -> Amounts:
    """What a node offers, by its ``status.allocatable``; nothing of what is missing or no number.

    Equal answers are one object where it matters: 5,000 nodes say one of two things.
    """
    if not allocatable:
        return NOTHING
    found = tuple(_amount(allocatable.get(resource)) for resource in RESOURCES)
    return FULL if found == FULL else NOTHING if found == NOTHING else found


def _amount(text: str | None) -> int:
    value = parse_quantity(text) if text else None
    amount = None if value is None or isinstance(value, Malformed) else to_count(value)
    return amount if isinstance(amount, int) else 0


def demand_of(tickets: Sequence[tuple[str, int]], containers: Iterable[Container] = ()) -> Demand:
    """What a pod takes of its node at its peak. ``tickets`` are by container, ``containers`` as they start.

    Where these are not known, all of them are taken to run at once, which is never too little.
    Source: KEP-753: an init container overlaps only the sidecars declared before it.
    """
    if len(tickets) == 1:
        return _ALONE[tickets[0][1]]
    if not tickets:
        return ()
    kinds = {container.name: container.kind for container in containers}
    order = {name: at for at, name in enumerate(kinds)}
    lasting, peak = [0] * KEYS, [0] * KEYS
    for name, number in sorted(tickets, key=lambda ticket: order.get(ticket[0], len(order))):
        ((key, quantity),) = _ALONE[number]
        if kinds.get(name) is ContainerKind.INIT:
            peak[key] = max(peak[key], lasting[key] + quantity)
        else:
            lasting[key] += quantity
            peak[key] = max(peak[key], lasting[key])
    return tuple((key, most) for key, most in enumerate(peak) if most)


class Offers:
    """See the module. Whoever puts pods on nodes keeps count of which (:mod:`tessera.scheduler.population`)."""

    def __init__(self) -> None:
        self._nodes: Collection[str] = ()
        self._offered: dict[str, Amounts] = {}
        self._taken: dict[str, list[int]] = {}
        self._without: set[str] = set()
        self._tight: set[str] = set()
        self._messages: dict[str, str] = {}

    @property
    def without(self) -> Collection[str]:
        """The expected nodes that offer no tickets at all."""
        return self._without

    def expect(self, nodes: Collection[str]) -> None:
        """These nodes have an inventory: the ones among them that offer nothing are out."""
        self._nodes = nodes
        self._without = {name for name in nodes if not any(self._offered.get(name, NOTHING))}

    def note(self, node: str, message: str) -> None:
        """What the node's agent says is wrong; empty for nothing."""
        if message:
            self._messages[node] = message
        else:
            self._messages.pop(node, None)

    def set(self, node: str, amounts: Amounts) -> bool:
        """What a node offers now; whether that is more of anything."""
        before = self._offered.pop(node, NOTHING)
        if any(amounts):
            self._offered[node] = amounts
            self._without.discard(node)
        elif node in self._nodes:
            self._without.add(node)
        self._weigh(node)
        return any(now > then for now, then in zip(amounts, before, strict=True))

    def empty(self) -> None:
        """No pods are on any node."""
        self._taken.clear()
        for node in list(self._tight):
            self._weigh(node)

    def take(self, node: str, demand: Demand) -> None:
        """A pod is on the node."""
        taken = self._taken.get(node)
        if taken is None:
            taken = self._taken[node] = [0] * KEYS
        offered = self._offered.get(node)
        for key, quantity in demand:
            taken[key] += quantity
            if offered is not None and offered[key] - taken[key] < TIGHT:
                self._tight.add(node)

    def give(self, node: str, demand: Demand) -> bool:
        """A pod is there no longer; whether the node had little left."""
        taken = self._taken[node]
        for key, quantity in demand:
            taken[key] -= quantity
        if not any(taken):
            del self._taken[node]
        if node not in self._tight:
            return False
        self._weigh(node)
        return True

    def bars(self, demand: Demand) -> Mapping[str, str]:
        """The nodes on which a pod cannot have its tickets, with the reason.

        Costs nothing while all nodes offer all, else as much as there are nodes that do not.
        """
        large = any(quantity > TIGHT for _, quantity in demand)
        if not (self._without or self._tight or large):
            return _NONE
        found = {node: self._none_there(node) for node in self._without}
        for node in self._offered if large else self._tight:
            why = self._short(node, demand)
            if why:
                found[node] = why
        return found

    def overdrawn(self, node: str, demand: Demand) -> str:
        """Why a pod that is counted on the node cannot have its tickets there after all, or nothing."""
        return self._short(node, [(key, 0) for key, _ in demand])

    def _short(self, node: str, demand: Iterable[tuple[int, int]]) -> str:
        offered, taken = self._offered.get(node, NOTHING), self._taken.get(node, NOTHING)
        for key, quantity in demand:
            if not offered[key]:
                return self._none_there(node)
            if offered[key] - taken[key] < quantity:
                return USED_UP[key]
        return ""

    def _none_there(self, node: str) -> str:
        message = self._messages.get(node)
        return withheld(message) if message else NO_TICKETS

    def _weigh(self, node: str) -> None:
        """Whether the node has little left of some key."""
        offered, taken = self._offered.get(node), self._taken.get(node, NOTHING)
        if offered is not None and any(has - less < TIGHT for has, less in zip(offered, taken, strict=True)):
            self._tight.add(node)
        else:
            self._tight.discard(node)
