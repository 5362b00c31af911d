"""The agent comes and goes; what it handed out stays."""

import asyncio
import os
import subprocess

import pytest
from grpclib.exceptions import GRPCError

from agent.world import CONTAINER_ID, Rig, a_grant, until
from tessera.agent.store import read_region
from tessera.runtime.kube.port import GPU_NODES, PODS
from tessera.runtime.native import SIMULATED


def tenant_of(rig, share, *words):
    """A program under the share as in a container, but on this machine: limiter preloaded, region by name."""
    environment = {
        "LD_PRELOAD": str(rig.parts.node.payload.library),
        "TESSERA_REGION": str(share.region),
        "TESSERA_SIM_MACHINE": str(rig.machine.description),
        "LD_LIBRARY_PATH": str(SIMULATED),
        "CUDA_VISIBLE_DEVICES": share.grant.devices[0].uuid,
    }
    return subprocess.Popen([SIMULATED / "tenant", *words], env=environment, stdout=subprocess.PIPE)


def test_a_hundred_restarts_touch_neither_library_nor_region_nor_process(tmp_path):
    """Row 62."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            share = rig.parts.store.find(pod.metadata.uid, "main")
            with tenant_of(rig, share, "hold", "64") as tenant:
                await until(lambda: read_region(share.region).devices[0].used_bytes == 64 << 20, "64 MiB are held")
                files = (share.region, rig.parts.node.payload.library, rig.parts.node.payload.gate)
                inodes = [path.stat().st_ino for path in files]
                for _ in range(100):
                    await rig.stop_agent()
                    await rig.start_agent()
                assert tenant.poll() is None
                assert [path.stat().st_ino for path in files] == inodes
                assert read_region(share.region).devices[0].used_bytes == 64 << 20
                tenant.kill()

    asyncio.run(scenario())


def test_limits_hold_after_the_agent_restarted_between_allocation_and_start(tmp_path):
    """Row 28."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind(grants={"main": (a_grant(rig.uuids[0], 256),)})
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            await rig.stop_agent()
            await rig.start_agent()
            share = rig.parts.store.find(pod.metadata.uid, "main")
            with tenant_of(rig, share, "fill", "64") as tenant:
                said, _ = await asyncio.to_thread(tenant.communicate)
            assert b"reached_mib 256" in said

    asyncio.run(scenario())


