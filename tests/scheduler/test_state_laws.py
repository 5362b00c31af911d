"""Laws of the state under any history: pods come, are placed, bound, deleted and made again; answers are lost;
watches lose and double events, and are resynchronised; agents publish other inventories, and offer tickets or not;
strangers appear.
"""

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.world import GIB, a_pod, a_state, bound, exclusively, gpus, share
from tessera.allocator.ledger import Ledger
from tessera.scheduler.audit import drift_of
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.holdings import Phase
from tessera.scheduler.offers import FULL, NOTHING
from tessera.scheduler.state import Bindable, Chosen, Nowhere, Outcome, State

NODES = ("n0", "n1")
SIZES = {"n0": (1, 2), "n1": (0, 1)}
OFFERS = (NOTHING, FULL, (3, *FULL[1:]), (7, *FULL[1:]), (0, *FULL[1:]))
CLAIMS = (share(6 * GIB), share(13 * GIB, 300), share(24 * GIB, 1000), exclusively(), share(6 * GIB, count=2))


class Histories(RuleBasedStateMachine):
    """``server`` is the truth; ``seen`` is what the watch has delivered; ``queue`` what it still has to."""

    @initialize()
    def begin(self) -> None:
        self.state: State = a_state({"n0": 2, "n1": 1})
        self.server: dict[str, PodFacts] = {}
        self.seen: dict[str, PodFacts] = {}
        self.queue: list[tuple[str, PodFacts | None]] = []
        self.flying: list[tuple[Bindable, PodFacts]] = []
        self.bound_to: dict[str, str] = {}
        self.made = 0
        self.offered = dict.fromkeys(NODES, FULL)
        self.every: dict[str, PodFacts] = {}
        self.changed = False
        self.now = 0.0

    def write(self, facts: PodFacts) -> None:
        self.every[facts.uid] = facts
        self.server[facts.key] = facts
        self.queue.append((facts.key, facts))

    def deliver(self, key: str, facts: PodFacts | None) -> None:
        old = self.seen.get(key)
        if facts is None:
            self.seen.pop(key, None)
            if old is not None:
                self.state.saw_pod(old, None, self.now)
            return
        if old is not None and old.uid != facts.uid:
            self.state.saw_pod(old, None, self.now)
            old = None
        self.seen[key] = facts
        self.state.saw_pod(old, facts, self.now)

    # the world

    @rule(name=st.sampled_from("abcd"), claim=st.sampled_from(CLAIMS), ticket=st.integers(0, 3))
    def create(self, name: str, claim: object, ticket: int) -> None:
        if f"team/{name}" not in self.server:
            self.made += 1
            self.write(a_pod(name, claim, uid=f"u{self.made}", ticket=ticket))  # type: ignore[arg-type]

    @rule(name=st.sampled_from("st"), node=st.sampled_from(NODES), count=st.integers(1, 2))
    def create_stranger(self, name: str, node: str, count: int) -> None:
        if f"team/{name}" not in self.server:
            self.made += 1
            resources = {"nvidia.com/gpu": str(count), "tessera.dev/ticket-0": str(count)}
            self.write(a_pod(name, uid=f"u{self.made}", resources=resources, node=node))

    @precondition(lambda self: self.server)
    @rule(data=st.data(), finished=st.booleans())
    def end(self, data: st.DataObject, finished: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.server)))
        facts = self.server.pop(key)
        if finished and facts.node:
            self.queue.append((key, msgspec.structs.replace(facts, finished=True)))
        self.queue.append((key, None))

    @precondition(lambda self: self.server)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        facts = self.server[data.draw(st.sampled_from(sorted(self.server)))]
        if facts.node:
            self.write(msgspec.structs.replace(facts, admitted=True))

    @rule(node=st.sampled_from(NODES), data=st.data(), healthy=st.booleans())
    def publish(self, node: str, data: st.DataObject, healthy: bool) -> None:
        count = data.draw(st.integers(*SIZES[node]))
        self.state.saw_gpu_node(node, gpus(node, count, healthy=healthy) if count else None)
        self.changed = True
        self.state.rebuild()

    @rule(node=st.sampled_from(NODES), offered=st.sampled_from(OFFERS))
    def offer(self, node: str, offered: tuple[int, ...]) -> None:
        more = any(now > before for now, before in zip(offered, self.offered[node], strict=True))
        self.offered[node], self.state.freed = offered, False
        self.state.saw_node(node, {}, offered)
        assert self.state.freed == more

    def taken(self, but: str = "") -> Counter[str]:
        """Devices of the first ticket resource that pods take of each node, bound ones and those that hold."""
        where = {uid: facts.node for uid, facts in self.state.pods.items() if facts.node}
        where.update({uid: held.node for uid, held in self.state.holdings.items()})
        found = Counter[str]()
        for uid, node in where.items():
            if uid != but:
                found[node] += sum(number + 1 for _, number in self.every[uid].tickets)
        return found

    # kube-scheduler

    @precondition(lambda self: self.server)
    @rule(data=st.data(), names=st.lists(st.sampled_from(NODES), unique=True, min_size=1))
    def filter(self, data: st.DataObject, names: list[str]) -> None:
        facts = self.server[data.draw(st.sampled_from(sorted(self.server)))]
        if facts.node or not facts.request:
            return
        held = self.state.holdings.get(facts.uid)
        anew = held is None or held.phase is Phase.RESERVED
        verdict = self.state.filter(facts, names, self.now)
        taken = self.taken(but=facts.uid)
        ((_, number),) = facts.tickets
        fits = {node: taken[node] + number + 1 <= self.offered[node][0] for node in NODES}
        if isinstance(verdict, Chosen):
            assert verdict.node in names
            assert fits[verdict.node] or not anew
        if isinstance(verdict, Nowhere):
            barred = verdict.barred.items()
            short = {node for node, why in barred if "is in use there" not in why}
            known = set(self.state.fleet.node_names)
            assert short & known == {node for node in known if not fits[node]}

    @rule(data=st.data())
    def begin_bind(self, data: st.DataObject) -> None:
        waiting = sorted(
            uid for uid, held in self.state.holdings.open().items() if held.phase is not Phase.BINDING
        )
        if not waiting:
            return
        uid = data.draw(st.sampled_from(waiting))
        held = self.state.holdings.get(uid)
        assert held is not None
        facts = next((f for f in self.server.values() if f.uid == uid), None)
        bindable = self.state.begin_bind(uid, held.placement.pod_key, held.node, self.now)
        if isinstance(bindable, Bindable):
            if held.phase is Phase.BINDING and not held.doubted:
                assert self.taken()[held.node] <= self.offered[held.node][0]
            self.flying.append((bindable, facts if facts is not None else a_pod("gone", uid=uid)))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), executed=st.booleans(), answered=st.booleans())
    def end_bind(self, data: st.DataObject, executed: bool, answered: bool) -> None:
        bindable, facts = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        current = self.server.get(facts.key)
        possible = current is not None and current.uid == facts.uid and not current.node
        if possible and executed:
            assert facts.uid not in self.bound_to, "a pod was placed twice"
            self.bound_to[facts.uid] = bindable.held.node
            self.write(bound(facts, bindable.held.node, bindable.text))
        done = possible and executed
        outcome = Outcome.DOUBTFUL if not answered else Outcome.DONE if done else Outcome.FAILED
        self.state.end_bind(bindable, outcome, self.now)

    # the watch

    @precondition(lambda self: self.queue)
    @rule(times=st.integers(1, 2))
    def next_event(self, times: int) -> None:
        key, facts = self.queue.pop(0)
        for _ in range(times):
            self.deliver(key, facts)

    @precondition(lambda self: len(self.queue) > 1)
    @rule()
    def lose_event(self) -> None:
        """The last event of a key is never lost for good: a resync comes before anything is compared."""
        self.queue.pop(0)

    @rule()
    def resync(self) -> None:
        """A list with its difference, as an informer makes it."""
        self.queue.clear()
        for key in [key for key in self.seen if key not in self.server]:
            self.deliver(key, None)
        for key, facts in self.server.items():
            self.deliver(key, facts)

    @rule(seconds=st.sampled_from([1.0, 130.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.state.expire(self.now)

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.state.restart()
        self.seen.clear()
        self.resync()

    # laws

    @invariant()
    def the_ledger_is_what_the_pods_say(self) -> None:
        assert not drift_of(self.state)

    @invariant()
    def the_ledger_equals_a_rebuild(self) -> None:
        holdings = self.state.holdings
        asides = [p for node in self.state.fleet.node_names for p in holdings.aside(node)]
        placements = [*(held.placement for _, held in holdings.items()), *asides]
        again = Ledger.rebuilt(self.state.fleet, placements).view().usage
        live = self.state.view().usage
        for name in (
            "memory",
            "compute",
            "slots",
            "exclusive",
            "node_memory",
            "node_compute",
            "node_fill",
            "pods",
        ):
            assert getattr(live, name).tolist() == getattr(again, name).tolist(), name

    @invariant()
    def nothing_is_overbooked_on_the_server(self) -> None:
        """While the inventory stays as it is, whatever happens to events and answers."""
        if self.changed:
            return
        memory, compute, users, alone = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for facts in self.server.values():
            if facts.allocation is None:
                continue
            for charge in msgspec.json.decode(facts.allocation)["charges"]:
                uuid = charge["uuid"]
                memory[uuid] += charge["memory"]
                compute[uuid] += charge["compute"]
                users[uuid] += 1
                alone[uuid] += charge.get("exclusive", False)
        for uuid, count in users.items():
            assert memory[uuid] <= 24 * GIB
            assert compute[uuid] <= 1000
            assert not alone[uuid] or count == 1

    @invariant()
    def tickets_are_counted_where_pods_are(self) -> None:
        offers, taken = self.state.population.offers, self.taken()
        assert {node: found[0] for node, found in offers._taken.items()} == {n: c for n, c in taken.items() if c}

    @invariant()
    def tickets_wait_for_pods_that_hold(self) -> None:
        for node, numbers in self.state.holdings.waiting.rows().items():
            for uids in numbers.values():
                for uid in uids:
                    held = self.state.holdings.get(uid)
                    assert held is not None
                    assert held.node == node

    def teardown(self) -> None:
        """In the end, what is held is what a fresh state makes of the server's pods."""
        if not hasattr(self, "state"):
            return
        self.flying.clear()
        self.resync()
        self.now += 1e6
        self.state.expire(self.now)
        fresh = a_state({})
        for node in self.state.fleet.nodes:
            status = self.state.inventory._statuses[node.name]
            fresh.saw_gpu_node(node.name, status)
        for node in [n for n in fresh.fleet.node_names if n not in self.state.fleet.node_row]:
            fresh.saw_gpu_node(node, None)
        fresh.rebuild()
        for facts in self.server.values():
            fresh.saw_pod(None, facts, 0.0)
        bound_now = {uid for uid, held in self.state.holdings.items() if held.phase is Phase.BOUND}
        assert bound_now == {uid for uid, _ in fresh.holdings.items()}
        stuck = [h for h in self.state.holdings.open().values() if h.phase is not Phase.BINDING]
        assert not stuck
        if len(self.state.holdings) == len(bound_now):
            for name in ("memory", "compute", "slots", "exclusive"):
                live, again = getattr(self.state.view().usage, name), getattr(fresh.view().usage, name)
                assert live.tolist() == again.tolist(), name


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
