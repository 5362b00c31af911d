"""The device plugins of the ticket resources: sixteen sockets of one process, registered for as long as it lives.

A kubelet that starts removes every socket beside its own and forgets all plugins. So the sockets and the kubelet's
own are looked at once a second: where one is gone or the kubelet's is another than before, ours are made anew and
registered again. Running containers are not touched by any of it.

Source: k8s.io/kubernetes v1.37 pkg/kubelet/cm/devicemanager/plugin/v1beta1 (server.go removes the sockets at
start; client.go dials the endpoint when it is registered).
"""

import asyncio
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from tessera.agent.allocate import Allocate, AllocateError
from tessera.agent.answer import Answer
from tessera.core.ticket import DEVICES_PER_KEY, RESOURCES
from tessera.runtime.clock import Clock
from tessera.runtime.kubelet.deviceplugin_grpc import DevicePluginBase, RegistrationStub
from tessera.runtime.log import logger
from tessera.wire.kubelet import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from grpclib._typing import IServable

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
LOOK_SECONDS: Final = 1.0
REGISTER_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0
_HEALTH: Final = {True: "Healthy", False: "Unhealthy"}

_log: Final = logger("agent.plugin")


class Readiness:
    """Whether the node can hand out shares at all; who waits for a change is told of each."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready = ready
        self._changed = asyncio.Event()

    def set(self, *, ready: bool) -> None:
        """Tell it; nothing happens where it is known."""
        if ready is self.ready:
            return
        self.ready = ready
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Return at the next change."""
        await self._changed.wait()


class TicketPlugin(DevicePluginBase):
    """One ticket resource. Its devices are numbers: how many are asked for is the message."""

    def __init__(self, resource: str, allocate: Allocate, readiness: Readiness) -> None:
        self.resource = resource
        self._allocate = allocate
        self._readiness = readiness
        self._prefix = resource.rpartition("/")[2]

    async def GetDevicePluginOptions(self, stream: Stream[pb.Empty, pb.DevicePluginOptions]) -> None:  # noqa: N802
        """Neither preferred allocation nor a call before each start."""
        await stream.recv_message()
        await stream.send_message(pb.DevicePluginOptions())

    async def ListAndWatch(self, stream: Stream[pb.Empty, pb.ListAndWatchResponse]) -> None:  # noqa: N802
        """The list, and the list again whenever the node can or cannot hand out shares any more."""
        await stream.recv_message()
        while True:
            ready = self._readiness.ready
            await stream.send_message(self.devices(ready=ready))
            while self._readiness.ready is ready:
                await self._readiness.change()

    def devices(self, *, ready: bool) -> pb.ListAndWatchResponse:
        """All ticket devices of this resource.

        Added one by one to the one message: 2,048 small ones, sixteen times over, would leave their memory behind.
        """
        health, listed = _HEALTH[ready], pb.ListAndWatchResponse()
        for n in range(DEVICES_PER_KEY):
            listed.devices.add(ID=f"{self._prefix}-{n}", health=health)
        return listed

    async def Allocate(self, stream: Stream[pb.AllocateRequest, pb.AllocateResponse]) -> None:  # noqa: N802
        """The share of the container that asks with so many devices of this resource."""
        request = await stream.recv_message()
        assert request is not None, "a unary call has a message"
        answers = []
        for asked in request.container_requests:
            try:
                answers.append(message_of(await self._allocate(self.resource, len(asked.devices_ids))))
            except AllocateError as error:
                raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
        await stream.send_message(pb.AllocateResponse(container_responses=answers))

    async def GetPreferredAllocation(  # noqa: N802
        self, stream: Stream[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse]
    ) -> None:
        """Never called: the options say so."""
        await stream.recv_message()
        await stream.send_message(pb.PreferredAllocationResponse())

    async def PreStartContainer(  # noqa: N802
        self, stream: Stream[pb.PreStartContainerRequest, pb.PreStartContainerResponse]
    ) -> None:
        """Never called: the options say so."""
        await stream.recv_message()
        await stream.send_message(pb.PreStartContainerResponse())


