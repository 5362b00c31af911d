"""All that the scheduler knows, and its two decisions: events in, verdicts and notices out. No clock, no I/O.

Pods are the log. A pod that is bound and carries a believed allocation holds what that says; one that is bound and
uses devices without it is counted by whole devices (:mod:`tessera.scheduler.foreign`); one that is not bound holds
at most a reservation. So what is held can be derived from the pods alone at any time, and :mod:`.audit` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.core.fleet import Fleet, Snapshot, Usage
from tessera.core.placement import Charge, Placement
from tessera.policy.rank import Policy
from tessera.policy.soft import bonuses
from tessera.scheduler.asks import Ask, Requests
from tessera.scheduler.belief import believed, misplaced
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.foreign import Holder, set_aside
from tessera.scheduler.growth import Growth, Room
from tessera.scheduler.holdings import Held, Holdings, Phase
from tessera.scheduler.inventory import Inventory
from tessera.scheduler.offers import NOTHING, Amounts, demand_of
from tessera.scheduler.population import Population
from tessera.scheduler.waiting import in_use
from tessera.wire.kube.allocation import Allocation, encode_allocation
from tessera.wire.kube.inventory import GPUNodeStatus

RESERVATION_SECONDS: Final = 120.0
"""How long a reservation waits for its Bind: kube-scheduler may wait for volumes in between."""

DOUBT_SECONDS: Final = 90.0
"""Longer than an API server takes over a request whose client is gone (60 s by default)."""

UNSEEN_SECONDS: Final = 180.0
"""Longer than the silence of a watch after which nothing is placed any more: by then a bound pod is seen."""

UNADMITTED: Final = "was created before Tessera's webhook admitted it: delete and create it again"


class NoticeKind(StrEnum):
    """What people should hear about a pod; the reason of its event."""

    FORGED = "AllocationNotBelieved"
    OVERCOMMITTED = "DeviceOvercommitted"
    UNADMITTED = "NotAdmitted"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about a pod that is not as it should be."""

    kind: NoticeKind
    facts: PodFacts
    text: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """This node, and devices on it are reserved."""

    node: str


