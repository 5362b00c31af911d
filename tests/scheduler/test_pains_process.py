"""Rows of the list of users' pains that take the whole process, or more than one: faults at every call, terms that
come and go, thousands of pods that wait. The API server is the one in memory.
"""

import asyncio
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import product

import msgspec
import pytest

from scheduler.test_parts import ALease, Events
from scheduler.test_process import Cluster, World, play
from scheduler.world import GIB, a_kube_pod, a_pod, a_state, bind, exclusively, place, share
from tessera.core.errors import TesseraError
from tessera.policy.rank import POLICIES
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.memory import Fault
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS, ApiError, ConnectionLostError, Kind
from tessera.runtime.metrics import Metrics
from tessera.scheduler.app import Chores, Scheduler
from tessera.scheduler.audit import Audit, drift_of
from tessera.scheduler.extender import Extender
from tessera.scheduler.facts import Facts, PodFacts
from tessera.scheduler.mandate import Mandate
from tessera.scheduler.meters import Meters
from tessera.scheduler.resize import Resizer
from tessera.scheduler.state import State
from tessera.scheduler.teller import REMEMBERED, Teller
from tessera.scheduler.waker import CAPACITIES, Waker
from tessera.wire.kube.inventory import GPUNodeStatus
from tessera.wire.kube.names import ALLOCATION
from tessera.wire.kube.objects import KubePod


async def rebuilt(api: Cluster) -> State:
    """What a scheduler that starts now would hold, by the objects of the API alone."""
    state, facts = State(POLICIES["binpack"]), Facts()
    for node in (await api.list(GPU_NODES, dict)).items:
        state.saw_gpu_node(node["metadata"]["name"], msgspec.convert(node["status"], GPUNodeStatus))
    state.rebuild()
    for pod in (await api.list(PODS, KubePod)).items:
        state.saw_pod(None, facts.of(pod), 0.0)
    return state


def usage_of(state: State) -> dict[str, list[int]]:
    """What is booked of every device."""
    usage = state.view().usage
    return {name: getattr(usage, name).tolist() for name in ("memory", "compute", "slots", "exclusive")}


async def overbooked(api: Cluster) -> list[str]:
    """Devices of 24 GiB that the pods of the API hold more than once over, by their allocations as plain JSON."""
    memory, alone = Counter[str](), Counter[str]()
    users: dict[str, set[str]] = {}
    for pod in (await api.list(PODS, dict)).items:
        text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
        for charge in json.loads(text)["charges"] if text else ():
            memory[charge["uuid"]] += charge["memory"]
            alone[charge["uuid"]] += charge.get("exclusive", False)
            users.setdefault(charge["uuid"], set()).add(pod["metadata"]["name"])
    return [u for u in users if memory[u] > 24 * GIB or (alone[u] and len(users[u]) > 1)]


# rows 10 and 15

ERRORS: dict[str, tuple[TesseraError, bool]] = {
    "forbidden": (ApiError(403, "Forbidden", "no right"), False),
    "gone": (ApiError(404, "NotFound", "not there"), False),
    "conflict": (ApiError(409, "Conflict", "another version"), False),
    "broken": (ApiError(500, "InternalError", "disk"), False),
    "too busy": (ApiError(429, "TooManyRequests", "later"), False),
    "lost before": (ConnectionLostError("reset"), False),
    "lost after": (ConnectionLostError("reset"), True),
}
CALLS: tuple[tuple[str, Kind], ...] = (
    ("create", PODS),
    ("list", PODS),
    ("watch", PODS),
    ("list", GPU_NODES),
    ("watch", GPU_NODES),
    ("list", NODES),
    ("patch", CAPACITIES),
)
FAULTS = [
    (verb, kind, name)
    for (verb, kind), name in product(CALLS, ERRORS)
    # An answer that is lost afterwards is something only for writes; a watch is opened once its answer is there.
    if not (ERRORS[name][1] and verb in ("list", "watch"))
]


async def until_bound(world: World, name: str) -> None:
    """As kube-scheduler: filter and bind, again after a while where that failed."""
    for _ in range(40):
        pod = await world.now(name)
        if pod["spec"].get("nodeName"):
            return
        found = await world.filter(pod, "n0")
        if found.get("NodeNames"):
            await world.bind(pod, "n0")
        await world.pass_time(3)
    raise AssertionError(f"pod {name} was never bound")


