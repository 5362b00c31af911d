"""The whole agent against a kubelet of a few lines: what it advertises, answers, publishes, survives."""

import asyncio

import pytest
from grpclib.exceptions import GRPCError

from agent.world import NODE, Rig, a_grant, until
from tessera.runtime.kube.port import GPU_NODES, GPUS
from tessera.wire.kube.cdi import decode_spec


def test_a_container_gets_its_share_and_nothing_else(tmp_path):
    """Row 30: every mount, variable and device that the documentation names is in the answer."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            assert set(rig.kubelet.healthy.values()) == {2048}
            pod = await rig.bind()
            uid = pod.metadata.uid
            answer = await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            digest = rig.parts.node.payload.digest
            region = rig.state / f"containers/{uid}/main/region"
            assert dict(answer.envs) == {"CUDA_VISIBLE_DEVICES": rig.uuids[0], "TESSERA_SHARE": f"{uid}/main"}
            assert [(m.container_path, m.host_path, m.read_only) for m in answer.mounts] == [
                ("/run/tessera/region", str(region), False),
                (f"/run/tessera/lib/{digest}/libtessera.so", str(rig.parts.node.payload.library), True),
                ("/etc/ld.so.preload", str(rig.parts.node.payload.preload), True),
            ]
            assert rig.parts.node.payload.preload.read_text() == f"/run/tessera/lib/{digest}/libtessera.so\n"
            assert [d.name for d in answer.cdi_devices] == [f"tessera.dev/gpu={rig.uuids[0]}"]
            assert not answer.devices
            spec = decode_spec((tmp_path / "cdi/tessera.dev-gpu.json").read_bytes())
            assert [f"{spec.kind}={d.name}" for d in spec.devices] == [f"tessera.dev/gpu={u}" for u in rig.uuids]

    asyncio.run(scenario())


def test_a_refusal_reaches_the_kubelet_with_pod_device_and_remedy(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind(grants={"main": (a_grant("GPU-gone"),)})
            with pytest.raises(GRPCError) as caught:
                await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            assert caught.value.message == (
                "tessera: container main of pod team/p: device GPU-gone is not on node n1; "
                "delete the pod, so that it is placed anew"
            )

    asyncio.run(scenario())


def test_the_inventory_is_published_once_and_then_nothing_is_written(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await until(lambda: rig.parts.publisher.published is not None, "published")
            node = await rig.cluster.get(GPU_NODES, NODE, dict)
            assert [d["uuid"] for d in node["status"]["devices"]] == rig.uuids
            assert node["metadata"]["ownerReferences"][0]["kind"] == "Node"
            gpus = await rig.cluster.list(GPUS, dict)
            assert {g["metadata"]["name"] for g in gpus.items} == {u.lower() for u in rig.uuids}
            await rig.registered()
            before = [c for c in rig.cluster.calls if c.verb not in ("get", "list", "watch")]
            rig.parts.node.look()
            await rig.parts.publisher.publish()
            assert [c for c in rig.cluster.calls if c.verb not in ("get", "list", "watch")] == before

    asyncio.run(scenario())


def writes(rig):
    return [call for call in rig.cluster.calls if call.verb in ("create", "replace", "patch", "delete")]


def test_the_same_inventory_after_a_restart_costs_no_write(tmp_path):
    """Row 68: after a restart of the agent or the machine the inventory is what it was."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await until(lambda: rig.parts.publisher.published is not None, "published")
            node, before = await rig.cluster.get(GPU_NODES, NODE, dict), len(writes(rig))
            await rig.stop_agent()
            await rig.start_agent()
            await until(lambda: rig.parts.publisher.published is not None, "published again")
            assert await rig.cluster.get(GPU_NODES, NODE, dict) == node
            assert len(writes(rig)) == before

    asyncio.run(scenario())


def test_an_object_that_somebody_deleted_or_changed_is_put_right_at_once(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await until(lambda: rig.parts.publisher.published is not None, "published")
            status = (await rig.cluster.get(GPU_NODES, NODE, dict))["status"]
            await rig.cluster.delete(GPU_NODES, NODE)
            await until(lambda: rig.node_status() == status, "it is back")
            found = await rig.cluster.get(GPU_NODES, NODE, dict)
            await rig.cluster.replace(GPU_NODES, NODE, {**found, "status": {}}, dict, subresource="status")
            await until(lambda: rig.node_status() == status, "it is true again")

    asyncio.run(scenario())
