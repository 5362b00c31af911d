"""A small cluster by hand, through the client port: on the server in memory and on a real one alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.placement import Charge, Grant, Placement
from tessera.core.request import Claim, Constraints, Dialect, Request
from tessera.core.share import ComputeMilli, MemoryFraction, MemoryMiB, Share, ShareSpec
from tessera.core.ticket import DEVICES_PER_KEY, RESOURCES, Ticket
from tessera.core.units import MiB, Milli
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS, KubeClient
from tessera.wire.kube.allocation import encode_allocation
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus
from tessera.wire.kube.names import ALLOCATION as ALLOCATION_KEY
from tessera.wire.kube.names import API_VERSION, MANAGED, REQUEST, SCHEDULER_NAME
from tessera.wire.kube.request import encode_request

A100, T4 = 40_960, 15_360
TICKETS = {resource: str(DEVICES_PER_KEY) for resource in RESOURCES}
WHOLE = "whole"
Amount = tuple[int, int] | str
"""MiB and thousandths, or :data:`WHOLE`."""


def devices(node: str, *memory: int, model: str = "A100", **facts: Any) -> tuple[DeviceFacts, ...]:
    """Devices of so much memory each."""
    return tuple(
        DeviceFacts(uuid=f"GPU-{node}-{i}", index=i, model=model, memory_mib=m, vendor="NVIDIA", **facts)
        for i, m in enumerate(memory)
    )


async def put_node(
    client: KubeClient,
    name: str,
    status: GPUNodeStatus | None,
    *,
    ready: bool = True,
    labels: Mapping[str, str] | None = None,
    room: Mapping[str, str] | None = None,
    unschedulable: bool = False,
) -> None:
    """A node, and what its agent says."""
    node = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"unschedulable": unschedulable},
        "status": {
            "allocatable": {**TICKETS, **(room or {"cpu": "64", "memory": "512Gi", "pods": "110"})},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test"}],
        },
    }
    await client.create(NODES, node, dict)
    if status is not None:
        await put_report(client, name, status)


async def put_report(client: KubeClient, name: str, status: GPUNodeStatus) -> None:
    """What an agent says of a node, which may not be there."""
    base = {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": {"name": name}}
    made = await client.create(GPU_NODES, base, dict)
    await client.replace(GPU_NODES, name, {**made, "status": status}, dict, subresource="status")


def request_of(amount: Amount, count: int = 1, container: str = "main", **rules: Any) -> Request:
    """A request of one container."""
    if isinstance(amount, str):
        memory, compute = MemoryFraction(Milli(1000)), ComputeMilli(Milli(1000))
        spec = ShareSpec(memory, memory, compute, compute, exclusive=True)
    else:
        mib, milli = MemoryMiB(MiB(amount[0])), ComputeMilli(Milli(amount[1]))
        spec = ShareSpec(mib, mib, milli, milli)
    return Request((Claim((container,), count, spec),), Constraints(**rules))


def pod_body(
    name: str,
    request: Request | None = None,
    ticket: int = 0,
    *,
    resources: Mapping[str, str] | None = None,
    scheduler: str = SCHEDULER_NAME,
    **spec: Any,
) -> dict[str, Any]:
    """A pod as the webhook leaves it, or (without a request) as a user wrote it."""
    limits = dict(resources or {})
    metadata: dict[str, Any] = {"name": name}
    if request is not None:
        number = Ticket(ticket)
        limits[number.resource] = str(number.quantity)
        metadata["annotations"] = {REQUEST: encode_request(request, Dialect.NATIVE)}
        metadata["labels"] = {MANAGED[0]: MANAGED[1]}
    container = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}
    return {"metadata": metadata, "spec": {"containers": [container], "schedulerName": scheduler, **spec}}


async def put_pod(client: KubeClient, namespace: str, body: Mapping[str, Any]) -> str:
    """A pod that waits; its uid."""
    made: dict[str, Any] = await client.create(PODS, body, dict, namespace=namespace)
    return str(made["metadata"]["uid"])


async def bind(
    client: KubeClient,
    namespace: str,
    name: str,
    uid: str,
    node: str,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Bind a pod, as a scheduler does."""
    metadata = {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations or {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    await client.create(PODS, binding, dict, namespace=namespace, name=name, subresource="binding")


def allocation(uid: str, key: str, node: str, amount: Amount, chosen: Sequence[DeviceFacts], ticket: int) -> str:
    """The text of an allocation of one container."""
    grants = tuple(Grant(d.uuid, d.index, d.model, _share(amount, d)) for d in chosen)
    charges = tuple(
        Charge(g.uuid, g.share.memory_request, g.share.compute_request, 1, g.share.exclusive) for g in grants
    )
    return encode_allocation(Placement(uid, key, node, {"main": grants}, charges), {"main": ticket})


def _share(amount: Amount, device: DeviceFacts) -> Share:
    if isinstance(amount, str):
        memory, whole = MiB(device.memory_mib), Milli(1000)
        return Share(memory, memory, whole, whole, exclusive=True)
    return Share(MiB(amount[0]), MiB(amount[0]), Milli(amount[1]), Milli(amount[1]))


async def place(
    client: KubeClient,
    where: tuple[str, str],
    amount: Amount,
    node: str,
    chosen: Sequence[DeviceFacts],
    ticket: int = 0,
) -> str:
    """A pod (namespace, name) that Tessera placed on these devices; its uid."""
    namespace, name = where
    uid = await put_pod(client, namespace, pod_body(name, request_of(amount, len(chosen)), ticket))
    text = allocation(uid, f"{namespace}/{name}", node, amount, chosen, ticket)
    await bind(client, namespace, name, uid, node, {ALLOCATION_KEY: text})
    return uid
