"""What a look at a cluster shows of its devices, on a cluster small enough to count by hand."""

import asyncio

import click
import pytest

from cluster_view.world import (
    A100,
    T4,
    WHOLE,
    bind,
    devices,
    place,
    pod_body,
    put_node,
    put_pod,
    put_report,
    request_of,
)
from cluster_view.world import allocation as allocation_text
from tessera.cli.cluster_lines import device_lines
from tessera.cluster.anomalies import Fault
from tessera.cluster.devices import Devices, How, devices_of
from tessera.cluster.observe import observe
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import PODS
from tessera.wire.kube.inventory import GPUNodeStatus
from tessera.wire.kube.names import ALLOCATION

BIG, SMALL = devices("big", A100, A100), devices("small", T4, model="T4")


async def two_nodes(client: MemoryCluster) -> None:
    await put_node(client, "big", GPUNodeStatus(gate=True, devices=BIG, isolation="driver"))
    await put_node(client, "small", GPUNodeStatus(isolation="hook", gate=True, devices=SMALL))


def seen(build) -> Devices:
    async def look() -> Devices:
        client = MemoryCluster()
        await build(client)
        return devices_of(await observe(client))

    return asyncio.run(look())


def row(found: Devices, uuid: str):
    return next(row for row in found.devices if row.uuid == uuid)


def test_a_device_shows_what_is_allocated_free_and_by_whom() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        await place(client, ("research", "train"), (20_480, 500), "big", BIG[:1], 1)
        await place(client, ("research", "chat"), (10_240, 250), "big", BIG[:1], 2)

    found = seen(build)
    first = row(found, "GPU-big-0")
    # 20,480 + 10,240 = 30,720 of 40,960 MiB; 500 + 250 = 750 thousandths.
    assert (first.memory_allocated_mib, first.memory_free_mib, first.compute_allocated_milli) == (
        30_720,
        10_240,
        750,
    )
    assert [(h.pod, h.how, h.memory_mib, h.containers) for h in first.holders] == [
        ("research/chat", How.SHARE, 10_240, ("main",)),
        ("research/train", How.SHARE, 20_480, ("main",)),
    ]
    assert (first.shares, first.isolation, first.healthy) == (2, "driver", True)
    assert row(found, "GPU-big-1").holders == ()
    assert found.anomalies == ()


def test_a_whole_device_has_nothing_free() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        await place(client, ("web", "all"), WHOLE, "small", SMALL)

    device = row(seen(build), "GPU-small-0")
    assert (device.exclusive, device.memory_free_mib, device.compute_allocated_milli) == (True, 0, 1000)


def test_ended_pods_hold_nothing() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        await place(client, ("web", "all"), WHOLE, "small", SMALL)
        ended = await client.get(PODS, "all", dict, namespace="web")
        status = {**ended, "status": {"phase": "Succeeded"}}
        await client.replace(PODS, "all", status, dict, namespace="web", subresource="status")

    assert row(seen(build), "GPU-small-0").holders == ()


def test_a_forged_allocation_is_told_and_devices_are_set_aside() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        uid = await put_pod(client, "x", pod_body("thief", request_of((1024, 10)), 3))
        text = allocation_text("another-uid", "x/thief", "small", (1024, 10), SMALL, 3)
        await bind(client, "x", "thief", uid, "small", {ALLOCATION: text})

    found = seen(build)
    (holder,) = row(found, "GPU-small-0").holders
    assert (holder.pod, holder.how, holder.exclusive) == ("x/thief", How.SET_ASIDE, True)
    (anomaly,) = found.anomalies
    assert (anomaly.fault, anomaly.object) == (Fault.NOT_BELIEVED, "pod x/thief")
    assert "belongs to the pod with uid another-uid" in anomaly.text


def test_a_pod_that_uses_devices_without_us_is_told() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        body = pod_body("old", resources={"nvidia.com/gpu": "1"}, scheduler="default-scheduler")
        await bind(client, "x", "old", await put_pod(client, "x", body), "small")

    found = seen(build)
    assert [h.how for h in row(found, "GPU-small-0").holders] == [How.SET_ASIDE]
    assert [(a.fault, a.object) for a in found.anomalies] == [(Fault.FOREIGN, "pod x/old")]


def test_a_pod_that_never_met_the_webhook_is_told() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        await put_pod(client, "x", pod_body("early", resources={"nvidia.com/gpu": "1"}))

    assert [(a.fault, a.object) for a in seen(build).anomalies] == [(Fault.NOT_ADMITTED, "pod x/early")]


@pytest.mark.parametrize(
    ("status", "fault", "said"),
    [
        (
            GPUNodeStatus(gate=True, devices=SMALL, isolation="report", message="no driver"),
            Fault.NO_ISOLATION,
            "no driver",
        ),
        (GPUNodeStatus(isolation="hook", devices=SMALL, gate=False), Fault.NO_GATE, "without being checked"),
        (
            GPUNodeStatus(isolation="hook", gate=True, devices=SMALL, message="kubelet away"),
            Fault.AGENT,
            "kubelet away",
        ),
        (
            GPUNodeStatus(
                isolation="hook", gate=True, devices=devices("small", T4, healthy=False, reason="XID 79")
            ),
            Fault.UNHEALTHY,
            "device 0 (GPU-small-0) is unhealthy: XID 79",
        ),
        (
            GPUNodeStatus(isolation="hook", gate=True, devices=devices("small", T4, foreign="x/other")),
            Fault.FOREIGN,
            "1 device held by pod x/other",
        ),
    ],
)
def test_what_an_agent_says_is_passed_on(status: GPUNodeStatus, fault: Fault, said: str) -> None:
    async def build(client: MemoryCluster) -> None:
        await put_node(client, "small", status)

    (anomaly,) = seen(build).anomalies
    assert (anomaly.fault, anomaly.object) == (fault, "node small")
    assert said in anomaly.text


