"""`tessera plan --cluster`: manifests beside what a live cluster holds, or its waiting pods."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cluster_view.world import A100, T4, WHOLE, devices, place, pod_body, put_node, put_pod, request_of
from tessera.allocator.plan import plan
from tessera.cli.plan_cluster import world_of
from tessera.cli.world import World
from tessera.cluster.observe import observe
from tessera.core.fleet import Fleet
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.files import Texts
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import PODS
from tessera.wire.kube.inventory import GPUNodeStatus
from tessera.wire.planfile import Plan, fleet_entry, plan_of

BIG, SMALL = devices("big", A100, A100), devices("small", T4, model="T4")
Build = Callable[[MemoryCluster], Awaitable[object]]


def planned(build: Build, text: str | None = None) -> Plan:
    """The plan of a manifest's text, or of the waiting pods."""

    async def look() -> World:
        client = MemoryCluster()
        await put_node(
            client, "big", GPUNodeStatus(gate=True, devices=BIG), room={"cpu": "8", "memory": "64Gi", "pods": "9"}
        )
        await put_node(client, "small", GPUNodeStatus(gate=True, devices=SMALL), labels={"zone": "b"})
        await build(client)
        return world_of(await observe(client), "test", None if text is None else Texts((("f.yaml", text),), ()))

    world = asyncio.run(look())
    nodes = world.fleet.nodes
    verdicts = plan((p.pod for p in world.manifests.pods), Fleet(nodes), POLICIES[DEFAULT_POLICY], world.held)
    return plan_of(
        DEFAULT_POLICY,
        fleet_entry(world.source, nodes, world.fleet.notes),
        nodes,
        manifests=world.manifests,
        verdicts=verdicts,
        held=world.held,
    )


