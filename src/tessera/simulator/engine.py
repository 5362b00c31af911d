"""One run: a stream of pods through the allocator, on a virtual clock.

At every moment, in this order: pods whose time is over leave, nodes that were lost come back or are lost, the next
pod arrives and is placed or rejected. A rejected pod is gone; nobody waits (a loss system, as the reference
experiments are). Placing is production's: :class:`tessera.allocator.index.Index` decides, the ledger books.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from tessera.allocator.drain import asks_whole, plan_drain
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger, Overcommitted, Release
from tessera.allocator.look import Looker
from tessera.allocator.moves import Drain, Reach, Tenant, Terms
from tessera.allocator.place import place
from tessera.core.device import Node
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.placement import Placed, Placement
from tessera.core.request import Pod, Request
from tessera.policy.outlook import Outlook, protecting
from tessera.policy.rank import POLICIES
from tessera.simulator.failures import Failure
from tessera.simulator.sampling import Sampler
from tessera.simulator.stream import Stream
from tessera.simulator.tally import Tally
from tessera.simulator.trace import Trace

NO_DEVICES: Final = Request(())
"""What a pod of CPU alone asks: the same road for every pod."""

_DRAWS: Final = 1 << 32
_PROTECT_EVERY: Final = 100
"""Arrivals after which the prices of models are made again, from what is left of each."""

_TICK: Final = 256


@dataclass(frozen=True, slots=True)
class Rules:
    """How pods are placed: a policy's name, and what may be done beside it."""

    policy: str
    seed: int = 0
    sample: int | None = None
    drain: int = 0


