"""What is published is what is true now, written once, whatever the API server does meanwhile."""

import asyncio
import random
from dataclasses import replace

import msgspec
import pytest

from agent.world import NODE, until
from builders import a_device
from tessera.agent.inventory import HOOK, Tier, gpu_name, node_status, vanished
from tessera.agent.publish import Create, Published, Publisher, Remove, Write, plan
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import GPU_NODES, GPUS, NODES, ApiError
from tessera.wire.kube.inventory import device_of
from tessera.wire.kube.objects import Meta

DEVICES = (a_device("GPU-B", index=1, vendor="NVIDIA"), a_device("GPU-A", index=0, vendor="NVIDIA"))


def a_status(devices=DEVICES, unfit=None, foreign=None, tier=HOOK):
    return node_status(devices, unfit or {}, foreign or {}, tier, driver="580", agent="1")


def test_devices_are_sorted_so_that_equal_facts_are_equal():
    assert a_status(DEVICES) == a_status(DEVICES[::-1])
    assert [d.uuid for d in a_status().devices] == ["GPU-A", "GPU-B"]


def test_an_unfit_device_says_why_and_a_foreign_one_whose_it_is():
    status = a_status(unfit={"GPU-A": "XID 79"}, foreign={"GPU-B": "team/other"})
    first, second = status.devices
    assert (first.healthy, first.reason, second.foreign) == (False, "XID 79", "team/other")
    assert device_of(second).cordoned


def test_a_node_without_a_gate_says_so():
    status = a_status(tier=Tier("unverified", gate=False, problem="containerd 1.6 has no CDI"))
    assert (status.isolation, status.gate, status.message) == ("unverified", False, "containerd 1.6 has no CDI")


def test_a_device_that_cannot_be_read_any_more_stays_and_is_not_healthy():
    lost = vanished(DEVICES, DEVICES[:1], "GPU is lost")
    assert {uuid: (d.healthy, why) for uuid, (d, why) in lost.items()} == {"GPU-A": (False, "GPU is lost")}
    assert vanished(DEVICES, DEVICES, "") == {}


def observed(name, status=None, uid="u1", version="5"):
    return Published(Meta(name=name, uid=uid, resource_version=version), status)


def test_a_plan_makes_what_is_missing():
    assert plan(NODE, a_status(), None, {}) == (
        Create(GPU_NODES, NODE),
        Create(GPUS, "gpu-a"),
        Create(GPUS, "gpu-b"),
    )


def test_a_plan_removes_devices_that_are_gone_by_the_uid_that_was_seen():
    steps = plan(NODE, a_status(()), observed(NODE), {"gpu-x": observed("gpu-x", uid="u9")})
    assert steps[-1] == Remove(GPUS, "gpu-x", "u9")


def test_a_stray_device_is_all_there_is_to_do():
    status = a_status(())
    there = observed(NODE, msgspec.to_builtins(status))
    assert plan(NODE, status, there, {}) == ()
    assert plan(NODE, status, there, {"gpu-x": observed("gpu-x", uid="u9")}) == (Remove(GPUS, "gpu-x", "u9"),)


@pytest.mark.parametrize("status", [None, {}, {"devices": "none"}, {"devices": [], "isolation": "hook"}])
def test_a_plan_writes_over_whatever_is_not_true(status):
    (step, *_) = plan(NODE, a_status(), observed(NODE, status), {})
    assert step == Write(GPU_NODES, NODE, "5", a_status())


class World:
    """A publisher before an API server in memory."""

    def __init__(self):
        self.cluster = MemoryCluster()
        self.status = a_status()
        self.clock = ManualClock()
        self.publisher = Publisher(self.cluster, NODE, lambda: self.status, self.clock, random.Random(1))

    async def devices(self):
        return (await self.cluster.get(GPU_NODES, NODE, dict))["status"].get("devices", [])

    async def gpus(self):
        return sorted(gpu["metadata"]["name"] for gpu in (await self.cluster.list(GPUS, dict)).items)

    def writes(self):
        return [call for call in self.cluster.calls if call.verb in ("create", "replace", "patch", "delete")]


