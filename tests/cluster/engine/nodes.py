"""Simulated nodes by the hundred: what an API server knows of a node, with nobody behind it.

A node is an object with capacity and a Ready condition, its ticket resources, and a ``GPUNode`` with its devices.
Pods can be bound to it and stay Pending there, unless :class:`~cluster.engine.hollow.HollowKubelets` runs.
"""

import asyncio
import contextlib
import datetime as dt
import json
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from cluster.engine.api import MERGE, tls_context
from cluster.engine.plane import ControlPlane
from tessera.core.ticket import DEVICES_PER_KEY, RESOURCES
from tessera.vendors.models import find_model
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus
from tessera.wire.kube.names import API_VERSION

PARALLEL: Final = 24
MEMORY_MIB: Final[Mapping[str, int]] = {"A100": 40_960, "A100-80G": 81_920, "T4": 15_360, "L4": 23_034}
"""Memory of models in MiB where it is not the table's nominal figure."""

TICKETS: Final[Mapping[str, str]] = {name: str(DEVICES_PER_KEY) for name in RESOURCES}


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node to create: so many devices of a model, or exactly ``facts``. With none it has no ``GPUNode`` and no
    tickets.
    """

    name: str
    devices: int = 4
    model: str = "A100"
    memory_mib: int | None = None
    facts: tuple[DeviceFacts, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)

    @property
    def inventory(self) -> tuple[DeviceFacts, ...]:
        """Its devices. A uuid names node and index, so that it is the same in every run."""
        if self.facts is not None:
            return self.facts
        known = find_model(self.model)
        memory = self.memory_mib or MEMORY_MIB.get(self.model) or (known.memory_mib if known else 0)
        if not memory:
            raise ValueError(f"{self.name}: no memory is known of a {self.model!r}: give memory_mib")
        return tuple(
            DeviceFacts(
                uuid=f"GPU-{self.name}-{index}",
                index=index,
                model=self.model,
                memory_mib=memory,
                vendor=known.vendor if known else "NVIDIA",
                milli_tflops=known.milli_tflops if known else None,
            )
            for index in range(self.devices)
        )

    def node(self) -> dict[str, Any]:
        """The Node object."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        room = {
            "cpu": "64",
            "memory": "512Gi",
            "pods": "110",
            **(TICKETS if self.inventory else {}),
            **self.capacity,
        }
        ready = {"type": "Ready", "status": "True", "reason": "Simulated"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, **self.labels}},
            "status": {
                "capacity": room,
                "allocatable": room,
                "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
                "nodeInfo": _NODE_INFO,
            },
        }


_NODE_INFO: Final = {
    "machineID": "",
    "systemUUID": "",
    "bootID": "",
    "kernelVersion": "",
    "osImage": "simulated",
    "containerRuntimeVersion": "containerd://2.1.0",
    "kubeletVersion": "v1.37.2",
    "kubeProxyVersion": "",
    "operatingSystem": "linux",
    "architecture": "amd64",
}


def node_names(count: int, prefix: str = "node") -> tuple[str, ...]:
    """``node-0000`` and so on."""
    return tuple(f"{prefix}-{index:04d}" for index in range(count))


def some_nodes(count: int, prefix: str = "node", **facts: Any) -> tuple[SimulatedNode, ...]:
    """Equal nodes; ``facts`` are :class:`SimulatedNode`'s fields."""
    return tuple(SimulatedNode(name, **facts) for name in node_names(count, prefix))


class Session:
    """Many calls at once as the administrator, over kept connections."""

    def __init__(self, http: aiohttp.ClientSession, server: str) -> None:
        self.http = http
        self.server = server

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        media: str = "application/json",
        accepts: Sequence[int] = (),
    ) -> bytes:
        """The answer's bytes. Raises :class:`AssertionError` for a status that is neither 2xx nor accepted."""
        data = None if body is None else json.dumps(body)
        async with self.http.request(
            method, self.server + path, data=data, headers={"Content-Type": media}
        ) as answer:
            payload = await answer.read()
            if not (200 <= answer.status < 300 or answer.status in accepts):
                raise AssertionError(f"{method} {path}: {answer.status} {payload[:400]!r}")
            return payload

    async def each(self, items: Iterable[Any], action: Callable[[Any], Awaitable[object]]) -> None:
        """Run ``action`` on every item, :data:`PARALLEL` at a time."""
        waiting = iter(items)

        async def work() -> None:
            for item in waiting:
                await action(item)

        await asyncio.gather(*(work() for _ in range(PARALLEL)))


