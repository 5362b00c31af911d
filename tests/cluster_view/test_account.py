"""`kubectl tessera explain`: what is said of a pod in every state that it can be in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click
import pytest

from cluster_view.world import (
    A100,
    T4,
    WHOLE,
    allocation,
    bind,
    devices,
    place,
    pod_body,
    put_node,
    put_pod,
    request_of,
)
from tessera.cli.cluster_lines import account_lines
from tessera.cluster.account import Account, State, account_of
from tessera.cluster.observe import observe
from tessera.cluster.subject import seen_pod
from tessera.core.placement import Charge, Grant, Placement
from tessera.core.request import ModelRule, Request
from tessera.core.share import Share
from tessera.core.ticket import Ticket
from tessera.core.units import MiB, Milli
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import NODES, PODS
from tessera.scheduler.offers import NO_TICKETS
from tessera.wire.kube.allocation import encode_allocation
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus
from tessera.wire.kube.names import ALLOCATION

BIG, SMALL = devices("big", A100, A100), devices("small", T4, model="T4")
Build = Callable[[MemoryCluster], Awaitable[object]]


def account(build: Build, name: str = "it", namespace: str = "n") -> Account:
    async def look() -> Account:
        client = MemoryCluster()
        await put_node(client, "big", GPUNodeStatus(gate=True, devices=BIG, isolation="driver"))
        await put_node(client, "small", GPUNodeStatus(gate=True, devices=SMALL), labels={"zone": "b"})
        await build(client)
        pod, facts = await seen_pod(client, namespace, name)
        return account_of(await observe(client), pod, facts)

    return asyncio.run(look())


def said(found: Account) -> str:
    return "\n".join(map(click.unstyle, account_lines(found)))


async def status(client: MemoryCluster, name: str, **fields: Any) -> None:
    pod = await client.get(PODS, name, dict, namespace="n")
    body = {**pod, "status": {**pod["status"], **fields}}
    await client.replace(PODS, name, body, dict, namespace="n", subresource="status")


async def fill(client: MemoryCluster) -> None:
    """15,360 MiB left on the first device, nothing on the others."""
    await place(client, ("n", "first"), (25_600, 500), "big", BIG[:1], 1)
    await place(client, ("m", "second"), WHOLE, "big", BIG[1:], 2)
    await place(client, ("m", "third"), WHOLE, "small", SMALL, 3)


def test_a_placed_pod_tells_its_devices_limits_ticket_and_neighbours() -> None:
    async def build(client: MemoryCluster) -> None:
        await place(client, ("n", "it"), (8192, 300), "big", BIG[:1], 17)
        await place(client, ("m", "other"), (1024, 100), "big", BIG[:1], 18)

    found = account(build)
    (container,) = found.containers
    (device,) = container.devices
    assert (found.state, found.node, container.name, container.ticket) == (State.PLACED, "big", "main", 17)
    assert (device.uuid, device.memory_limit_mib, device.compute_limit_milli) == ("GPU-big-0", 8192, 300)
    assert [n.holding.pod for n in found.beside] == ["m/other"]
    assert found.could_be_on == ("big", "small")
    text = said(found)
    assert "container main: 1 device with 8,192 MiB and 30% of its compute" in text
    assert "main (ticket 17): device 0 (A100): 8,192 MiB, 30% compute, GPU-big-0" in text
    assert "m/other on device 0: 1,024 MiB, 10% compute" in text


@pytest.mark.parametrize(
    ("node", "devices", "tier", "line"),
    [
        ("big", BIG, "driver", "driver: memory is held by the driver, whatever runs in the container"),
        ("small", SMALL, "", "unknown: the node's agent does not say what holds memory"),
    ],
)
def test_a_placed_pod_tells_what_holds_its_memory(
    node: str, devices: tuple[DeviceFacts, ...], tier: str, line: str
) -> None:
    async def build(client: MemoryCluster) -> None:
        await place(client, ("n", "it"), (8192, 300), node, devices[:1], 17)

    found = account(build)
    assert found.tier == tier
    assert f"tier:       {line}" in said(found)


def test_a_placed_pod_tells_why_it_is_not_elsewhere() -> None:
    async def build(client: MemoryCluster) -> None:
        await place(client, ("n", "it"), (30_720, 300), "big", BIG[:1], 17)
        await place(client, ("m", "other"), WHOLE, "big", BIG[1:], 18)

    found = account(build)
    assert found.could_be_on == ("big",), "what it holds itself is not in its way"
    assert "not on:     node small: 1 device short of memory (asked 30,720 MiB, largest free 15,360 MiB)" in said(
        found
    )


def test_a_waiting_pod_gets_reasons_holders_and_the_smallest_change() -> None:
    async def build(client: MemoryCluster) -> None:
        await fill(client)
        await put_pod(client, "n", pod_body("it", request_of((20_480, 100)), 9))

    found = account(build)
    assert (found.state, found.waiting_helps) == (State.WAITING, True)
    text = said(found)
    assert "waits: none of 2 nodes with devices has room for it now" in text
    assert "1 device short of memory (asked 20,480 MiB, largest free 15,360 MiB)" in text
    assert "1 device held exclusively by another pod" in text
    assert "would fit:  lower memory to 15,360 MiB" in text
    # A T4 has 15,360 MiB and can never take 20,480: who holds it is not in the way.
    assert [(n.node, n.device, n.holding.pod) for n in found.held_by] == [
        ("big", 0, "n/first"),
        ("big", 1, "m/second"),
    ]


def test_waiting_does_not_help_a_pod_that_would_not_fit_an_idle_cluster() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_pod(client, "n", pod_body("it", request_of((50_000, 100)), 9))

    found = account(build)
    assert (found.waiting_helps, found.held_by) == (False, ())
    assert "does not help" in said(found)
    assert "lower memory to 40,960 MiB" in said(found)


def test_a_waiting_pod_with_room_says_where_and_what_its_scheduler_says() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_pod(client, "n", pod_body("it", request_of((1024, 100)), 9))
        condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: had untolerated taint"}
        await status(client, "it", conditions=[condition])

    text = said(account(build))
    assert "there is room for it on node " in text
    assert "tessera-scheduler says: 0/2 nodes: had untolerated taint" in text


def test_cpu_and_node_selectors_count_beside_devices() -> None:
    async def build(client: MemoryCluster) -> None:
        body = pod_body("it", request_of((1024, 100)), 9, nodeSelector={"zone": "c"})
        await put_pod(client, "n", body)

    found = account(build)
    assert "does not carry the labels of the node selector (zone=c)" in said(found)
    assert "if the node selector allowed it" in said(found)


def test_scheduling_gates_are_named_before_anything_else() -> None:
    async def build(client: MemoryCluster) -> None:
        body = pod_body("it", request_of((1024, 100)), 9, schedulingGates=[{"name": "team/quota"}])
        await put_pod(client, "n", body)

    assert "waits: scheduling gates hold it (team/quota)" in said(account(build))


def test_a_pod_that_never_met_the_webhook_is_told_what_to_do() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_pod(client, "n", pod_body("it", resources={"nvidia.com/gpu": "1"}))

    found = account(build)
    assert found.state is State.NOT_ADMITTED
    assert "delete and create it again" in found.says


def test_an_allocation_that_is_not_believed_is_told() -> None:
    async def build(client: MemoryCluster) -> None:
        uid = await put_pod(client, "n", pod_body("it", request_of((1024, 10)), 3))
        text = allocation("stranger", "n/it", "small", (1024, 10), SMALL, 3)
        await bind(client, "n", "it", uid, "small", {ALLOCATION: text})

    found = account(build)
    assert found.state is State.NOT_BELIEVED
    assert "belongs to the pod with uid stranger" in found.says


def test_a_bound_pod_without_a_share_is_not_ours() -> None:
    async def build(client: MemoryCluster) -> None:
        body = pod_body("it", resources={"nvidia.com/gpu": "1"}, scheduler="default-scheduler")
        await bind(client, "n", "it", await put_pod(client, "n", body), "small")

    assert account(build).state is State.FOREIGN


def test_a_pod_that_asks_for_nothing_and_one_that_ended() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_pod(client, "n", pod_body("it"))
        await place(client, ("n", "done"), (1024, 10), "small", SMALL)
        await status(client, "done", phase="Failed")

    assert account(build).state is State.NOT_OURS
    assert account(build, "done").state is State.ENDED
    assert "has ended (Failed)" in account(build, "done").says


def test_what_the_kubelet_refuses_is_passed_on() -> None:
    refusal = {"reason": "CreateContainerError", "message": "tessera: the node agent does not answer"}

    async def build(client: MemoryCluster) -> None:
        await place(client, ("n", "it"), (1024, 10), "small", SMALL)
        await status(client, "it", containerStatuses=[{"name": "main", "state": {"waiting": refusal}}])

    (note,) = account(build).notes
    assert note == ("container main does not start: CreateContainerError: tessera: the node agent does not answer")


def test_a_pod_of_another_scheduler_and_one_whose_ticket_waits_elsewhere() -> None:
    async def build(client: MemoryCluster) -> None:
        await place(client, ("m", "other"), (1024, 10), "small", SMALL, 9)
        body = pod_body("it", request_of((1024, 10)), 9, scheduler="volcano")
        await put_pod(client, "n", body)

    notes = account(build).notes
    assert "it is left to scheduler volcano, which is not Tessera's" in notes
    waits = "ticket 9 is in use there by a container that has not started yet"
    assert f"node small is out for the moment: {waits}" in notes


def test_a_node_whose_agent_offers_no_tickets_is_told() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_pod(client, "n", pod_body("it", request_of((1024, 10)), 9))
        await client.patch(NODES, "small", {"status": {"allocatable": None}}, dict, subresource="status")

    (note,) = account(build).notes
    assert note == f"node small is out for the moment: {NO_TICKETS}"


def test_an_unhealthy_device_under_a_placed_pod_is_told() -> None:
    async def build(client: MemoryCluster) -> None:
        bad = devices("bad", T4, healthy=False, reason="XID 79")
        await put_node(client, "bad", GPUNodeStatus(gate=True, devices=bad))
        await place(client, ("n", "it"), (1024, 10), "bad", bad)

    assert account(build).notes == ("device 0 is unhealthy: XID 79",)


def test_constraints_stand_under_what_was_asked() -> None:
    async def build(client: MemoryCluster) -> None:
        request = request_of((1024, 100), models_allowed=(ModelRule("H100"),))
        await put_pod(client, "n", pod_body("it", request, 9))

    found = account(build)
    assert found.asked == (
        "container main: 1 device with 1,024 MiB and 10% of its compute",
        "only on models *H100*",
    )
    assert "nodes big, small: 3 devices of a model that is not allowed (A100, T4)" in said(found)


def test_a_cluster_without_devices_says_so() -> None:
    async def look() -> Account:
        client = MemoryCluster()
        await put_pod(client, "n", pod_body("it", request_of((1024, 100)), 9))
        pod, facts = await seen_pod(client, "n", "it")
        return account_of(await observe(client), pod, facts)

    assert asyncio.run(look()).says == "waits: no node of the cluster reports a device"


def test_a_pod_of_several_containers_fits_only_where_all_do_together() -> None:
    """Each container fits the T4 alone; both do not, and then it is no node that the pod fits on."""

    async def build(client: MemoryCluster) -> None:
        claims = (*request_of((10_000, 100)).claims, *request_of((10_000, 100), container="side").claims)
        body = pod_body("it", Request(claims), 4)
        limits = {Ticket(5).resource: str(Ticket(5).quantity)}
        body["spec"]["containers"].append(
            {"name": "side", "image": "x", "resources": {"limits": limits, "requests": limits}}
        )
        uid = await put_pod(client, "n", body)
        share = Share(MiB(10_000), MiB(10_000), Milli(100), Milli(100))
        grants = {name: (Grant("GPU-big-0", 0, "A100", share),) for name in ("main", "side")}
        charge = Charge("GPU-big-0", 20_000, 200, 2, exclusive=False)
        text = encode_allocation(Placement(uid, "n/it", "big", grants, (charge,)), {"main": 4, "side": 5})
        await bind(client, "n", "it", uid, "big", {ALLOCATION: text})

    found = account(build)
    assert found.could_be_on == ("big",)
    assert "not on:     node small: each container fits alone, but not all of them together" in said(found)
    assert [(c.name, c.ticket) for c in found.containers] == [("main", 4), ("side", 5)]


def test_what_a_pod_takes_of_its_node_is_not_in_its_own_way() -> None:
    async def build(client: MemoryCluster) -> None:
        tight = devices("tight", T4)
        room = {"cpu": "8", "memory": "64Gi", "pods": "1"}
        await put_node(client, "tight", GPUNodeStatus(gate=True, devices=tight), room=room)
        body = pod_body("it", request_of((1024, 10)), 4, resources={"cpu": "6"})
        uid = await put_pod(client, "n", body)
        text = allocation(uid, "n/it", "tight", (1024, 10), tight, 4)
        await bind(client, "n", "it", uid, "tight", {ALLOCATION: text})

    assert "tight" in account(build).could_be_on


def test_cpu_that_no_node_has_is_a_reason() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_pod(client, "n", pod_body("it", request_of((1024, 100)), 9, resources={"cpu": "65"}))

    assert "too little CPU (asked 65000m, most free 64000m)" in said(account(build))