@dataclass(slots=True)
class Record:
    """What happened: a line for each arrival, and counts. ``nodes`` is -1 where the pod was rejected.

    ``used`` is what was in use of the devices after each arrival, in milli; ``held`` the integral of it over the
    time since ``since`` (only where there are times).
    """

    nodes: list[int] = field(default_factory=list)
    devices: list[tuple[int, ...]] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    departed: int = 0
    lost: int = 0
    homeless: int = 0
    failures: int = 0
    looks: int = 0
    held: float = 0.0
    span: float = 0.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with: the cluster, what comes to it, what is expected to, and the compiled looker."""

    fleet: Fleet
    trace: Trace
    stream: Stream
    outlook: Outlook
    looker: Looker | None = None
    failures: Sequence[Failure] = ()


class Engine:
    """A run. ``tick`` is called with the number of arrivals that are through, now and then."""

    def __init__(self, parts: Parts, rules: Rules, tick: Callable[[int], None] | None = None) -> None:
        self._parts, self._rules, self._tick = parts, rules, tick
        self.ledger = Ledger(parts.fleet)
        self._index = self._new_index(parts.outlook)
        self._sampler = Sampler(rules.sample) if rules.sample else None
        self._tenants: dict[int, dict[str, Tenant]] = {}
        self._leaving: list[tuple[float, int]] = []
        self._down: dict[str, Node] = {}
        self.tally = Tally.nothing(parts.fleet)
        self.record = Record()
        self._placements: dict[int, Placement] = {}
        self._now = 0.0

    def run(self) -> Record:
        """Everything that arrives, to the end."""
        stream, record = self._parts.stream, self.record
        rows = stream.pods.tolist()
        times = None if stream.times is None else stream.times.tolist()
        since = len(rows) // 3
        failures = iter(self._parts.failures)
        upcoming = next(failures, None)
        for i, row in enumerate(rows):
            if times is not None:
                while upcoming is not None and upcoming.time <= times[i]:
                    self._pass_to(upcoming.time, i, i > since)
                    self._fail_or_mend(upcoming, i)
                    upcoming = next(failures, None)
                self._pass_to(times[i], i, i > since)
            self._arrive(i, row)
            record.used.append(self.tally.used[0])
            if self._tick is not None and i % _TICK == 0:
                self._tick(i)
        record.looks = self._sampler.looks if self._sampler else 0
        return record

    def _pass_to(self, time: float, arrivals: int, counts: bool) -> None:
        """Let time pass; whoever's time is over by then leaves."""
        while self._leaving and self._leaving[0][0] <= time:
            moment, uid = heappop(self._leaving)
            self._hold_until(moment, counts)
            if uid in self._placements:
                self._release(uid, arrivals)
                self.record.departed += 1
        self._hold_until(time, counts)

    def _hold_until(self, time: float, counts: bool) -> None:
        if counts:
            self.record.held += self.tally.used[0] * (time - self._now)
            self.record.span += time - self._now
        self._now = time

    def _arrive(self, i: int, row: int) -> None:
        parts, record = self._parts, self.record
        shape = parts.trace.shapes[parts.trace.shape_of[row]]
        pod = shape.named(parts.trace.names[row], str(i))
        if pod.request is None:
            pod = replace(pod, request=NO_DEVICES)
        placement = self._placed(i, pod)
        if placement is None:
            record.nodes.append(-1)
            record.devices.append(())
            return
        fleet = parts.fleet
        node = fleet.node_row[placement.node]
        first = int(fleet.first[node])
        record.nodes.append(node)
        record.devices.append(tuple(fleet.device_row[charge.uuid] - first for charge in placement.charges))
        if parts.stream.stays is not None:
            heappush(self._leaving, (self._now + float(parts.stream.stays[i]), i))

    def _placed(self, i: int, pod: Pod) -> Placement | None:
        """Where the pod was placed, after a drain where that is allowed and helps; booked."""
        if self._rules.policy == "random":
            self._index.outlook = replace(self._index.outlook, generation=self._rules.seed * _DRAWS + i)
        elif i % _PROTECT_EVERY == 0:
            now = self._index.outlook
            self._index.outlook = protecting(now, self.ledger.view(), now.generation + 1)
        found = self._decided(pod)
        if found is not None:
            self._book(i, found.placement, pod, i)
            return found.placement
        return self._drained(i, pod) if self._rules.drain else None

    def _decided(self, pod: Pod) -> Placed | None:
        if self._sampler is None:
            return self._index.place(pod)
        samples = self._sampler.samples(self.ledger.view(), pod)
        return next((found for names in samples if (found := self._index.place(pod, names)) is not None), None)

    def _drained(self, i: int, pod: Pod) -> Placement | None:
        """Move others so that the pod fits, if that can be done."""
        if not asks_whole(pod):
            return None
        fleet = self._parts.fleet
        tenants = {fleet.node_names[row]: list(held.values()) for row, held in self._tenants.items()}
        terms = Terms(self._rules.drain, Reach.EQUAL)
        plan = plan_drain(self.ledger.view(), pod, tenants, self._new_place, terms)
        if not isinstance(plan, Drain):
            return None
        for move in plan.moves:
            uid = int(move.source.pod_uid)
            moved = self._tenants[fleet.node_row[move.source.node]][move.source.pod_uid].pod
            self._release(uid, i)
            self._book(uid, move.target, moved, i)
        self._book(i, plan.placement, pod, i)
        self.record.drained.append(i)
        self.record.moves.append(len(plan.moves))
        return plan.placement

    def _new_place(self, snapshot: Snapshot, pod: Pod) -> Placed | None:
        return place(snapshot, pod, POLICIES[self._rules.policy], self._index.outlook)

    def _book(self, uid: int, placement: Placement, pod: Pod, arrivals: int) -> None:
        effects = self.ledger.apply(Adopt(placement))
        if any(isinstance(effect, Overcommitted) for effect in effects):
            raise AssertionError(f"the allocator over-committed {placement.node} with pod {pod.key}")
        self._placements[uid] = placement
        self.tally.book(placement, 1, arrivals)
        if self._rules.drain:
            row = self._parts.fleet.node_row[placement.node]
            self._tenants.setdefault(row, {})[placement.pod_uid] = Tenant(pod, placement)

    def _release(self, uid: int, arrivals: int) -> None:
        placement = self._placements.pop(uid)
        self.ledger.apply(Release(placement.pod_uid))
        self.tally.book(placement, -1, arrivals)
        if self._rules.drain:
            del self._tenants[self._parts.fleet.node_row[placement.node]][placement.pod_uid]

    def _fail_or_mend(self, failure: Failure, arrivals: int) -> None:
        """A node is lost, and what is on it is placed anew as far as there is room; or one comes back."""
        fleet = self.ledger.fleet
        name = self._parts.fleet.node_names[failure.node]
        if failure.mended:
            node = self._down.pop(name)
        else:
            self._down[name] = fleet.nodes[failure.node]
            node = replace(self._down[name], cordoned=True)
            self.record.failures += 1
        gone = [uid for uid, placement in self._placements.items() if placement.node == name]
        for uid in gone:
            self._release(uid, arrivals)
        self.ledger = self.ledger.onto(fleet.replaced({name: node}))
        self._index = self._new_index(self._index.outlook)
        for uid in gone:
            self._settle_again(uid, arrivals)

    def _settle_again(self, uid: int, arrivals: int) -> None:
        parts = self._parts
        row = int(parts.stream.pods[uid])
        pod = parts.trace.shapes[parts.trace.shape_of[row]].named(parts.trace.names[row], str(uid))
        if pod.request is None:
            pod = replace(pod, request=NO_DEVICES)
        self.record.lost += 1
        found = self._decided(pod)
        if found is None:
            self.record.homeless += 1
        else:
            self._book(uid, found.placement, pod, arrivals)

    def _new_index(self, outlook: Outlook) -> Index:
        return Index(self.ledger, POLICIES[self._rules.policy], outlook, self._parts.looker)
