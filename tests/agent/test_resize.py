"""Another share for a container that runs: region, record and what its processes get, by what its pod says."""

import asyncio
import os

import msgspec
import pytest

from agent.test_restarts import tenant_of
from agent.world import CONTAINER_ID, Rig, a_container_grant, an_allocation, until
from tessera.agent.layout import Layout
from tessera.agent.resize import regrant
from tessera.agent.store import ShareStore, difference, read_region
from tessera.core.placement import Grant
from tessera.core.share import Share
from tessera.core.units import MiB, Milli
from tessera.runtime.kube.port import EVENTS, PODS
from tessera.wire.kube.names import ALLOCATION


def a_share(uuid, memory, milli):
    share = Share(MiB(memory), MiB(memory), Milli(100), Milli(milli))
    return Grant(uuid, 0, "NVIDIA A100-SXM4-80GB", share)


async def granted(rig, pod, memory, milli):
    """The scheduler writes another allocation."""
    text = an_allocation(pod.metadata.uid, {"main": (a_share(rig.uuids[0], memory, milli),)}, {"main": 1})
    patch = {"metadata": {"annotations": {ALLOCATION: text}}}
    await rig.cluster.patch(PODS, pod.metadata.name, patch, dict, namespace="team")


def in_force(share):
    """MiB and milli that the region enforces."""
    device = read_region(share.region).devices[0]
    return device.memory_limit >> 20, device.compute_limit_milli


def recorded(rig, pod):
    device = rig.parts.store.find(pod.metadata.uid, "main").grant.devices[0]
    return device.memory_limit_mib, device.compute_limit_milli


async def running(rig):
    """A pod with 1 GiB and 50 %, whose container passed the gate."""
    await rig.registered()
    pod = await rig.bind("p", {"main": 1})
    await rig.kubelet.allocate("tessera.dev/ticket-0", 2)
    rig.parts.store.admit(rig.parts.store.find(pod.metadata.uid, "main"), CONTAINER_ID)
    return pod, rig.parts.store.find(pod.metadata.uid, "main")


async def told(rig):
    """The notes of what the pod was told of."""
    found = (await rig.cluster.list(EVENTS, dict)).items
    return [event["note"] for event in found if event["reason"] == "ResizeRefused"]


def test_another_allocation_is_in_force_at_once_for_a_process_that_runs(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            pod, share = await running(rig)
            inode = share.region.stat().st_ino
            await granted(rig, pod, 2048, 250)
            await until(lambda: in_force(share) == (2048, 250), "it is in force", seconds=10)
            assert recorded(rig, pod) == (2048, 250)
            assert difference(read_region(share.region), rig.parts.store.find(share.grant.uid, "main").grant) == ""
            assert share.region.stat().st_ino == inode, "processes have it mapped"
            with tenant_of(rig, share, "hold", "1536", "0") as tenant:
                tenant.stdout.read()
            assert tenant.returncode == 0
            assert read_region(share.region).devices[0].refused == 0
            assert rig.parts.resizer.resized == 1

    asyncio.run(scenario())


def test_a_shrink_below_what_is_in_use_waits_until_it_is_free_and_is_told_once(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            pod, share = await running(rig)
            tenant = tenant_of(rig, share, "hold", "512")
            try:
                await until(
                    lambda: read_region(share.region).devices[0].used_bytes == 512 << 20, "512 MiB are held"
                )
                await granted(rig, pod, 256, 250)
                note = "512 MiB of " + rig.uuids[0] + " are in use, and 256 MiB would be allowed"
                while not await told(rig):
                    await asyncio.sleep(0.01)
                for _ in range(3):
                    rig.parts.resizer.look()
                assert in_force(share) == (1024, 500)
                assert recorded(rig, pod) == (1024, 500)
            finally:
                tenant.kill()
                tenant.wait()
                tenant.stdout.close()
            status = {"name": "main", "containerID": f"containerd://{CONTAINER_ID}", "state": {"terminated": {}}}
            await rig.report("p", status)
            await until(lambda: in_force(share) == (256, 250), "nobody uses it any more", seconds=10)
            (said,) = await told(rig)
            assert note in said

    asyncio.run(scenario())


def test_what_an_agent_left_half_done_is_done_by_the_next(tmp_path):
    """It ended after the record was written, or before: the pod says what counts."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            pod, share = await running(rig)
            await rig.stop_agent()
            await granted(rig, pod, 2048, 250)
            await rig.start_agent()
            await until(lambda: in_force(share) == (2048, 250) == recorded(rig, pod), "the pod's word is in force")
            await rig.stop_agent()
            rig.parts.store.rewrite(msgspec.structs.replace(share.grant))  # as before, beside a newer region
            await rig.start_agent()
            await until(lambda: in_force(share) == (2048, 250) == recorded(rig, pod), "record and region agree")

    asyncio.run(scenario())


def test_other_devices_are_no_resize(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            pod, share = await running(rig)
            text = an_allocation(pod.metadata.uid, {"main": (a_share(rig.uuids[1], 2048, 250),)}, {"main": 1})
            patch = {"metadata": {"annotations": {ALLOCATION: text}}}
            await rig.cluster.patch(PODS, "p", patch, dict, namespace="team")
            next_pod = await rig.bind("q", {"main": 2})
            await until(lambda: rig.parts.pods.by_uid(next_pod.metadata.uid), "the watch has gone past it")
            assert in_force(share) == (1024, 500)

    asyncio.run(scenario())


def test_a_container_that_started_keeps_its_region_when_the_kubelet_asks_again_meanwhile(tmp_path):
    store = ShareStore(Layout(tmp_path / "tessera/agent"))
    share = store.put(a_container_grant(memory=1024))
    store.admit(share, "c1")
    again = store.put(a_container_grant(memory=512))
    assert (again.grant, again.region.stat().st_ino) == (share.grant, share.region.stat().st_ino)


@pytest.mark.parametrize("memory", [512, 2048])
def test_record_and_region_agree_whatever_is_changed(tmp_path, memory):
    store = ShareStore(Layout(tmp_path / "tessera/agent"))
    share = store.put(a_container_grant(memory=1024))
    grant = a_container_grant(memory=memory)
    assert regrant(store, share, grant, is_over=False) == ()
    found = store.find("uid-p", "main")
    assert found.grant == grant
    assert difference(read_region(found.region), grant) == ""


def test_a_region_that_is_gone_changes_nothing(tmp_path):
    store = ShareStore(Layout(tmp_path / "tessera/agent"))
    share = store.put(a_container_grant(memory=1024))
    os.truncate(share.region, 0)
    with pytest.raises(Exception, match="not as long as its layout says"):
        regrant(store, share, a_container_grant(memory=512), is_over=False)
    assert store.find("uid-p", "main").grant == share.grant
