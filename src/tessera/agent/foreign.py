"""Who else was given our devices: what the kubelet says of other device plugins, and the same told to tools.

Two things about the kubelet's pod-resources API. It names the pods that hold a device through another plugin, so
that the device is set aside here. And it names our own tickets, which tells a monitoring tool nothing: a socket of
the same API answers with the real devices instead.

Source: ids of other plugins: NVIDIA/k8s-device-plugin (uuid, ``<uuid>::<replica>`` where it shares in time),
HAMi 4707fb02 (``<uuid>-<replica>``).
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.server import Stream

from tessera.core.errors import UnavailableError
from tessera.core.ticket import PREFIX
from tessera.runtime.kubelet.podresources_grpc import PodResourcesListerBase, PodResourcesListerStub
from tessera.wire.kubelet import podresources_pb2 as pb

_REPLICA: Final = re.compile(r"(::\d+|-\d+)$")


def foreign_users(pods: Iterable[pb.PodResources], ours: Collection[str]) -> dict[str, str]:
    """Devices of ``ours`` that pods hold through another plugin: uuid to ``namespace/name``, the first by name."""
    found: dict[str, str] = {}
    for pod in sorted(pods, key=lambda p: (p.namespace, p.name)):
        for container in pod.containers:
            for held in container.devices:
                if held.resource_name.startswith(PREFIX):
                    continue
                for device in held.device_ids:
                    uuid = device if device in ours else _REPLICA.sub("", device)
                    if uuid in ours:
                        found.setdefault(uuid, f"{pod.namespace}/{pod.name}")
    return found


def told_apart(
    pods: Sequence[pb.PodResources], shares: Mapping[tuple[str, str, str], Sequence[str]], resource: str
) -> list[pb.PodResources]:
    """The same pods with our tickets replaced by the devices behind them, as devices of ``resource``.

    ``shares`` gives the uuids of a container by (namespace, pod, container).
    """
    answer = []
    for pod in pods:
        copy = pb.PodResources()
        copy.CopyFrom(pod)
        for container in copy.containers:
            others = [d for d in container.devices if not d.resource_name.startswith(PREFIX)]
            if len(others) == len(container.devices):
                continue
            uuids = shares.get((pod.namespace, pod.name, container.name), ())
            del container.devices[:]
            container.devices.extend(others)
            if uuids:
                container.devices.append(pb.ContainerDevices(resource_name=resource, device_ids=uuids))
        answer.append(copy)
    return answer


async def list_pod_resources(socket: Path) -> pb.ListPodResourcesResponse:
    """What the kubelet says. Raises :class:`UnavailableError`."""
    channel = Channel(path=str(socket))
    try:
        return await PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=5.0)
    except (OSError, GRPCError, StreamTerminatedError, TimeoutError) as error:
        what = f"the kubelet's pod resources at {socket} cannot be read: {error}"
        raise UnavailableError(what, "mount the directory into the agent") from error
    finally:
        channel.close()


Shares = Callable[[], Mapping[tuple[str, str, str], Sequence[str]]]


class PodResources(PodResourcesListerBase):
    """The kubelet's API with devices in place of tickets."""

    def __init__(self, kubelet: Path, shares: Shares, resource: str) -> None:
        self._kubelet, self._shares, self._resource = kubelet, shares, resource

    async def _pods(self) -> list[pb.PodResources]:
        try:
            found = await list_pod_resources(self._kubelet)
        except UnavailableError as error:
            raise GRPCError(Status.UNAVAILABLE, str(error)) from error
        return told_apart(found.pod_resources, self._shares(), self._resource)

    async def List(  # noqa: N802
        self, stream: Stream[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]
    ) -> None:
        """All pods."""
        await stream.recv_message()
        await stream.send_message(pb.ListPodResourcesResponse(pod_resources=await self._pods()))

    async def Get(  # noqa: N802
        self, stream: Stream[pb.GetPodResourcesRequest, pb.GetPodResourcesResponse]
    ) -> None:
        """One pod, by namespace and name."""
        request = await stream.recv_message()
        assert request is not None, "a unary call has a message"
        for pod in await self._pods():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                await stream.send_message(pb.GetPodResourcesResponse(pod_resources=pod))
                return
        name = f"{request.pod_namespace}/{request.pod_name}"
        raise GRPCError(Status.NOT_FOUND, f"pod {name} is not on this node")

    async def GetAllocatableResources(  # noqa: N802
        self, stream: Stream[pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse]
    ) -> None:
        """Left to the kubelet: what can be allocated is not ours to say."""
        await stream.recv_message()
        raise GRPCError(Status.UNIMPLEMENTED, f"ask the kubelet at {self._kubelet}")