def test_allocate_answers_the_same_again_without_touching_the_share(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            first = await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            share = rig.parts.store.find(pod.metadata.uid, "main")
            inode = share.region.stat().st_ino
            await rig.report("p", {"name": "main", "containerID": "containerd://a", "state": {"running": {}}})
            assert await rig.kubelet.allocate("tessera.dev/ticket-1", 6) == first
            assert share.region.stat().st_ino == inode

    asyncio.run(scenario())


def test_a_pod_that_the_watch_has_not_shown_is_found_by_asking(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            rig.parts.informer.handlers.clear()
            await rig.bind()
            answer = await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            assert answer.cdi_devices

    asyncio.run(scenario())


def test_with_the_api_server_away_a_known_pod_is_served_and_an_unknown_one_refused(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            await until(lambda: rig.parts.pods.by_uid(pod.metadata.uid), "the watch shows it")
            rig.cluster.away = True
            assert (await rig.kubelet.allocate("tessera.dev/ticket-1", 6)).cdi_devices
            with pytest.raises(GRPCError, match="which container asks with ticket 0 cannot be known"):
                await rig.kubelet.allocate("tessera.dev/ticket-0", 1)

    asyncio.run(scenario())


def test_a_ticket_that_nobody_asks_with_is_refused_and_says_so(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            with pytest.raises(
                GRPCError, match=r"no container of a pod bound to node n1 asks for 3 of tessera\.dev"
            ):
                await rig.kubelet.allocate("tessera.dev/ticket-0", 3)
            with pytest.raises(GRPCError, match=r"33 of tessera\.dev/ticket-0 is no ticket"):
                await rig.kubelet.allocate("tessera.dev/ticket-0", 33)

    asyncio.run(scenario())


def test_a_runtime_without_cdi_is_refused_by_default_and_offers_nothing(tmp_path):
    async def scenario():
        async with Rig(tmp_path, runtime="containerd://1.6.33") as rig:
            await until(
                lambda: set(rig.kubelet.healthy.values()) == {0} and len(rig.kubelet.healthy) == 16, "none"
            )
            await until(lambda: rig.parts.publisher.published is not None, "published")
            status = (await rig.cluster.get(GPU_NODES, "n1", dict))["status"]
            assert (status["isolation"], "gate" in status) == ("report", False)
            assert "containerd://1.6.33 has no CDI" in status["message"]
            await rig.bind()
            with pytest.raises(GRPCError, match="hands out no shares: containerd"):
                await rig.kubelet.allocate("tessera.dev/ticket-1", 6)

    asyncio.run(scenario())


def test_a_runtime_without_cdi_may_be_accepted_and_is_flagged(tmp_path):
    async def scenario():
        async with Rig(tmp_path, runtime="containerd://1.6.33", options={"without_cdi": True}) as rig:
            await rig.registered()
            await rig.bind()
            answer = await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            assert not answer.cdi_devices
            assert answer.envs["LD_LIBRARY_PATH"] == "/run/tessera/driver"
            assert "/etc/ld.so.preload" in {mount.container_path for mount in answer.mounts}
            await until(lambda: rig.parts.publisher.published is not None, "published")
            assert rig.parts.publisher.published.isolation == "unverified"
            page = rig.parts.metrics.render().decode()
            assert 'tessera_isolation_info{isolation="unverified"} 1' in page

    asyncio.run(scenario())


def test_a_limiter_that_vanishes_from_the_node_is_put_back_before_the_next_share(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind()
            library = rig.parts.node.payload.library
            library.unlink()
            with pytest.raises(GRPCError, match="is missing; the tessera agent installs within 10 s"):
                await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            rig.parts.node.look()
            assert library.exists()
            assert (await rig.kubelet.allocate("tessera.dev/ticket-1", 6)).cdi_devices

    asyncio.run(scenario())


def test_allocate_and_the_node_say_the_same_of_a_damaged_limiter(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind()
            rig.parts.node.payload.library.write_bytes(b"garbage")
            before = await told_by_allocate(rig)
            assert "libtessera.so is damaged; the tessera agent installs" in before
            rig.parts.node.look()
            assert rig.parts.node.status().message == before
            assert await told_by_allocate(rig) == before

    asyncio.run(scenario())


def test_a_preload_file_that_was_changed_hands_out_nothing_until_it_is_put_back(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind()
            rig.parts.node.payload.preload.write_text("/elsewhere.so\n")
            assert "ld.so.preload is damaged; the tessera agent installs" in await told_by_allocate(rig)
            rig.parts.node.look()
            assert (await rig.kubelet.allocate("tessera.dev/ticket-1", 6)).cdi_devices

    asyncio.run(scenario())


async def told_by_allocate(rig):
    """What is wrong and what to do, without the pod and the node that it is told of."""
    with pytest.raises(GRPCError) as refused:
        await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
    return (
        refused.value.message.partition(": ")[2].partition(": ")[2].removeprefix("this node hands out no shares: ")
    )


def test_a_node_without_its_limiter_offers_nothing_and_says_why(tmp_path):
    async def scenario():
        async with Rig(tmp_path, options={"library": tmp_path / "libtessera.so"}) as rig:
            await until(lambda: set(rig.kubelet.healthy.values()) == {0}, "nothing is offered")
            await until(lambda: rig.parts.publisher.published is not None, "published")
            assert "libtessera.so is missing" in rig.parts.publisher.published.message

    asyncio.run(scenario())


def test_metrics_show_every_share_from_the_first_scrape(tmp_path):
    """Rows 54 and 55: one series a container and device, with 0 before anything is used."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind("p", {"a": 1, "b": 2}, {c: (a_grant(rig.uuids[0], 256),) for c in ("a", "b")})
            for quantity in (2, 3):
                await rig.kubelet.allocate("tessera.dev/ticket-0", quantity)
            page = rig.parts.metrics.render().decode().splitlines()
            for container in ("a", "b"):
                labels = f'{{namespace="team",pod="p",container="{container}",device="{rig.uuids[0]}"}}'
                assert f"tessera_container_memory_limit_bytes{labels} {256 << 20}" in page
                assert f"tessera_container_memory_used_bytes{labels} 0" in page
                assert f"tessera_container_compute_limit_ratio{labels} 0.5" in page
            device = f'{{device="{rig.uuids[0]}",index="0",model="NVIDIA A100-SXM4-80GB"}}'
            assert f"tessera_device_memory_total_bytes{device} {81920 << 20}" in page
            assert f"tessera_device_healthy{device} 1.0" in page

    asyncio.run(scenario())


def test_a_region_that_cannot_be_read_hides_no_other_and_is_absent(tmp_path):
    """Rows 56 and 57."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            broken = await rig.bind("broken", {"main": 1})
            await rig.bind("whole", {"main": 2})
            for quantity in (2, 3):
                await rig.kubelet.allocate("tessera.dev/ticket-0", quantity)
            os.truncate(rig.parts.store.find(broken.metadata.uid, "main").region, 100)
            page = rig.parts.metrics.render().decode()
            assert 'container_memory_used_bytes{namespace="team",pod="whole"' in page
            assert 'container_memory_used_bytes{namespace="team",pod="broken"' not in page
            assert 'what="tessera_container_memory_used_bytes",reason="region unreadable"' in page

    asyncio.run(scenario())


def test_what_a_container_or_pod_that_is_over_used_last_is_not_shown(tmp_path):
    """Its region keeps what it used until the next container, or until it is swept: nobody uses that any more."""
    page_of = 'tessera_container_memory_used_bytes{{namespace="team",pod="{}"'

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            for name, number in (("again", 1), ("gone", 2)):
                pod = await rig.bind(name, {"main": number})
                await rig.kubelet.allocate("tessera.dev/ticket-0", number + 1)
                rig.parts.store.admit(rig.parts.store.find(pod.metadata.uid, "main"), CONTAINER_ID)
            status = {"name": "main", "containerID": f"containerd://{CONTAINER_ID}"}

            def used(name: str) -> bool:
                return page_of.format(name) in rig.parts.metrics.render().decode()

            def limited(name: str) -> bool:
                return page_of.format(name).replace("used", "limit") in rig.parts.metrics.render().decode()

            await rig.report("again", {**status, "state": {"running": {}}})
            await until(lambda: used("again") and used("gone"), "both are shown")
            await rig.report("again", {**status, "state": {"waiting": {"reason": "CrashLoopBackOff"}}})
            await until(lambda: not used("again"), "nothing runs")
            assert limited("again"), "it may come back, and will have its limit"
            assert 'what="tessera_container_memory_used_bytes",reason="container ended"' in (
                rig.parts.metrics.render().decode()
            )
            await rig.report("again", {**status, "containerID": "containerd://next", "state": {"waiting": {}}})
            await until(lambda: used("again"), "the next one is another container")
            await rig.cluster.delete(PODS, "gone", namespace="team", grace_seconds=0)
            await until(lambda: not used("gone") and not limited("gone"), "there is no such pod")

    asyncio.run(scenario())