def manifest(limits: str, name: str = "new", spec: str = "") -> str:
    return (
        f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: n}}, spec: {{{spec}containers: "
        f"[{{name: main, image: x, resources: {{limits: {{{limits}}}}}}}]}}}}"
    )


def outcomes(made: Plan) -> list[tuple[str, str, str | None]]:
    return [(pod.name, pod.outcome.value, pod.node) for pod in made.pods]


async def nothing(client: MemoryCluster) -> None:
    """An idle cluster."""


async def fill(client: MemoryCluster) -> None:
    """10,240 MiB are left on the first device and nothing on the others."""
    await place(client, ("n", "first"), (30_720, 500), "big", BIG[:1], 1)
    await place(client, ("m", "second"), WHOLE, "big", BIG[1:], 2)
    await place(client, ("m", "third"), WHOLE, "small", SMALL, 3)


@pytest.mark.parametrize(
    ("mib", "expected"), [(10_240, ("new", "placed", "big")), (10_241, ("new", "rejected", None))]
)
def test_what_is_held_counts_to_the_mib(mib: int, expected: tuple[str, str, str | None]) -> None:
    made = planned(fill, manifest(f"nvidia.com/gpu: 1, nvidia.com/gpumem: {mib}"))
    assert outcomes(made) == [expected]


def test_levels_begin_at_what_is_held() -> None:
    made = planned(fill, manifest("nvidia.com/gpu: 1, nvidia.com/gpumem: 10000, nvidia.com/gpucores: 10"))
    # 2 x 40,960 + 15,360 in all; 30,720 + 40,960 + 15,360 held.
    level = made.summary.memory_mib
    assert (level.capacity, level.before, level.after) == (97_280, 87_040, 97_040)
    compute = made.summary.compute_milli
    assert (compute.capacity, compute.before, compute.after) == (3000, 2500, 2600)


def test_cpu_of_other_pods_labels_and_cordons_count_too() -> None:
    async def busy(client: MemoryCluster) -> None:
        body = pod_body("web", resources={"cpu": "6"}, scheduler="default-scheduler", nodeName="big")
        await put_pod(client, "x", body)

    half = "tessera.dev/gpu: 1, tessera.dev/memory: 1Gi"
    assert outcomes(planned(busy, manifest(f"{half}, cpu: 2")))
    on_big = "nodeSelector: {kubernetes.io/hostname: big}, "
    assert outcomes(planned(busy, manifest(f"{half}, cpu: 2", spec=on_big))) == [("new", "placed", "big")]
    made = planned(busy, manifest(f"{half}, cpu: 2001m", spec=on_big))
    (reason,) = [r for r in made.pods[0].reasons if r.nodes == ("big",)]
    assert reason.shortfalls[0].text == "too little CPU (asked 2001m, most free 2000m)"
    selecting = planned(nothing, manifest(half, spec="nodeSelector: {zone: b}, "))
    assert outcomes(selecting) == [("new", "placed", "small")]


def test_without_manifests_the_waiting_pods_are_planned_in_the_order_in_which_they_came() -> None:
    async def build(client: MemoryCluster) -> None:
        await fill(client)
        await put_pod(client, "n", pod_body("a", request_of((8192, 100)), 4))
        await put_pod(client, "n", pod_body("b", request_of((8192, 100)), 5, schedulingGates=[{"name": "quota"}]))
        await put_pod(client, "n", pod_body("stray", resources={"nvidia.com/gpu": "1"}))

    made = planned(build)
    assert outcomes(made) == [("a", "placed", "big"), ("b", "rejected", None)]
    assert made.pods[0].object == "Pod/n/a"
    assert "scheduling gates" in made.pods[1].warnings[0]
    assert any(note.startswith("pod n/stray was created before") for note in made.fleet.notes)


def test_a_manifest_that_is_applied_already_is_told() -> None:
    made = planned(fill, manifest("tessera.dev/gpu: 1, tessera.dev/memory: 1Gi", name="first"))
    assert "n/first: on the cluster already, which counts beside what is planned here" in made.fleet.notes


def test_a_daemonset_goes_to_every_node_of_the_cluster() -> None:
    limits = "tessera.dev/gpu: 1, tessera.dev/memory: 1Gi"
    pod = f"{{containers: [{{name: main, image: x, resources: {{limits: {{{limits}}}}}}}]}}"
    text = (
        "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d, namespace: n}, spec: {selector: {}, "
        f"template: {{metadata: {{}}, spec: {pod}}}}}}}"
    )
    assert [(pod.outcome.value, pod.node) for pod in planned(nothing, text).pods] == [
        ("placed", "big"),
        ("placed", "small"),
    ]


def test_the_command_says_which_options_contradict_each_other(tessera) -> None:
    both = tessera("plan", "--cluster", "--fleet", "1xT4")
    assert (both.exit_code, "leave one out" in both.stderr) == (2, True)
    alone = tessera("plan", "-f", "-", "--fleet", "1xT4", "--context", "x")
    assert (alone.exit_code, "are for --cluster" in alone.stderr) == (2, True)


def test_a_cluster_that_is_not_configured_is_an_input_error(tessera, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = tessera("plan", "--cluster")
    assert result.exit_code == 2
    assert "no such file" in result.stderr


def test_pods_that_ended_take_no_cpu() -> None:
    async def ended(client: MemoryCluster) -> None:
        body = pod_body("done", resources={"cpu": "6"}, scheduler="default-scheduler", nodeName="big")
        await put_pod(client, "x", body)
        pod = await client.get(PODS, "done", dict, namespace="x")
        finished = {**pod, "status": {"phase": "Failed"}}
        await client.replace(PODS, "done", finished, dict, namespace="x", subresource="status")

    on_big = "nodeSelector: {kubernetes.io/hostname: big}, "
    made = planned(ended, manifest("tessera.dev/gpu: 1, tessera.dev/memory: 1Gi, cpu: 8", spec=on_big))
    assert outcomes(made) == [("new", "placed", "big")]


def test_who_came_first_is_first_whatever_the_name() -> None:
    async def names() -> list[str]:
        seconds = iter(range(1_000, 2_000))
        client = MemoryCluster(wall=lambda: float(next(seconds)))
        await put_pod(client, "n", pod_body("z", request_of((1024, 100)), 4))
        await put_pod(client, "n", pod_body("a", request_of((1024, 100)), 5))
        return [facts.name for facts in (await observe(client)).waiting()]

    assert asyncio.run(names()) == ["z", "a"]


def test_what_is_held_of_a_device_that_is_gone_is_of_no_level() -> None:
    async def build(client: MemoryCluster) -> None:
        await place(client, ("n", "left"), (1024, 100), "big", devices("gone", A100), 1)

    assert planned(build).summary.memory_mib.before == 0
