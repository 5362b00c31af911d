"""The process on an API server in memory: calls of kube-scheduler come in, bindings go out, terms change."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from scheduler.test_parts import ALease, Events
from scheduler.world import ALLOCATABLE, GIB, a_kube_pod, gpus, share
from tessera.core.request import Claim
from tessera.policy.rank import POLICIES
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS, ApiError, ConnectionLostError
from tessera.runtime.metrics import Metrics
from tessera.scheduler.app import Chores, Scheduler
from tessera.scheduler.audit import Audit, drift_of
from tessera.scheduler.debug import explained, ledger_rows
from tessera.scheduler.extender import Extender
from tessera.scheduler.mandate import Mandate
from tessera.scheduler.meters import Meters, expose_state
from tessera.scheduler.refusals import NO_AGENT
from tessera.scheduler.resize import Resizer
from tessera.scheduler.state import DOUBT_SECONDS, State
from tessera.scheduler.teller import Teller
from tessera.scheduler.waker import Waker
from tessera.wire.kube.names import ALLOCATION


class Cluster(MemoryCluster):
    """The API server in memory, with the short road for bindings."""

    async def post_raw(self, path: str, body: bytes) -> tuple[int, bytes]:
        """A Binding, answered as over HTTP."""
        _, _, _, _, namespace, _, name, subresource = path.split("/")
        try:
            await self.create(PODS, body, dict, namespace=namespace, name=name, subresource=subresource)
        except ApiError as error:
            return error.code, json.dumps({"message": str(error)}).encode()
        return 201, b"{}"


class World:
    """A scheduler and its API server; ``lease`` of ``None`` means no election."""

    def __init__(self, lease: ALease | None = None) -> None:
        self.clock = ManualClock()
        self.api = Cluster(wall=self.clock.wall)
        self.mandate = Mandate(lease, "a")
        self.state = State(POLICIES["binpack"])
        self.metrics = Metrics()
        meters = Meters(self.metrics)
        self.parts = Scheduler(self.api, self.mandate, self.state, meters, self.clock, random.Random(1))
        self.events = Events()
        expose_state(self.metrics, self.state)
        teller = Teller(self.state, self.events, self.clock)
        self.extender = Extender(self.state, self.parts.facts, self.mandate, self.api, self.clock, meters, teller)
        waker = Waker(self.state, self.api, "default", self.clock)
        resizer = Resizer(self.state, self.api, self.events, self.clock)
        self.chores = Chores(self.parts, teller, waker, resizer, Audit(self.state))
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, **nodes: int) -> None:
        for name, count in nodes.items():
            await self.node(name, count)
        loops = (self.parts.gpu_nodes.run, self.parts.nodes.run, self.parts.rebuild_fleet, self.parts.follow_terms)
        self.tasks = [asyncio.create_task(run()) for run in (*loops, self.chores.run)]
        await self.pass_time(2)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError), result

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await settle()

    async def node(self, name: str, count: int) -> None:
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        status = {"allocatable": ALLOCATABLE}
        await self.api.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}, dict
        )
        body = {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
        await self.api.create(GPU_NODES, body, dict)
        await self.publish(name, count)

    async def publish(self, name: str, count: int) -> None:
        status = {"status": msgspec.to_builtins(gpus(name, count))}
        await self.api.patch(GPU_NODES, name, status, dict, subresource="status")

    async def pod(self, name: str, *claims: Claim, **facts: Any) -> dict[str, Any]:
        raw = msgspec.to_builtins(a_kube_pod(name, *claims, **facts))
        meta = {key: raw["metadata"][key] for key in ("name", "namespace", "annotations", "labels")}
        spec = {key: value for key, value in raw["spec"].items() if value}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        made: dict[str, Any] = await self.api.create(PODS, body, dict, namespace="team")
        await settle()
        return made

    async def filter(self, pod: dict[str, Any], *names: str) -> dict[str, Any]:
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
        answer = await self.extender("POST", "/filter", body)
        assert answer.status == 200
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def bind(self, pod: dict[str, Any], node: str) -> dict[str, Any]:
        meta = pod["metadata"]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        answer = await self.extender("POST", "/bind", json.dumps(call).encode())
        await settle()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def now(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.api.get(PODS, name, dict, namespace="team")
        return found


def play(scenario: Callable[[World], Awaitable[None]], lease: ALease | None = None, **nodes: int) -> None:
    """Run a scenario in a world with these nodes."""

    async def whole() -> None:
        world = World(lease)
        await world.start(**nodes)
        try:
            await scenario(world)
        finally:
            await world.stop()

    asyncio.run(whole())


def test_a_pod_is_placed_and_bound_with_its_allocation_in_one_write() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(8 * GIB))
        assert await world.filter(pod, "n0", "n1") == {"NodeNames": ["n0"]}
        assert await world.bind(pod, "n0") == {}
        bound = await world.now("a")
        assert bound["spec"]["nodeName"] == "n0"
        assert json.loads(bound["metadata"]["annotations"][ALLOCATION])["pod"] == pod["metadata"]["uid"]
        assert not world.state.holdings.open()
        assert not drift_of(world.state)
        assert b"tessera_scheduled_total 1.0" in world.metrics.render()

    play(scenario, n0=1, n1=1)


def test_row_15_a_failed_binding_leaves_free_capacity_as_a_rebuild_has_it() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(20 * GIB))
        world.api.fail(Fault("create", PODS, error=ApiError(403, "Forbidden", "no"), times=1))
        await world.filter(pod, "n0")
        assert "403" in (await world.bind(pod, "n0"))["Error"]
        assert len(world.state.holdings) == 0
        assert not drift_of(world.state)
        assert await world.filter(pod, "n0") == {"NodeNames": ["n0"]}
        assert await world.bind(pod, "n0") == {}

    play(scenario, n0=1)


def test_a_binding_whose_answer_is_lost_is_settled_by_the_watch() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(20 * GIB))
        world.api.fail(Fault("create", PODS, error=ConnectionLostError("reset"), times=1, late=True))
        await world.filter(pod, "n0")
        assert "not bound" in (await world.bind(pod, "n0"))["Error"]
        assert (await world.now("a"))["spec"]["nodeName"] == "n0"
        assert not world.state.holdings.open()
        assert "bound to node n0 already" in (await world.filter(pod, "n0"))["Error"]
        assert not drift_of(world.state)

    play(scenario, n0=1)


def test_a_binding_that_was_lost_on_the_way_is_tried_again_on_the_same_node() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(20 * GIB))
        world.api.fail(Fault("create", PODS, error=ConnectionLostError("reset"), times=1))
        await world.filter(pod, "n0")
        await world.bind(pod, "n0")
        assert "not known yet" in (await world.filter(pod, "n1"))["Error"]
        assert await world.filter(pod, "n0", "n1") == {"NodeNames": ["n0"]}
        assert await world.bind(pod, "n0") == {}

    play(scenario, n0=1, n1=1)


def test_a_doubt_that_nothing_settles_ends_and_the_pod_may_go_elsewhere() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(20 * GIB))
        world.api.fail(Fault("create", PODS, error=ConnectionLostError("reset"), times=1))
        await world.filter(pod, "n0")
        await world.bind(pod, "n0")
        await world.pass_time(DOUBT_SECONDS + 1)
        assert await world.filter(pod, "n1") == {"NodeNames": ["n1"]}

    play(scenario, n0=1, n1=1)


def test_without_a_lease_of_ours_nothing_is_decided() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share())
        assert (await world.filter(pod, "n0"))["Error"] == "tessera is not the leader: b_1 holds it"
        assert (await world.bind(pod, "n0"))["Error"] == "tessera is not the leader: b_1 holds it"
        assert len(world.state.holdings) == 0

    play(scenario, ALease("b_1"), n0=1)


def test_row_70_pods_are_read_anew_at_the_start_of_every_term() -> None:
    lease = ALease("a_1", 1)

    async def scenario(world: World) -> None:
        mine = await world.pod("mine", share(20 * GIB))
        assert await world.filter(mine, "n0") == {"NodeNames": ["n0"]}
        lease.holder, lease.count = "b_1", 2
        await world.pass_time(1)
        assert "not the leader" in (await world.filter(mine, "n0"))["Error"]
        world.api.fail(gate := Fault("list", PODS, gate=asyncio.Event()))
        lease.holder, lease.count = "a_1", 3
        await world.pass_time(1)
        assert "not ready" in (await world.filter(mine, "n0"))["Error"]
        assert gate.gate is not None
        gate.gate.set()
        await world.pass_time(1)
        assert await world.filter(mine, "n0") == {"NodeNames": ["n0"]}

    play(scenario, lease, n0=1)


def test_a_reservation_of_an_earlier_term_is_gone_and_a_bound_pod_is_not() -> None:
    lease = ALease("a_1", 1)

    async def scenario(world: World) -> None:
        kept, lost = await world.pod("kept", share(GIB)), await world.pod("lost", share(GIB))
        for pod in (kept, lost):
            await world.filter(pod, "n0")
        await world.bind(kept, "n0")
        lease.count = 2
        await world.pass_time(1)
        assert [uid for uid, _ in world.state.holdings.items()] == [kept["metadata"]["uid"]]
        assert not drift_of(world.state)

    play(scenario, lease, n0=1)


def test_a_gpu_node_that_appears_wakes_the_pods_that_wait() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share())
        refused = await world.filter(pod, "n0", "n1")
        assert refused["FailedAndUnresolvableNodes"]["n1"] == NO_AGENT
        assert refused["NodeNames"] == []
        before = len([call for call in world.api.calls if call.verb == "patch"])
        await world.node("n1", 1)
        await world.pass_time(3)
        patches = [call for call in world.api.calls if call.verb == "patch"][before:]
        # The node for pods that kube-scheduler refused itself, its devices for those that we did.
        assert sorted(call.kind.plural for call in patches) == ["csistoragecapacities", "gpunodes", "pods", "pods"]
        assert await world.filter(pod, "n0", "n1") == {"NodeNames": ["n1"]}

    play(scenario, n0=0)


def test_a_reservation_that_is_never_bound_ends() -> None:
    async def scenario(world: World) -> None:
        await world.filter(await world.pod("a", share(20 * GIB)), "n0")
        assert (await world.filter(await world.pod("b", share(20 * GIB)), "n0"))["NodeNames"] == []
        await world.pass_time(121)
        assert await world.filter(await world.pod("c", share(20 * GIB)), "n0") == {"NodeNames": ["n0"]}

    play(scenario, n0=1)


def test_a_pod_that_ends_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(20 * GIB))
        await world.filter(pod, "n0")
        await world.bind(pod, "n0")
        await world.api.patch(
            PODS, "a", {"status": {"phase": "Succeeded"}}, dict, namespace="team", subresource="status"
        )
        await world.pass_time(1)
        assert len(world.state.holdings) == 0
        assert not world.state.pods

    play(scenario, n0=1)


def test_a_drift_is_mended_and_counted() -> None:
    async def scenario(world: World) -> None:
        world.state.view().usage.slots[0] += 1
        await world.pass_time(5)
        assert not drift_of(world.state)
        assert b"tessera_ledger_repairs_total 1.0" in world.metrics.render()

    play(scenario, n0=1)


def test_strangers_are_told_of() -> None:
    async def scenario(world: World) -> None:
        stranger = a_kube_pod("s", resources={"nvidia.com/gpu": "1"})
        raw = {**msgspec.to_builtins(stranger), "apiVersion": "v1", "kind": "Pod"}
        raw["spec"] = {"containers": raw["spec"]["containers"], "nodeName": "n0"}
        raw["metadata"] = {"name": "s", "namespace": "team"}
        await world.api.create(PODS, raw, dict, namespace="team")
        await world.pass_time(2)
        assert [(name, reason) for name, reason, _ in world.events.notes] == [("s", "NotAdmitted")]
        assert b'tessera_notices_total{reason="NotAdmitted"} 1.0' in world.metrics.render()

    play(scenario, n0=1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/filter", b"", 404),
        ("POST", "/other", b"", 404),
        ("POST", "/filter", b"{", 400),
        ("POST", "/bind", b"{}", 400),
    ],
)
def test_what_is_no_call_is_answered_so(method: str, path: str, body: bytes, status: int) -> None:
    async def scenario(world: World) -> None:
        assert (await world.extender(method, path, body)).status == status

    play(scenario, n0=1)


def test_the_debug_pages_show_who_holds_what_and_why_not() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share(20 * GIB))
        await world.filter(pod, "n0")
        (row,) = ledger_rows(world.state)
        assert (row["memoryMib"], row["pods"]) == ({"total": 24 * GIB, "booked": 20 * GIB}, ["team/a"])
        waiting = await world.pod("b", share(10 * GIB))
        found = explained(world.state, world.extender.refusals, waiting["metadata"]["uid"], 0.0)
        assert found["reasons"] == {"GPU memory: asked 10,240 MiB, largest free 4,096 MiB": 1}
        assert found["change"] == "What would place it now: lower memory to 4,096 MiB."
        held = explained(world.state, world.extender.refusals, pod["metadata"]["uid"], world.clock.monotonic())
        assert (held["held"]["phase"], held["held"]["devices"]) == ("reserved", ["n0-0"])

    play(scenario, n0=1)


def test_allocated_amounts_are_exposed_per_device() -> None:
    async def scenario(world: World) -> None:
        await world.filter(await world.pod("a", share(12 * GIB, 500)), "n0")
        text = world.metrics.render().decode()
        assert (
            f'tessera_device_allocated_memory_bytes{{node="n0",device="n0-0"}} {float(12 * GIB * 2**20)}' in text
        )
        assert 'tessera_device_allocated_compute_ratio{node="n0",device="n0-0"} 0.5' in text
        assert 'tessera_holdings{phase="reserved"} 1.0' in text
        assert 'tessera_attempts_total{outcome="placed"} 1.0' in text

    play(scenario, n0=1)
