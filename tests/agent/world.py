"""Pods, grants and a whole agent for tests: real parts, an API server in memory, a kubelet of a few lines."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from grpclib.client import Channel
from grpclib.server import Server, Stream

from tessera.agent.app import Settings, assemble, start
from tessera.agent.grant import VERSION, ContainerGrant, GrantedDevice
from tessera.agent.layout import GATE_NAME
from tessera.agent.node import NodeOptions
from tessera.agent.rounds import Sweeper
from tessera.core.placement import Charge, Grant, Placement
from tessera.core.share import Share
from tessera.core.ticket import Ticket
from tessera.core.units import MiB, Milli
from tessera.local.machine import parse_spec, simulated_machine, simulated_uuid
from tessera.runtime.clock import settle
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS
from tessera.runtime.kubelet.deviceplugin_grpc import DevicePluginStub, RegistrationBase
from tessera.runtime.native import LIMITER, NATIVE
from tessera.runtime.serve import Bind
from tessera.runtime.shell import Shell
from tessera.wire.kube.allocation import encode_allocation
from tessera.wire.kube.names import ALLOCATION
from tessera.wire.kube.objects import KubePod
from tessera.wire.kubelet import deviceplugin_pb2 as pb

NODE = "n1"
UUID = "GPU-aaaa"
MODEL = "NVIDIA A100-SXM4-80GB"
CONTAINER_ID = "c" * 64


def a_grant(uuid: str = UUID, memory: int = 1024, index: int = 0) -> Grant:
    share = Share(MiB(memory), MiB(memory), Milli(100), Milli(500))
    return Grant(uuid, index, MODEL, share)


def an_allocation(
    uid: str, grants: Mapping[str, tuple[Grant, ...]], tickets: Mapping[str, int], node: str = NODE
) -> str:
    charges = {g.uuid: Charge(g.uuid, g.share.memory_request, 100, 1, False) for gs in grants.values() for g in gs}
    placement = Placement(uid, "team/p", node, grants, tuple(charges.values()))
    return encode_allocation(placement, tickets)


def a_pod_object(
    name: str = "p",
    tickets: Mapping[str, int] | None = None,
    *,
    grants: Mapping[str, tuple[Grant, ...]] | None = None,
    init: tuple[str, ...] = (),
    node: str = NODE,
    annotation: str | None = None,
    statuses: list[dict[str, Any]] | None = None,
    phase: str = "Pending",
) -> dict[str, Any]:
    """A pod bound to ``node`` whose containers ask with these tickets; ``uid-<name>`` is its uid."""
    tickets = {"main": 37} if tickets is None else tickets
    uid = f"uid-{name}"
    grants = {c: (a_grant(),) for c in tickets} if grants is None else grants
    text = an_allocation(uid, grants, tickets, node) if annotation is None and grants else annotation
    containers = [_container(c, number) for c, number in tickets.items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "annotations": {ALLOCATION: text} if text else {},
        },
        "spec": {
            "nodeName": node,
            "containers": [c for c in containers if c["name"] not in init],
            "initContainers": [c for c in containers if c["name"] in init],
        },
        "status": {"phase": phase, "containerStatuses": statuses or []},
    }


def _container(name: str, number: int) -> dict[str, Any]:
    ticket = Ticket(number)
    return {"name": name, "resources": {"limits": {ticket.resource: str(ticket.quantity)}}}


def a_kube_pod(*args: Any, **facts: Any) -> KubePod:
    """The same as the agent sees it."""
    return msgspec.convert(a_pod_object(*args, **facts), KubePod)


def a_container_grant(
    uid: str = "uid-p", container: str = "main", uuid: str = UUID, memory: int = 1024, library: str = "feed"
) -> ContainerGrant:
    device = GrantedDevice(uuid, 0, memory, memory, 500, 100)
    return ContainerGrant(VERSION, uid, "team", "p", container, 37, (device,), library)


class MiniKubelet(RegistrationBase):
    """What a kubelet does with device plugins: takes registrations, follows lists, asks for devices.

    As the real one does, it removes every other socket of the directory when it starts.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoints: dict[str, str] = {}
        self.healthy: dict[str, int] = {}
        self.lists: dict[str, int] = {}
        self._server: Server | None = None
        self._following: list[asyncio.Task[None]] = []

    async def Register(self, stream: Stream[pb.RegisterRequest, pb.Empty]) -> None:  # noqa: N802 - on the wire
        request = await stream.recv_message()
        assert request is not None
        assert request.version == "v1beta1"
        self.endpoints[request.resource_name] = request.endpoint
        self._following.append(asyncio.create_task(self._follow(request.resource_name, request.endpoint)))
        await stream.send_message(pb.Empty())

    async def _follow(self, resource: str, endpoint: str) -> None:
        channel = Channel(path=str(self.directory / endpoint))
        try:
            async with DevicePluginStub(channel).ListAndWatch.open() as stream:
                await stream.send_message(pb.Empty(), end=True)
                async for listed in stream:
                    self.healthy[resource] = sum(d.health == "Healthy" for d in listed.devices)
                    self.lists[resource] = self.lists.get(resource, 0) + 1
        except Exception:  # noqa: BLE001 - the plugin went away, as it may
            self.healthy[resource] = 0
        finally:
            channel.close()

    async def start(self) -> "MiniKubelet":
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            path.unlink()
        self.endpoints.clear()
        self._server = Server([self])
        await self._server.start(path=str(self.directory / "kubelet.sock"))
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        (self.directory / "kubelet.sock").unlink(missing_ok=True)
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        self._following.clear()

    async def allocate(self, resource: str, quantity: int) -> pb.ContainerAllocateResponse:
        channel = Channel(path=str(self.directory / self.endpoints[resource]))
        try:
            ids = [f"any-{n}" for n in range(quantity)]
            asked = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
            answer = await DevicePluginStub(channel).Allocate(asked)
            return answer.container_responses[0]
        finally:
            channel.close()


