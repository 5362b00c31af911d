"""Leadership on both API servers and on the real clock: what holds on the virtual one holds here."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from tessera.runtime.kube.election import Elector, LeaseWatch, Timing
from tessera.runtime.kube.port import LEASES, KubeClient
from tessera.wire.kube.objects import Lease

from .conftest import Backend

QUICK = Timing(duration=8, deadline=5.0, retry=0.2)


async def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Poll until the condition holds."""
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


class Office:
    """A lease in a test's namespace, candidates for it, and tasks that end with it."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client, self.lease, self._namespace = client, f"{namespace}/lock", namespace
        self.tasks: list[asyncio.Task[None]] = []

    def stand(self, name: str) -> tuple[Elector, asyncio.Task[None]]:
        elector = Elector(self.client, self.lease, name, timing=QUICK)
        self.tasks.append(asyncio.ensure_future(elector.run()))
        return elector, self.tasks[-1]

    def watch(self) -> LeaseWatch:
        watch = LeaseWatch(self.client, self.lease, period=0.1)
        self.tasks.append(asyncio.ensure_future(watch.run()))
        return watch

    async def held(self) -> Lease:
        return await self.client.get(LEASES, "lock", Lease, namespace=self._namespace)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def play(backend: Backend, scene: Callable[[Office], object]) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            office = Office(await stack.enter_async_context(backend.connect()), backend.namespace)
            stack.push_async_callback(office.close)
            await scene(office)  # type: ignore[misc]

    asyncio.run(main())


def test_a_lease_is_taken_renewed_and_released(backend: Backend) -> None:
    async def scene(office: Office) -> None:
        elector, running = office.stand("a")
        await until(lambda: elector.leading, "leading")
        first = await office.held()
        assert first.spec.holder_identity == elector.identity
        assert first.spec.lease_duration_seconds == 8
        renewed = first
        while renewed.spec.renew_time == first.spec.renew_time:
            renewed = await office.held()
        assert renewed.spec.acquire_time == first.spec.acquire_time
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        released = await office.held()
        assert not released.spec.holder_identity
        assert not elector.leading

    play(backend, scene)


def test_the_next_takes_over_and_the_watch_tells_the_terms_apart(backend: Backend) -> None:
    async def scene(office: Office) -> None:
        watch = office.watch()
        a, running = office.stand("host-1")
        await until(lambda: watch.holds("host-1"), "the watch sees host-1")
        first = watch.term
        b, _ = office.stand("host-10")
        assert not watch.holds("host-10")
        running.cancel()
        await until(lambda: watch.holds("host-10"), "the watch sees host-10")
        assert not watch.holds("host-1")
        assert b.leading
        assert not a.leading
        second = watch.term
        assert first is not None
        assert second is not None
        assert (first.holder, second.holder) == (a.identity, b.identity)
        assert second.transitions == first.transitions + 1

    play(backend, scene)


def test_a_dead_holder_is_replaced_after_its_duration_and_not_before(backend: Backend) -> None:
    async def scene(office: Office) -> None:
        body = {
            "metadata": {"name": "lock", "namespace": backend.namespace},
            "spec": {
                "holderIdentity": "dead_1",
                "leaseDurationSeconds": 1,
                "renewTime": "2099-01-01T00:00:00.000000Z",  # its clock was ahead; nobody compares with it
                "leaseTransitions": 4,
            },
        }
        await office.client.create(LEASES, body, Lease, namespace=backend.namespace)
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        elector, _ = office.stand("a")
        await until(lambda: elector.leading, "leading")
        assert loop.time() - began >= 1
        assert (await office.held()).spec.lease_transitions == 5

    play(backend, scene)
