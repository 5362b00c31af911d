"""Simulated nodes that live: leases kept alive, pods that run and end as the API shows them."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

from cluster.engine.hollow import HollowKubelets
from cluster.engine.nodes import (
    LeaseKeeper,
    SimulatedNode,
    add_nodes,
    create_nodes,
    delete_nodes,
    open_session,
    remove_nodes,
)
from cluster.engine.plane import ControlPlane, Options

DEADLINE = 120


@asynccontextmanager
async def running(job):
    """A task while the body runs; its failure is the body's."""
    task = asyncio.create_task(job)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(question, answer):
    """Ask again and again until the answer comes, or fail."""
    async with asyncio.timeout(DEADLINE):
        while await question() != answer:
            await asyncio.sleep(0.05)


def test_a_pod_on_a_hollow_node_runs_and_is_gone_once_deleted(control_plane, namespace):
    add_nodes(control_plane, [SimulatedNode("hollow")])
    pods = f"/api/v1/namespaces/{namespace}/pods"

    async def live() -> None:
        async with (
            open_session(control_plane) as session,
            running(HollowKubelets(control_plane, {"hollow"}).play()),
        ):

            async def phase() -> str:
                found = json.loads(await session.call("GET", f"{pods}/p", accepts=(404,)))
                return found["status"]["phase"] if found["kind"] == "Pod" else "gone"

            spec = {"nodeName": "hollow", "containers": [{"name": "main", "image": "none"}]}
            await session.call("POST", pods, {"metadata": {"name": "p"}, "spec": spec})
            await until(phase, "Running")
            await session.call("DELETE", f"{pods}/p")
            await until(phase, "gone")

    asyncio.run(live())
    remove_nodes(control_plane, ["hollow"])


def test_a_node_whose_lease_is_kept_stays_ready_and_one_without_is_tainted(engine, tmp_path):
    """The node-lifecycle controller judges by leases: the kept node is the control, the other one the case."""
    options = Options(
        scheduler=False,
        node_lifecycle=True,
        controller_manager_flags=("--node-monitor-grace-period=6s", "--node-monitor-period=1s"),
    )

    async def live(plane: ControlPlane) -> None:
        nodes = [SimulatedNode(name, devices=0) for name in ("kept", "left")]
        async with open_session(plane) as session, running(LeaseKeeper(plane, ["kept"], seconds=1).keep()):
            await create_nodes(plane, nodes)

            async def taints() -> list[bool]:
                found = [json.loads(await session.call("GET", f"/api/v1/nodes/{node.name}")) for node in nodes]
                return [
                    any(t["key"] == "node.kubernetes.io/unreachable" for t in node["spec"].get("taints", ()))
                    for node in found
                ]

            await until(taints, [False, True])
            await delete_nodes(plane, [node.name for node in nodes])

    with ControlPlane(tmp_path, options) as plane:
        asyncio.run(live(plane))