async def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Return once it holds; fail with ``what`` at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


@dataclass
class Rig:
    """A whole agent on an API server in memory and a mini kubelet, in a directory of its own."""

    directory: Path
    simulate: str = "2xA100-SXM4-80GB"
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    runtime: str = "containerd://2.1.9"
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kubelet = MiniKubelet(self.directory / "plugins")
        self.shell = Shell(chance=random.Random(1))
        self.machine = simulated_machine(self.simulate)

    @property
    def uuids(self) -> list[str]:
        count, model, _ = parse_spec(self.simulate)
        return [simulated_uuid(model.name, index) for index in range(count)]

    @property
    def state(self) -> Path:
        return self.directory / "tessera" / "agent"

    def make_settings(self) -> Settings:
        facts: dict[str, Any] = {"library": LIMITER, "gate": NATIVE / GATE_NAME, **self.options}
        options = NodeOptions(
            cdi_directory=self.directory / "cdi", gate_socket=self.directory / "gate.sock", **facts
        )
        return Settings(
            node=NODE,
            metrics=Bind("127.0.0.1", 0),
            options=options,
            description=self.machine.description,
            state=self.state,
            plugin_directory=self.kubelet.directory,
            pod_resources=self.directory / "pod-resources.sock",
            **{"cgroup_root": self.directory / "no-cgroups", **self.settings},
        )

    async def __aenter__(self) -> "Rig":
        await self.kubelet.start()
        if not self.cluster.calls:
            info = {"nodeInfo": {"containerRuntimeVersion": self.runtime}}
            await self.cluster.create(NODES, {"metadata": {"name": NODE}, "status": info}, dict)
            await self.cluster.replace(
                NODES, NODE, {"metadata": {"name": NODE}, "status": info}, dict, subresource="status"
            )
        try:
            await self.start_agent()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def start_agent(self) -> None:
        self.shell = Shell(chance=random.Random(1))
        self.parts = assemble(self.make_settings(), self.cluster, self.shell)
        await start(self.parts, self.shell)

    async def registered(self) -> None:
        await until(lambda: len(self.kubelet.healthy) == 16, "16 plugins are listed")

    async def stop_agent(self) -> None:
        await self.shell.end()

    async def __aexit__(self, *_: object) -> None:
        await self.stop_agent()
        await self.kubelet.stop()
        await settle()  # closed connections are noticed by both ends

    async def bind(
        self,
        name: str = "p",
        tickets: Mapping[str, int] | None = None,
        grants: Mapping[str, tuple[Grant, ...]] | None = None,
        annotation: str | None = None,
    ) -> KubePod:
        """Have a pod appear that is bound as the scheduler binds; by default with a share of the first device."""
        tickets = {"main": 37} if tickets is None else tickets
        grants = {c: (a_grant(self.uuids[0]),) for c in tickets} if grants is None else grants
        pod = a_pod_object(name, tickets, grants={}, node="")
        del pod["spec"]["nodeName"]
        created = await self.cluster.create(PODS, pod, KubePod, namespace="team")
        text = an_allocation(created.metadata.uid, grants, tickets) if annotation is None else annotation
        meta = {"name": name, "uid": created.metadata.uid, "annotations": {ALLOCATION: text}}
        binding = {"metadata": meta, "target": {"kind": "Node", "name": NODE}}
        await self.cluster.create(PODS, binding, dict, namespace="team", name=name, subresource="binding")
        return await self.cluster.get(PODS, name, KubePod, namespace="team")

    def sweeper(self) -> Sweeper:
        parts = self.parts
        return Sweeper(parts.store, parts.layout, parts.pods, parts.node, parts.keeper)

    def fault(self, uuid: str, code: int) -> None:
        """Have a device report a fault."""
        with Path(f"{self.machine.description}.faults").open("a") as file:
            file.write(f"{uuid} {code}\n")

    def healthy(self) -> list[bool]:
        """Of the devices by index, as they are published."""
        published = self.parts.publisher.published
        return [device.healthy for device in published.devices] if published else []

    def node_status(self) -> Any:
        """What stands in the API of our node; ``None`` where nothing does."""
        found = self.cluster.history.find(GPU_NODES, "", NODE)
        return found.get("status") if found else None

    def foreign(self) -> list[str]:
        """Who else holds the devices by index, as it is published."""
        published = self.parts.publisher.published
        return [device.foreign for device in published.devices] if published else []

    async def report(self, name: str, *statuses: dict[str, Any], phase: str = "Running") -> None:
        """Say what a kubelet says of a pod's containers."""
        pod = await self.cluster.get(PODS, name, dict, namespace="team")
        pod["status"] = {"phase": phase, "containerStatuses": list(statuses)}
        await self.cluster.replace(PODS, name, pod, dict, namespace="team", subresource="status")
