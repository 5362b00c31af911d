"""An informer on the API server in memory, directly or over HTTP, with a clock of the test's own."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from runtime.kube.front import Front
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError, KubeClient
from tessera.wire.kube.objects import KubePod

NAMESPACE = "n"


@dataclass
class Told:
    """Everything that handlers were told, checked as it comes, and what it adds up to."""

    steps: list[tuple[KubePod | None, KubePod | None]] = field(default_factory=list)
    now: dict[str, KubePod] = field(default_factory=dict)

    def __call__(self, old: KubePod | None, new: KubePod | None) -> None:
        self.steps.append((old, new))
        key = (new or old).metadata.key
        assert self.now.get(key) == old, "a step begins where the last one of this object ended"
        if old is not None and new is not None:
            assert old.metadata.uid == new.metadata.uid, "another object is another step"
            assert int(old.metadata.resource_version) < int(new.metadata.resource_version)
        if new is None:
            del self.now[key]
        else:
            self.now[key] = new

    @property
    def words(self) -> list[str]:
        """The steps in short: ``+a`` made, ``~a`` changed, ``-a`` gone."""
        signs = [("+" if old is None else "-" if new is None else "~", new or old) for old, new in self.steps]
        return [sign + pod.metadata.name for sign, pod in signs]


@dataclass
class World:
    """A cluster, an informer on it, and the faults of the way between them."""

    cluster: MemoryCluster
    client: KubeClient
    clock: ManualClock
    front: Front | None = None
    informer: Informer[KubePod, KubePod] = field(init=False)
    told: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        self.informer = self.an_informer()
        self.informer.handlers.append(self.told)

    def an_informer(self, **options: Any) -> Informer[Any, Any]:
        return Informer(self.client, PODS, KubePod, clock=self.clock, rng=random.Random(1), **options)

    async def make(self, name: str, **labels: str) -> KubePod:
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": []}}
        return await self.cluster.create(PODS, body, KubePod, namespace=NAMESPACE)

    async def change(self, name: str, value: str) -> KubePod:
        body = {"metadata": {"labels": {"x": value}}}
        return await self.cluster.patch(PODS, name, body, KubePod, namespace=NAMESPACE)

    async def drop(self, name: str) -> None:
        await self.cluster.delete(PODS, name, namespace=NAMESPACE, grace_seconds=0)

    async def cut(self) -> None:
        """Open streams break: over HTTP in the middle of an event."""
        if self.front is not None:
            await self.front.cut()
        else:
            self.cluster.end_streams(ConnectionLostError("cut"))

    def leave(self) -> None:
        if self.front is not None:
            self.front.leave()
        else:
            self.cluster.away = True

    def come_back(self) -> None:
        if self.front is not None:
            self.front.away = False
        self.cluster.away = False

    @asynccontextmanager
    async def unseen(self, error: ApiError | None = None) -> AsyncIterator[None]:
        """What happens in here is not seen as it happens: the next watch is held until the end, then fails so."""
        gate = asyncio.Event()
        self.cluster.fail(Fault("watch", gate=gate, error=error))
        asked = len(self.cluster.calls)
        self.cluster.end_streams()
        await self.until(lambda: any(call.verb == "watch" for call in self.cluster.calls[asked:]))
        yield
        gate.set()

    async def present(self) -> dict[str, KubePod]:
        """What the server has."""
        listed = await self.cluster.list(PODS, KubePod)
        return {pod.metadata.key: pod for pod in listed.items}

    async def until(self, true: Callable[[], bool], step: float = 0.05) -> None:
        """Lets virtual time pass in small steps until something holds; fails after a real minute."""
        async with asyncio.timeout(60):
            while not true():
                await self.clock.advance(step)
                await asyncio.sleep(0.001 if self.front else 0)

    async def agree(self) -> None:
        """Waits until the store is what the server has, and what was told adds up to it."""
        present = await self.present()
        await self.until(lambda: dict(self.informer.store) == present)
        assert self.told.now == present


@asynccontextmanager
async def a_world(kind: str) -> AsyncIterator[World]:
    clock = ManualClock()
    cluster = MemoryCluster(wall=clock.wall)
    if kind == "memory":
        yield World(cluster, cluster, clock)
        return
    front = Front(cluster)
    async with front.serve() as address:
        client = ApiClient(ClusterConfig("test", address), clock=clock, rng=random.Random(1))
        try:
            yield World(cluster, client, clock, front)
        finally:
            await client.close()


@asynccontextmanager
async def running(world: World, informer: Informer[Any, Any] | None = None) -> AsyncIterator[None]:
    """The informer at work, synced."""
    informer = informer or world.informer
    task = asyncio.create_task(informer.run())
    try:
        await world.until(lambda: informer.synced.is_set() or task.done())
        await watching(world)
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await settle()


async def watching(world: World) -> None:
    """Waits until the server has an open watch."""
    await world.until(lambda: bool(world.cluster.history.watchers))


def run(law: Callable[..., Awaitable[None]], kind: str) -> None:
    async def body() -> None:
        async with asyncio.timeout(30), a_world(kind) as world:
            await law(world)

    asyncio.run(body())