def test_a_node_that_is_gone_or_not_ready_takes_no_pods() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_report(client, "gone", GPUNodeStatus(isolation="hook", gate=True, devices=devices("gone", T4)))
        await put_node(
            client, "lost", GPUNodeStatus(isolation="hook", gate=True, devices=devices("lost", T4)), ready=False
        )
        await put_node(
            client,
            "shut",
            GPUNodeStatus(isolation="hook", gate=True, devices=devices("shut", T4)),
            unschedulable=True,
        )

    found = seen(build)
    assert [(d.node, d.usable) for d in found.devices] == [("gone", False), ("lost", False), ("shut", False)]
    assert [a.object for a in found.anomalies] == ["node gone", "node lost"]


def test_a_device_that_two_nodes_report_counts_once() -> None:
    async def build(client: MemoryCluster) -> None:
        await put_node(client, "a", GPUNodeStatus(isolation="hook", gate=True, devices=devices("same", T4)))
        await put_node(client, "b", GPUNodeStatus(isolation="hook", gate=True, devices=devices("same", T4)))

    found = seen(build)
    assert [(d.node, d.uuid) for d in found.devices] == [("a", "GPU-same-0")]
    assert [(a.fault, a.object) for a in found.anomalies] == [(Fault.TWICE, "node b")]


def test_the_table_names_the_first_holders_and_the_wide_one_all() -> None:
    async def build(client: MemoryCluster) -> None:
        await two_nodes(client)
        for i in range(4):
            await place(client, ("n", f"p{i}"), (1024, 100), "big", BIG[:1], i)

    found = seen(build)
    header, line, *_ = map(click.unstyle, device_lines(found))
    assert header.split()[:4] == ["NODE", "DEVICE", "MODEL", "MEMORY"]
    assert line.split()[:8] == ["big", "0", "A100", "40Gi", "4Gi", "36Gi", "40%", "4"]
    assert line.endswith("n/p0, n/p1, n/p2 and 1 more")
    wide = list(device_lines(found, wide=True))[1]
    assert "GPU-big-0" in wide
    assert wide.endswith("n/p3 1,024 MiB, 10% compute")


def test_a_device_that_its_agent_marks_has_nothing_free_and_is_told_once() -> None:
    """The pod is seen to use devices without us, and its agent knows which: one holder, one anomaly."""

    async def build(client: MemoryCluster) -> None:
        await put_node(
            client,
            "marked",
            GPUNodeStatus(isolation="hook", gate=True, devices=devices("marked", T4, foreign="x/old")),
        )
        body = pod_body("old", resources={"nvidia.com/gpu": "1"}, scheduler="default-scheduler")
        await bind(client, "x", "old", await put_pod(client, "x", body), "marked")

    found = seen(build)
    (device,) = found.devices
    assert (device.memory_free_mib, device.exclusive, device.compute_allocated_milli) == (0, True, 1000)
    assert [(h.pod, h.how) for h in device.holders] == [("x/old", How.FOREIGN)]
    assert [a.object for a in found.anomalies] == ["pod x/old"]


def test_every_bound_pod_takes_one_place_and_its_cpu_of_its_node() -> None:
    async def look() -> tuple[int, int]:
        client = MemoryCluster()
        await two_nodes(client)
        await place(client, ("n", "ours"), (1024, 100), "small", SMALL, 1)
        resources = {"nvidia.com/gpu": "1", "cpu": "2"}
        body = pod_body("foreign", resources=resources, scheduler="default-scheduler")
        await bind(client, "x", "foreign", await put_pod(client, "x", body), "small")
        body = pod_body("web", resources={"cpu": "500m"}, scheduler="default-scheduler")
        await bind(client, "x", "web", await put_pod(client, "x", body), "small")
        snapshot = (await observe(client)).snapshot
        at = snapshot.fleet.node_row["small"]
        return int(snapshot.usage.pods[at]), int(snapshot.usage.cpu[at])

    assert asyncio.run(look()) == (3, 2500)


def test_a_node_that_does_not_say_its_tier_is_told_and_shown_as_unknown() -> None:
    """An older agent left it out where the limiter held memory: nobody may take that for granted."""

    async def build(client: MemoryCluster) -> None:
        await put_node(client, "small", GPUNodeStatus(gate=True, devices=SMALL))

    found = seen(build)
    assert [(a.fault, a.text) for a in found.anomalies] == [
        (Fault.NO_ISOLATION, "does not say what enforces limits")
    ]
    header, row = list(device_lines(found, wide=True))[:2]
    at = header.index("ISOLATION")
    assert (found.devices[0].isolation, row[at : at + 9].strip()) == ("", "-")