def message_of(answer: Answer) -> pb.ContainerAllocateResponse:
    """An answer as it goes to the kubelet."""
    return pb.ContainerAllocateResponse(
        envs=dict(answer.environment),
        mounts=[
            pb.Mount(container_path=mount.inside, host_path=mount.host, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        devices=[pb.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in answer.devices],
        cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi],
    )


@dataclass(frozen=True, slots=True)
class _Mark:
    """One life of a socket."""

    inode: int
    changed_ns: int


def _mark(path: Path) -> _Mark | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _Mark(found.st_ino, found.st_ctime_ns)


class DroppingServer(Server):
    """A server that drops its connections when it closes: a peer of ours need not notice by itself."""

    def __init__(self, handlers: "Collection[IServable]") -> None:
        super().__init__(handlers)
        self._open: WeakSet[H2Protocol] = WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._open.add(protocol)
        return protocol

    def drop(self) -> None:
        """Close everything that is open."""
        for protocol in self._open:
            protocol.connection.close()


class PluginServers:
    """All ticket plugins: served, registered, and looked after."""

    def __init__(self, directory: Path, plugins: Sequence[TicketPlugin], clock: Clock) -> None:
        self._directory, self._plugins, self._clock = directory, plugins, clock
        self._servers: dict[str, DroppingServer] = {}
        self._marks: dict[str, _Mark | None] = {}
        self._kubelet: _Mark | None = None
        self.registrations = 0
        """How often all plugins were registered."""

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there knows all plugins."""
        return self._kubelet is not None

    async def run(self) -> None:
        """Serve and register, again and again; until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look at the sockets once and mend what is gone."""
        kubelet = _mark(self._directory / KUBELET_SOCKET)
        whole = all(self._is_whole(plugin) for plugin in self._plugins)
        if kubelet is None:
            self._kubelet = None
        if kubelet is None or (whole and kubelet == self._kubelet):
            return
        for plugin in self._plugins:
            if not self._is_whole(plugin):
                await self._serve(plugin)
        try:
            await asyncio.wait_for(self._register(), REGISTER_SECONDS)
        except (OSError, GRPCError, StreamTerminatedError, TimeoutError) as error:
            self._kubelet = None
            _log.warning("not registered", directory=str(self._directory), error=str(error) or "no answer in time")
            return
        self._kubelet = kubelet
        self.registrations += 1
        _log.info("registered", plugins=len(self._plugins), directory=str(self._directory))

    def _is_whole(self, plugin: TicketPlugin) -> bool:
        name = socket_name(plugin.resource)
        mark = self._marks.get(name)
        return mark is not None and _mark(self._directory / name) == mark

    async def _serve(self, plugin: TicketPlugin) -> None:
        name = socket_name(plugin.resource)
        if (old := self._servers.pop(name, None)) is not None:
            old.close()
        path = self._directory / name
        path.unlink(missing_ok=True)
        server = DroppingServer([plugin])
        await server.start(path=str(path))
        os.chmod(path, 0o600)  # noqa: PTH101 - the kubelet is root
        self._servers[name] = server
        self._marks[name] = _mark(path)

    async def _register(self) -> None:
        channel = Channel(path=str(self._directory / KUBELET_SOCKET))
        try:
            registration = RegistrationStub(channel)
            for plugin in self._plugins:
                request = pb.RegisterRequest(
                    version=VERSION, endpoint=socket_name(plugin.resource), resource_name=plugin.resource
                )
                await registration.Register(request)
        finally:
            channel.close()

    async def close(self) -> None:
        """Stop serving and take the sockets away, so that the kubelet knows at once."""
        for name, server in self._servers.items():
            server.close()
            with suppress(OSError):
                if _mark(self._directory / name) == self._marks.get(name):
                    (self._directory / name).unlink()
        with suppress(TimeoutError):
            await asyncio.wait_for(_closed(self._servers.values()), CLOSE_SECONDS)
        self._servers.clear()


async def _closed(servers: Iterable[DroppingServer]) -> None:
    for server in servers:
        await server.wait_closed()
        server.drop()


def socket_name(resource: str) -> str:
    """The socket of a ticket resource, beside the kubelet's."""
    return f"tessera-{resource.rpartition('/')[2]}.sock"


def ticket_plugins(allocate: Allocate, readiness: Readiness) -> tuple[TicketPlugin, ...]:
    """A plugin for each ticket resource."""
    return tuple(TicketPlugin(resource, allocate, readiness) for resource in RESOURCES)