CLOSING_ROUNDS: Final = 10
"""Turns of the event loop in which closed connections say so."""


@asynccontextmanager
async def open_session(plane: ControlPlane) -> AsyncIterator[Session]:
    """A session on this plane. None of its connections waits for the server's TLS farewell when it is over."""
    opened: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def open_socket(address: Any) -> socket.socket:
        made = socket.socket(*address[:3])
        opened.add(made)
        return made

    context = tls_context(plane.authority.certificate, plane.admin)
    connector = aiohttp.TCPConnector(ssl=context, limit=0, socket_factory=open_socket)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
        yield Session(http, plane.server)
    for one in list(opened):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for _ in range(CLOSING_ROUNDS):
        await asyncio.sleep(0)


async def create_nodes(plane: ControlPlane, nodes: Iterable[SimulatedNode]) -> None:
    """Create these nodes; with devices they need the kinds (``install_kinds``).

    They take pods at once, or with ``node_lifecycle`` as soon as that controller has seen them.
    """
    async with open_session(plane) as session:

        async def create(node: SimulatedNode) -> None:
            await session.call("POST", "/api/v1/nodes", node.node())
            if node.inventory:
                await _publish(session, node)

        await session.each(nodes, create)


async def _publish(session: Session, node: SimulatedNode) -> None:
    """Create the node's ``GPUNode``; a create drops the status, so that takes a second call."""
    base = f"/apis/{API_VERSION}/gpunodes"
    body = {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": {"name": node.name}}
    status = msgspec.to_builtins(GPUNodeStatus(devices=node.inventory, isolation="hook"))
    await session.call("POST", base, body)
    await session.call("PATCH", f"{base}/{node.name}/status", {"status": status}, MERGE)


async def delete_nodes(plane: ControlPlane, names: Iterable[str]) -> None:
    """Delete these nodes, their ``GPUNode`` objects and leases, as far as they are there."""
    async with open_session(plane) as session:

        async def delete(name: str) -> None:
            for path in (
                f"/api/v1/nodes/{name}",
                f"/apis/{API_VERSION}/gpunodes/{name}",
                f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}",
            ):
                await session.call("DELETE", path, accepts=(404,))

        await session.each(names, delete)


def publish_devices(plane: ControlPlane, node: SimulatedNode) -> None:
    """What an agent that starts says of a node that is there already."""

    async def publish() -> None:
        async with open_session(plane) as session:
            await _publish(session, node)

    asyncio.run(publish())


def offer_tickets(plane: ControlPlane, name: str, amounts: Mapping[str, str] = TICKETS) -> None:
    """What a kubelet says of its node when ticket plugins come, go or change."""
    status = {"status": {"capacity": dict(amounts), "allocatable": dict(amounts)}}
    plane.api.merge(f"/api/v1/nodes/{name}/status", status)


def add_nodes(plane: ControlPlane, nodes: Iterable[SimulatedNode]) -> None:
    """:func:`create_nodes` for a test without a loop."""
    asyncio.run(create_nodes(plane, nodes))


def remove_nodes(plane: ControlPlane, names: Iterable[str]) -> None:
    """:func:`delete_nodes` for a test without a loop."""
    asyncio.run(delete_nodes(plane, names))


class LeaseKeeper:
    """Keeps the leases of simulated nodes alive as kubelets do; run :meth:`keep` as a task and cancel it."""

    def __init__(self, plane: ControlPlane, names: Iterable[str], seconds: float = 10.0) -> None:
        self.plane = plane
        self.names = tuple(names)
        self.seconds = seconds
        self.rounds = 0

    async def keep(self) -> None:
        """Renew every lease, again and again."""
        async with open_session(self.plane) as session:
            while True:
                await session.each(self.names, lambda name: self._renew(session, name))
                self.rounds += 1
                await asyncio.sleep(self.seconds)

    async def _renew(self, session: Session, name: str) -> None:
        base = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
        }
        apply = f"{base}/{name}?fieldManager=lease-keeper&force=true"
        await session.call("PATCH", apply, lease, "application/apply-patch+yaml")