@dataclass(frozen=True, slots=True)
class Everywhere:
    """No node, for one reason that is the pod's own."""

    why: str


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No node has room; ``barred`` ones are out for their tickets, with the reason."""

    ask: Ask
    barred: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotOurs:
    """The pod asks for nothing of ours."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """No verdict can be given now; a later try will get one."""

    why: str


Verdict = Chosen | Everywhere | Nowhere | NotOurs | Unclear


@dataclass(frozen=True, slots=True)
class Bindable:
    """Devices are held for this binding; ``text`` is the allocation to write with it."""

    held: Held
    text: str


class Outcome(StrEnum):
    """What became of a Binding."""

    DONE = "done"
    FAILED = "failed"
    DOUBTFUL = "doubtful"


class State:
    """See the module. ``freed`` is set whenever a pod that found no room might find some now."""

    def __init__(self, policy: Policy, *, reservation: float = RESERVATION_SECONDS) -> None:
        self.requests = Requests()
        self.inventory = Inventory()
        self.population = Population()
        self.holdings = Holdings(policy)
        self.growth = Growth()
        self.pods: dict[str, PodFacts] = {}
        self.foreign: dict[str, dict[str, Holder]] = {}
        self.strays: dict[str, tuple[PodFacts, float]] = {}
        self.refused: dict[str, Ask] = {}
        self.wishing: dict[str, None] = {}
        self.notices: list[Notice] = []
        self.freed = False
        self.stale = False
        self._reported: set[str] = set()
        self._policy, self._reservation = policy, reservation
        self._node_of: dict[str, str] = {}

    @property
    def fleet(self) -> Fleet:
        """The fleet that decisions are made on."""
        return self.holdings.ledger.fleet

    def view(self) -> Snapshot:
        """Fleet and usage now, until the next event."""
        return self.holdings.ledger.view()

    # inventory

    def saw_gpu_node(self, name: str, status: GPUNodeStatus | None) -> None:
        """An agent published something; it counts from the next :meth:`rebuild` on."""
        self.stale = self.inventory.set(name, status) or self.stale
        self.population.offers.note(name, status.message if status else "")

    def rebuild(self) -> None:
        """Everything on the fleet as it is published now: half a second with 40,000 shares."""
        fleet = self.inventory.fleet()
        self._node_of = {d.uuid: node.name for node in fleet.nodes for d in node.devices}
        self.holdings.move(fleet)
        self.population.offers.expect(fleet.node_row)
        for uid, held in list(self.holdings.items()):
            facts = self.pods.get(uid)
            moved = held.phase is Phase.BOUND and misplaced(held.placement, self._node_of)
            if moved and facts is not None:
                self._disbelieve(facts, moved)
            elif held.phase is Phase.RESERVED and self.lost_ground(held):
                self.release(uid)
        for holder in [h for holders in self.foreign.values() for h in holders.values()]:
            facts = self.pods[holder.uid]
            if facts.allocation is not None:
                self._bound(facts)
        for node, holders in self.foreign.items():
            self._set_aside(node)
            for holder in holders.values():
                self._report(holder)
        self.stale, self.freed = False, True

    def restart(self) -> None:
        """Forget every pod; what may still become bound stays held. The pods that there are must be told anew."""
        doubts = {uid: h for uid, h in self.holdings.open().items() if h.phase is not Phase.RESERVED}
        fleet, self.holdings = self.fleet, Holdings(self._policy)
        self.holdings.move(fleet)
        for held in doubts.values():
            self.holdings.restore(held)
        self.population.empty(but=doubts)
        for known in (self.pods, self.foreign, self.strays, self.refused, self.wishing, self._reported):
            known.clear()
        self.growth.empty()

    def repair(self, now: float) -> None:
        """Everything from the pods alone, as after a restart; reservations are made again where they fit."""
        pods, held = list(self.pods.values()), list(self.holdings.open().items())
        population, self.population = self.population, Population()
        self.restart()
        self.population = population
        for facts in pods:
            self.saw_pod(None, facts, now)
        for uid, old in held:
            if self.holdings.get(uid) is None and not self._reserved_anew(uid, old, now):
                self.population.drop(uid)

    def _reserved_anew(self, uid: str, old: Held, now: float) -> bool:
        return uid in self.pods and not self.holdings.reserve(old.placement, old.tickets, old.until or now)

    def saw_node(
        self, name: str, labels: Mapping[str, str] | None, offered: Amounts = NOTHING, room: Room = ()
    ) -> None:
        """A Node's labels, the tickets that it offers or its room changed; labels of ``None`` where it is gone."""
        self.freed = self.population.set_node(name, labels, offered) or self.freed
        self.growth.set_node(name, None if labels is None else room)

    # pods

    def saw_pod(self, old: PodFacts | None, new: PodFacts | None, now: float) -> None:
        """A pod came, changed or went. Delivered twice or late, it does no harm: what counts is ``new``."""
        if old is not None and (new is None or new.uid != old.uid):
            self._forget(old.uid)
        if new is None:
            return
        if new.finished:
            self._forget(new.uid)
            return
        if new.node:
            self._seat(new, new.node)
        if not new.matters and new.uid not in self.pods:
            return
        self.pods[new.uid] = new
        if new.node:
            self.refused.pop(new.uid, None)
            self.strays.pop(new.uid, None)
            self.growth.drop(new.uid)
            self._bound(new)
            self._note_wish(new)
        elif new.request is None:
            self.strays.setdefault(new.uid, (new, now))
        else:
            self.growth.put(new)

    def _note_wish(self, facts: PodFacts) -> None:
        if facts.resize is not None:
            self.wishing[facts.uid] = None
        else:
            self.wishing.pop(facts.uid, None)

    def _forget(self, uid: str) -> None:
        """The pod is gone or has ended: it holds nothing."""
        facts = self.pods.pop(uid, None)
        self.wishing.pop(uid, None)
        self.growth.drop(uid)
        self.freed = self.population.drop(uid) or self.freed
        self.refused.pop(uid, None)
        self.strays.pop(uid, None)
        held = self.holdings.get(uid)
        if held is not None:
            self.holdings.release(uid)
            self._settle(held.node)
        if facts is not None and self._unhold(facts):
            self._set_aside(facts.node)

    def _bound(self, facts: PodFacts) -> None:
        held = self.holdings.get(facts.uid)
        if held is None or held.text != facts.allocation or held.node != facts.node or not held.text:
            self._read(facts)
            held = self.holdings.get(facts.uid)
        elif held.phase is not Phase.BOUND:
            self.holdings.bound(facts.uid)
            self._settle(facts.node, freed=False)
        if held is not None and facts.admitted:
            self.freed = self.holdings.admitted(facts.uid) or self.freed

    def _read(self, facts: PodFacts) -> None:
        """Believe the pod's allocation or not, and hold accordingly."""
        request = self.requests.of(facts.request)
        found = believed(facts, None if isinstance(request, str) else request, self._node_of)
        if isinstance(found, str):
            self._disbelieve(facts, found)
            return
        before = self.holdings.get(facts.uid)
        over = self._overcommitted(found.placement, self.holdings.adopt(found, facts.allocation or ""))
        self._unhold(facts)
        self._settle(facts.node, freed=False)
        if before is not None and before.node != facts.node:
            self._settle(before.node)
        if over:
            text = f"takes more of device {', '.join(over)} on node {facts.node} than there is"
            self.notices.append(Notice(NoticeKind.OVERCOMMITTED, facts, text))

    def rebook(self, facts: PodFacts, allocation: Allocation, text: str) -> None:
        """A bound pod is about to hold this: nobody else gets the room from now on."""
        self.holdings.adopt(allocation, text)
        self._settle(facts.node)

    def reread(self, uid: str) -> None:
        """A bound pod holds what its records say, whatever was booked for it."""
        facts = self.pods.get(uid)
        if facts is not None and facts.node:
            self._read(facts)
            self._settle(facts.node)

    def _overcommitted(self, placement: Placement, over: Sequence[str]) -> tuple[str, ...]:
        """Those of the devices that are ``over`` by what is bound alone.

        While another instance leads, it binds pods where we still hold what we tried to bind before it did.
        """
        if not over:
            return ()
        usage = self.view().usage.thawed()
        for held in self.holdings.on(placement.node).values():
            if held.phase is not Phase.BOUND:
                usage.book(self.fleet, held.placement.charges, sign=-1)
        rows = {charge: self.fleet.device_row[charge.uuid] for charge in placement.charges if charge.uuid in over}
        return tuple(charge.uuid for charge, row in rows.items() if _overbooked(self.fleet, usage, row, charge))

    def _disbelieve(self, facts: PodFacts, why: str) -> None:
        """A pod that uses devices without us, whatever it says."""
        held = self.holdings.get(facts.uid)
        if held is not None:
            self.holdings.release(facts.uid)
            self._settle(held.node)
        request = self.requests.of(facts.request)
        asked = 0 if request is None or isinstance(request, str) else sum(c.count for c in request.claims)
        holder = Holder(facts.uid, facts.key, facts.node, max(facts.devices, asked, 1))
        holders = self.foreign.setdefault(facts.node, {})
        if holders.get(facts.uid) == holder:
            return
        holders[facts.uid] = holder
        self._set_aside(facts.node)
        if facts.allocation is not None:
            text = f"the allocation {why}: not believed, {holder.count} devices of the node are set aside"
            self.notices.append(Notice(NoticeKind.FORGED, facts, text))
        self._report(holder)

    def _report(self, holder: Holder) -> None:
        """Tell of a pod that uses devices without us, once, and only where there are devices."""
        row = self.fleet.node_row.get(holder.node)
        facts = self.pods[holder.uid]
        if holder.uid in self._reported or facts.allocation is not None:
            return
        if row is not None and self.fleet.nodes[row].devices:
            self._reported.add(holder.uid)
            text = f"uses devices of node {holder.node} without Tessera: {holder.count} are set aside for it"
            self.notices.append(Notice(NoticeKind.UNADMITTED, facts, text))

    def _unhold(self, facts: PodFacts) -> bool:
        """The pod is none that uses devices without us; whether it was."""
        holders = self.foreign.get(facts.node, {})
        was = holders.pop(facts.uid, None) is not None
        self._reported.discard(facts.uid)
        if was and not holders:
            del self.foreign[facts.node]
        return was

    def _settle(self, node: str, *, freed: bool = True) -> None:
        """What is held on ``node`` changed."""
        self.freed = self.freed or freed
        if node in self.foreign or self.holdings.aside(node):
            self._set_aside(node)

    def _set_aside(self, node: str) -> None:
        self.freed = self.holdings.set_aside(node, self.asides(node)) or self.freed

    def asides(self, node: str) -> tuple[Placement, ...]:
        """What pods without us are to be taken to hold of a node, by the bound pods alone."""
        row = self.fleet.node_row.get(node)
        holders = self.foreign.get(node)
        if row is None or not holders:
            return ()
        ours = (
            charge
            for held in self.holdings.on(node).values()
            if held.phase is Phase.BOUND
            for charge in held.placement.charges
        )
        return set_aside(self.fleet.nodes[row].devices, holders.values(), self.inventory.marks(node), ours)

    # decisions

    def filter(self, facts: PodFacts, names: Sequence[str], now: float) -> Verdict:
        """Choose a node among ``names`` for a pod and reserve devices there, or say why not."""
        ask = self.requests.ask(facts)
        if ask is None:
            return Everywhere(f"the pod {UNADMITTED}") if facts.asks else NotOurs()
        if isinstance(ask, str):
            return Everywhere(f"the pod's request {ask}")
        held = self.holdings.get(facts.uid)
        if held is not None and held.phase is not Phase.RESERVED:
            return _same_again(held, names)
        if held is not None:
            self.holdings.release(facts.uid)
            self.population.drop(facts.uid)
        return self._choose(ask, names, now)

    def barred(self, facts: PodFacts) -> Mapping[str, str]:
        """The nodes that a pod cannot go to for its tickets, with the reason. It holds none of them yet."""
        return {node: in_use(why) if isinstance(why, int) else why for node, why in self._out(facts).items()}

    def _out(self, facts: PodFacts) -> Mapping[str, int | str]:
        """The same for every decision, without words for a number that waits there."""
        waits = self.holdings.waiting.nodes(dict(facts.tickets).values(), facts.uid)
        bars = self.population.offers.bars(demand_of(facts.tickets, facts.containers))
        return {**waits, **bars} if bars else waits

    def _choose(self, ask: Ask, names: Sequence[str], now: float) -> Verdict:
        facts = ask.facts
        bonus = bonuses(facts.wishes, names, self.population) if facts.wishes else None
        placed = self.holdings.index.place(ask.pod, names, barred=self._out(facts), bonus=bonus)
        if placed is None:
            self.refused[facts.uid] = ask
            return Nowhere(ask, self.barred(facts))
        why = self.holdings.reserve(placed.placement, dict(facts.tickets), now + self._reservation)
        if why:
            return Unclear(why)
        self.refused.pop(facts.uid, None)
        node = placed.placement.node
        self._seat(facts, node)
        return Chosen(node)

    def _seat(self, facts: PodFacts, node: str) -> None:
        """The pod is on ``node``, or will be."""
        demand = demand_of(facts.tickets, facts.containers)
        self.population.put(facts.uid, node, facts.namespace, facts.labels, demand)

    def begin_bind(self, uid: str, key: str, node: str, now: float) -> Bindable | str:
        """Devices for this binding, and the text to write; or why not. Ends with :meth:`end_bind`."""
        held = self.holdings.get(uid)
        if held is None:
            held = self._reserve_again(uid, node, now)
        if held is None:
            return f"the reservation of pod {key} is over, and node {node} has no room for it any more"
        if held.node != node:
            return f"pod {key} holds a placement on another node than {node}"
        if held.phase in (Phase.BINDING, Phase.BOUND):
            return f"pod {key} is bound already, or about to be"
        why = self.lost_ground(held)
        if why and held.phase is Phase.RESERVED:
            self.release(uid)
            return why
        text = held.text or encode_allocation(held.placement, held.tickets)
        self.holdings.binding(held, text)
        return Bindable(held, text)

    def _reserve_again(self, uid: str, node: str, now: float) -> Held | None:
        """Room for a pod whose reservation ended before its Bind came."""
        facts = self.pods.get(uid)
        ask = None if facts is None else self.requests.ask(facts)
        if isinstance(ask, Ask):
            self._choose(ask, [node], now)
        return self.holdings.get(uid)

    def end_bind(self, bindable: Bindable, outcome: Outcome, now: float) -> None:
        """What became of the Binding. The pod may have been seen bound, or be gone, in the meantime."""
        held, uid = bindable.held, bindable.held.placement.pod_uid
        if self.holdings.get(uid) is not held or held.phase is not Phase.BINDING:
            return
        if outcome is Outcome.DONE and uid in self.pods:
            self.holdings.bound(uid)
            self._settle(held.node, freed=False)
        elif outcome is Outcome.DONE:
            # kube-scheduler's watch is ahead of ours. Should the pod be gone before ours shows it, time ends this.
            self.holdings.doubt(held, now + UNSEEN_SECONDS)
        elif outcome is Outcome.FAILED and not held.doubted:
            self.release(uid)
        else:
            self.holdings.doubt(held, now + DOUBT_SECONDS)

    def release(self, uid: str) -> None:
        """A pod that is not bound holds nothing any more."""
        self.holdings.release(uid)
        self.population.drop(uid)
        self.freed = True

    def expire(self, now: float) -> tuple[Held, ...]:
        """End reservations and doubts whose time is over."""
        over = self.holdings.expire(now)
        for held in over:
            self.population.drop(held.placement.pod_uid)
        self.freed = self.freed or bool(over)
        return over

    def lost_ground(self, held: Held) -> str:
        """Why a reservation cannot be kept any more: somebody was found on its devices, or they broke; or its node
        has no tickets for it, so that the kubelet would fail the pod.
        """
        why = self.population.overdrawn(held.placement.pod_uid)
        if why:
            return f"node {held.node}: {why}"
        fleet, usage = self.fleet, self.view().usage
        for charge in held.placement.charges:
            row = fleet.device_row.get(charge.uuid)
            if row is None or not fleet.healthy[row] or fleet.cordoned[row]:
                return f"device {charge.uuid} on node {held.node} is not usable any more"
            if _overbooked(fleet, usage, row, charge):
                return f"device {charge.uuid} on node {held.node} was taken in the meantime"
        return ""

    # what waits

    def overdue_strays(self, before: float) -> Iterable[PodFacts]:
        """Pods without a request that have waited since before then, each once."""
        for uid, (facts, seen) in list(self.strays.items()):
            if seen <= before:
                self.strays[uid] = (facts, float("inf"))
                yield facts

    def take_notices(self) -> list[Notice]:
        """The notices since the last call."""
        taken, self.notices = self.notices, []
        return taken


def _same_again(held: Held, names: Sequence[str]) -> Verdict:
    """A pod that may be bound, or is: never a second placement. The same one may be tried again."""
    if held.phase is Phase.BOUND:
        return Unclear(f"the pod is bound to node {held.node} already")
    if held.node in names:
        return Chosen(held.node)
    return Unclear(f"it is not known yet whether the pod was bound to node {held.node}")


def _overbooked(fleet: Fleet, usage: Usage, row: int, charge: Charge) -> bool:
    """Whether more is booked on a device than it has, or others are beside an exclusive holder."""
    return bool(
        usage.memory[row] > fleet.memory[row]
        or usage.compute[row] > fleet.compute[row]
        or usage.slots[row] > fleet.slots[row]
        or (usage.exclusive[row] and (usage.exclusive[row] > 1 or usage.slots[row] > charge.slots))
    )