async def whole_life(world: World) -> None:
    """One device: a pod takes it, the next waits, the first goes, the next is bound."""
    await until_bound(world, "first")
    assert not (await world.filter(await world.now("second"), "n0")).get("NodeNames")
    await world.api.delete(PODS, "first", namespace="team", grace_seconds=0)
    await world.pass_time(2)
    await until_bound(world, "second")


@pytest.mark.parametrize(
    ("verb", "kind", "name"), FAULTS, ids=lambda v: v.plural if isinstance(v, Kind) else str(v).replace(" ", "-")
)
def test_rows_10_and_15_any_one_call_that_fails_costs_no_capacity(verb: str, kind: Kind, name: str) -> None:
    error, late = ERRORS[name]

    async def scenario(world: World) -> None:
        await world.pod("first", exclusively())
        await world.pod("second", exclusively())
        world.api.fail(fault := Fault(verb, kind, error=error, late=late))
        if verb in ("list", "watch"):
            world.api.compact()
            world.api.expire_streams(kind)
            await world.pass_time(1)
        await whole_life(world)
        assert fault.times == 0, "the fault never happened"
        while world.state.holdings.open():  # a doubt ends by time, at the latest
            await world.pass_time(10)
        assert not drift_of(world.state)
        assert usage_of(world.state) == usage_of(await rebuilt(world.api))
        assert usage_of(world.state)["exclusive"] == [1]

    play(scenario, n0=1)


# row 71


class Replica(World):
    """One of several schedulers of one cluster."""

    def __init__(self, api: Cluster, clock: ManualClock, lease: ALease, holder: str) -> None:
        self.api, self.clock = api, clock
        self.mandate = Mandate(lease, holder)
        self.state = State(POLICIES["binpack"])
        self.metrics = Metrics()
        meters = Meters(self.metrics)
        self.parts = Scheduler(api, self.mandate, self.state, meters, clock, random.Random(1))
        self.events = Events()
        teller = Teller(self.state, self.events, clock)
        self.extender = Extender(self.state, self.parts.facts, self.mandate, api, clock, meters, teller)
        waker = Waker(self.state, api, "default", clock)
        resizer = Resizer(self.state, api, self.events, clock)
        self.chores = Chores(self.parts, teller, waker, resizer, Audit(self.state))
        self.tasks = []


FATES = ("before the Bind", "the Bind is lost on the way", "the answer to the Bind is lost", "after the Bind")


async def one_term(replica: Replica, number: int, fate: str) -> None:
    """A leader places what waits, begins one more pod, and is gone at some stage of that."""
    waiting = [p["metadata"]["name"] for p in await pods(replica.api) if not p["spec"].get("nodeName")]
    for name in waiting:
        await until_bound(replica, name)
    pod = await replica.pod(f"t{number}", share(12 * GIB), ticket=number)
    assert (await replica.filter(pod, "n0")).get("NodeNames") == ["n0"]
    if fate == "before the Bind":
        return
    if fate != "after the Bind":
        late = fate == "the answer to the Bind is lost"
        replica.api.fail(Fault("create", PODS, error=ConnectionLostError("reset"), late=late))
    await replica.bind(pod, "n0")


async def pods(api: Cluster) -> list[dict]:
    return list((await api.list(PODS, dict)).items)


def test_row_71_fifty_leaders_one_after_the_other_lose_no_pod_and_place_none_twice() -> None:
    async def scenario() -> None:
        chance, clock, lease = random.Random(71), ManualClock(), ALease("a_0", 0)
        api = Cluster(wall=clock.wall)
        former: Replica | None = None
        made: set[str] = set()
        for term in range(50):
            lease.holder, lease.count = f"{'ab'[term % 2]}_{term}", term
            leader = Replica(api, clock, lease, "ab"[term % 2])
            await leader.start(**({"n0": 2} if term == 0 else {}))
            if former is not None:
                (stray, *_) = await pods(api)
                assert "not the leader" in (await former.bind(stray, "n0"))["Error"]
                await former.stop()
            for pod in [p for p in await pods(api) if p["spec"].get("nodeName")][:2]:
                await api.delete(PODS, pod["metadata"]["name"], namespace="team", grace_seconds=0)
            await settle()
            await one_term(leader, term, chance.choice(FATES))
            made.add(f"t{term}")
            assert not await overbooked(api)
            assert not drift_of(leader.state)
            former = leader
        assert former is not None
        for pod in await pods(api):
            await until_bound(former, pod["metadata"]["name"])
        assert not await overbooked(api)
        assert usage_of(former.state) == usage_of(await rebuilt(api))
        await former.stop()

    asyncio.run(scenario())


