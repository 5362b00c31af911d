"""Pods as the webhook leaves them, and what counts them being bound."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import msgspec

from cluster.engine.nodes import Session
from tessera.core.request import Claim, Constraints, Dialect, Request
from tessera.core.share import ComputeMilli, MemoryMiB, ShareSpec
from tessera.core.ticket import TICKETS, Ticket
from tessera.core.units import MiB, Milli
from tessera.wire.kube.names import MANAGED, REQUEST
from tessera.wire.kube.request import encode_request

# (devices, MiB, thousandths of a device): what a share of a 40 GiB device looks like, small ones more often.
SIZES: Final = (
    (1, 2048, 50), (1, 5120, 125), (1, 5120, 125), (1, 10240, 250), (1, 10240, 250), (1, 8192, 200),
    (1, 20480, 500), (1, 20480, 500), (1, 16384, 330), (1, 40960, 1000), (2, 20480, 500), (1, 3000, 100),
)  # fmt: skip

VENDOR_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")


def a_request(devices: int, memory: int, compute: int) -> Request:
    """A request in HAMi's way, request = limit."""
    m, c = MemoryMiB(MiB(memory)), ComputeMilli(Milli(compute))
    share = ShareSpec(m, m, c, c, exclusive=compute == 1000)
    return Request((Claim(("main",), devices, share),), Constraints(vendor="NVIDIA"))


def a_pod(name: str, number: int, scheduler: str, **spec: Any) -> dict[str, Any]:
    """The ``number``-th pod: a size and a ticket in turn."""
    devices, memory, compute = SIZES[number % len(SIZES)]
    ticket = Ticket(number % TICKETS)
    asked = {
        "cpu": "10m",
        "memory": "16Mi",
        "nvidia.com/gpu": str(devices),
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(compute // 10),
        ticket.resource: str(ticket.quantity),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {MANAGED[0]: MANAGED[1], "app": "bench"},
            "annotations": {REQUEST: encode_request(a_request(devices, memory, compute), Dialect.HAMI)},
        },
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": asked, "requests": asked}}],
            **spec,
        },
    }


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815


class _Spec(msgspec.Struct, frozen=True):
    nodeName: str = ""  # noqa: N815


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Pod


_event: Final = msgspec.json.Decoder(_Event)


class Counter:
    """Sees pods being bound; ``bound`` has the moment of each."""

    def __init__(self, session: Session, namespace: str) -> None:
        self.session = session
        self.namespace = namespace
        self.bound: dict[str, float] = {}
        self.watching = asyncio.Event()

    async def watch(self) -> None:
        """Follow the namespace's pods, resuming where the server ended the stream."""
        version = "0"
        path = f"/api/v1/namespaces/{self.namespace}/pods?watch=1&allowWatchBookmarks=1&resourceVersion="
        forever = aiohttp.ClientTimeout(total=None)
        while True:
            rest = b""
            async with self.session.http.get(self.session.server + path + version, timeout=forever) as answer:
                self.watching.set()
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = _event.decode(line)
                        version = event.object.metadata.resourceVersion or version
                        if event.object.spec.nodeName and event.type == "MODIFIED":
                            self.bound.setdefault(event.object.metadata.name, time.perf_counter())

    async def until(self, count: int, seconds: float, watch: "asyncio.Task[None]") -> None:
        """Wait until ``count`` pods are bound. Raises :class:`TimeoutError`, or what ended the watch."""
        async with asyncio.timeout(seconds):
            while len(self.bound) < count:
                if watch.done():
                    watch.result()
                await asyncio.sleep(0.02)


def numbers() -> Iterator[int]:
    """Numbers that no two pods of this process share."""
    return _numbers


_numbers: Final = itertools.count()


async def delete_all(session: Session, namespace: str) -> None:
    """Delete every pod of the namespace and wait until they are gone."""
    base = f"/api/v1/namespaces/{namespace}/pods"
    await session.call("DELETE", base, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    async with asyncio.timeout(120):
        while b'"items":[]' not in (await session.call("GET", base + "?limit=1")).replace(b" ", b""):
            await asyncio.sleep(0.2)