def test_objects_are_made_owned_by_the_node_and_then_left_alone():
    async def scenario():
        world = World()
        node = await world.cluster.create(NODES, {"metadata": {"name": NODE}}, dict)
        await world.publisher.publish()
        (owner,) = (await world.cluster.get(GPU_NODES, NODE, dict))["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
        assert await world.gpus() == ["gpu-a", "gpu-b"]
        before = len(world.writes())
        assert before == 7  # a node of the test's, three objects, three statuses
        for _ in range(10):
            await world.publisher.publish()
        assert len(world.writes()) == before
        assert world.publisher.published == world.status

    asyncio.run(scenario())


def test_a_change_costs_a_write_for_the_node_and_one_for_the_device():
    async def scenario():
        world = World()
        await world.publisher.publish()
        before = len(world.writes())
        world.status = a_status(unfit={"GPU-A": "XID 79"})
        await world.publisher.publish()
        assert [(c.verb, c.kind, c.name) for c in world.writes()[before:]] == [
            ("replace", GPU_NODES, NODE),
            ("replace", GPUS, "gpu-a"),
        ]

    asyncio.run(scenario())


def test_a_card_that_was_replaced_leaves_no_object_behind():
    async def scenario():
        world = World()
        await world.publisher.publish()
        world.status = a_status((replace(DEVICES[0], uuid="GPU-NEW"), DEVICES[1]))
        await world.publisher.publish()
        assert await world.gpus() == ["gpu-a", "gpu-new"]

    asyncio.run(scenario())


def test_a_card_from_another_node_becomes_ours():
    async def scenario():
        world = World()
        other = {"metadata": {"name": gpu_name("GPU-A"), "labels": {"tessera.dev/node": "n9"}}}
        await world.cluster.create(GPUS, other, dict)
        await world.publisher.publish()
        gpu = await world.cluster.get(GPUS, "gpu-a", dict)
        assert gpu["metadata"]["labels"]["tessera.dev/node"] == NODE
        assert gpu["status"]["node"] == NODE

    asyncio.run(scenario())


def test_a_conflict_is_looked_at_again_and_what_is_true_wins():
    async def scenario():
        world = World()
        await world.publisher.publish()
        world.cluster.fail(Fault("replace", GPU_NODES, error=ApiError(409, "Conflict", "stale"), times=2))
        world.status = a_status(unfit={"GPU-A": "bad"})
        await world.publisher.publish()
        assert (await world.devices())[0]["healthy"] is False

    asyncio.run(scenario())


def test_after_an_outage_what_is_true_then_is_published():
    """HAMi stores what it wanted to write before it writes it: a write that fails is never repeated."""

    async def scenario():
        world = World()
        world.cluster.away = True
        running = asyncio.create_task(world.publisher.run())
        await settle()
        await world.clock.advance(60)
        world.status = a_status(unfit={"GPU-A": "old"})
        world.publisher.wake()
        await world.clock.advance(60)
        world.status = a_status(unfit={"GPU-A": "new"})
        world.cluster.away = False
        await world.clock.advance(60)
        assert [d.get("reason") for d in await world.devices()] == ["new", None]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_what_somebody_deleted_comes_back():
    async def scenario():
        world = World()
        running = asyncio.create_task(world.publisher.run())
        await world.clock.advance(1)
        await world.cluster.delete(GPU_NODES, NODE)
        world.publisher.wake()
        await world.clock.advance(1)
        assert len(await world.devices()) == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_node_that_only_looked_at_itself_asks_the_api_server_nothing():
    """A thousand nodes look every 10 s each: what did not change must not cost a call."""

    async def scenario():
        world = World()
        publishing = asyncio.create_task(world.publisher.run())
        await until(lambda: world.publisher.published is not None, "published")
        before = len(world.cluster.calls)
        for _ in range(20):
            world.publisher.changed()
            await asyncio.sleep(0)
        assert len(world.cluster.calls) == before
        world.status = a_status(unfit={"GPU-A": "XID 79"})
        world.publisher.changed()
        await until(lambda: world.publisher.published == world.status, "published again")
        publishing.cancel()

    asyncio.run(scenario())


def test_nothing_is_published_before_it_is_known():
    async def scenario():
        world = World()
        world.status = None
        await world.publisher.publish()
        assert world.writes() == []

    asyncio.run(scenario())