# row 86


def changes(world: World, since: int) -> Counter[str]:
    """Calls of a kind that costs an API server a write."""
    return Counter(
        f"{call.verb} {call.kind.plural}" for call in world.api.calls[since:] if call.verb not in ("watch", "list")
    )


def test_row_86_five_thousand_pods_that_wait_cost_no_call_each() -> None:
    names = [f"n{i}" for i in range(200)]

    async def scenario(world: World) -> None:
        made = []
        for number in range(5000):
            raw = msgspec.to_builtins(a_kube_pod(f"p{number}", share(30 * GIB), ticket=number % 512))
            meta = {key: raw["metadata"][key] for key in ("name", "annotations", "labels")}
            spec = {key: value for key, value in raw["spec"].items() if value}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            made.append(await world.api.create(PODS, body, dict, namespace="team"))
        await settle()
        began = len(world.api.calls)
        for again in (made, made[:500]):
            for pod in again:
                assert (await world.filter(pod, *names))["NodeNames"] == []
            await world.pass_time(10)
        # kube-scheduler tells every one of them why it waits; ours adds what would help, to so many at a time: of
        # the first burst to those whose reasons are kept, then to all that came again, and to nobody twice.
        told = Counter(name for name, reason, _ in world.events.notes if reason == "NotPlaced")
        assert REMEMBERED < 500
        assert (len(told), set(told.values())) == (500, {1})
        assert not changes(world, began)
        began = len(world.api.calls)
        await world.publish("n0", 2)
        await world.pass_time(30)
        # One write wakes all of them, whoever many wait; the other is ours, of the inventory.
        assert sum(changes(world, began).values()) <= 3, changes(world, began)

    play(scenario, **dict.fromkeys(names, 1))


def environments() -> Iterator[list[dict[str, str]]]:
    """None, and a mebibyte of it."""
    yield []
    yield [{"name": f"V{i}", "value": "x" * 1024} for i in range(1024)]


def test_row_88_nothing_of_a_pods_environment_is_kept() -> None:
    kept = []
    for variables in environments():
        raw = msgspec.to_builtins(a_kube_pod("p", share(), ticket=7))
        raw["spec"]["containers"][0]["env"] = variables
        kept.append(msgspec.json.encode(Facts().of(msgspec.json.decode(msgspec.json.encode(raw), type=KubePod))))
    assert kept[0] == kept[1]
    assert len(kept[0]) < 2048


def turnover(state: State, live: list[PodFacts], first: int, count: int) -> None:
    """So many pods of new names come, one of twenty requests each; the oldest of 60 goes for each of them."""
    for serial in range(first, first + count):
        pod = a_pod(f"p{serial}", share(512 * (1 + serial % 20)), ticket=serial % 512)
        state.saw_pod(None, pod, 0.0)
        node = place(state, pod)
        live.append(pod)
        if node is not None:
            live[-1] = msgspec.structs.replace(bind(state, pod, node), admitted=True)
            state.saw_pod(pod, live[-1], 0.0)
        if len(live) > 60:
            state.saw_pod(live.pop(0), None, 0.0)
        state.take_notices()


def test_row_88_what_is_remembered_stays_the_same_at_a_constant_load() -> None:
    state, live = a_state({f"n{i}": 2 for i in range(4)}), list[PodFacts]()
    tracemalloc.start()
    try:
        turnover(state, live, 0, 800)
        before = tracemalloc.get_traced_memory()[0]
        turnover(state, live, 800, 800)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(state.pods) == 60
    assert state.refused, "no pod waits: the load is not what it should be"
    # The ledger notes the numbers of nodes that changed, up to a bound. A pod's name alone would be more.
    assert after - before <= 800 * 60
