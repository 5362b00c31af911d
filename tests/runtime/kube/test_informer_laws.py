"""Whatever happens on the server and on the way to it, in any order: the informer ends up with what is there."""

import asyncio
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.kube.watching import NAMESPACE, Told
from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.informer import LONGEST_PAUSE_SECONDS, Informer
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError
from tessera.wire.kube.objects import KubePod

NAMES = st.sampled_from(["a", "b", "c"])
ERRORS = st.sampled_from(
    [
        ApiError(410, "Expired", "too old"),
        ApiError(429, "TooManyRequests", "later"),
        ApiError(500, "InternalError", "oops"),
        ApiError(504, "Timeout", "Too large resource version"),
        ApiError(403, "Forbidden", "not yet"),
        ConnectionLostError("reset"),
    ]
)


class FollowingTheServer(RuleBasedStateMachine):
    """Three names, pages of one object, every fault that the server in memory knows, and time in small steps."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.told = Told()

    @initialize(streaming=st.booleans(), present=st.sets(NAMES))
    def start(self, streaming: bool, present: set[str]) -> None:
        async def begin() -> None:
            self.clock = ManualClock()
            self.cluster = MemoryCluster(wall=self.clock.wall, page=1)
            for name in sorted(present):
                await self._make(name)
            self.informer = Informer(
                self.cluster, PODS, KubePod, clock=self.clock, rng=random.Random(1), streaming=streaming
            )
            self.informer.handlers.append(self.told)
            self.task = asyncio.create_task(self.informer.run())
            self.refreshes: list[asyncio.Task[None]] = []

        self.runner.run(begin())

    async def _make(self, name: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"containers": []}}
        await self.cluster.create(PODS, body, KubePod, namespace=NAMESPACE)

    def _has(self, name: str) -> bool:
        return self.cluster.history.find(PODS, NAMESPACE, name) is not None

    def _on_server(self, step):
        """Runs a write on the server, whatever the way to it is like."""

        async def write() -> None:
            away, self.cluster._away = self.cluster._away, False
            faults, self.cluster._faults = self.cluster._faults, []
            await step()
            self.cluster._away, self.cluster._faults = away, faults

        self.runner.run(write())

    @rule(name=NAMES)
    def make_or_drop(self, name: str) -> None:
        async def step() -> None:
            if self._has(name):
                await self.cluster.delete(PODS, name, namespace=NAMESPACE, grace_seconds=0)
            else:
                await self._make(name)

        self._on_server(step)

    @rule(name=NAMES, value=st.sampled_from("xyz"))
    def change(self, name: str, value: str) -> None:
        async def step() -> None:
            if self._has(name):
                body = {"metadata": {"labels": {"l": value}}}
                await self.cluster.patch(PODS, name, body, KubePod, namespace=NAMESPACE)

        self._on_server(step)

    @rule(name=NAMES)
    def make_again(self, name: str) -> None:
        async def step() -> None:
            if self._has(name):
                await self.cluster.delete(PODS, name, namespace=NAMESPACE, grace_seconds=0)
            await self._make(name)

        self._on_server(step)

    @rule(error=st.none() | ERRORS)
    def end_streams(self, error) -> None:
        self.runner.run(_at_once(self.cluster.end_streams, error))

    @rule()
    def forget_history(self) -> None:
        self.runner.run(_at_once(self.cluster.compact))

    @rule()
    def bookmark(self) -> None:
        self.runner.run(_at_once(self.cluster.bookmark))

    @rule(away=st.booleans())
    def go_or_come(self, away: bool) -> None:
        async def step() -> None:
            self.cluster.away = away

        self.runner.run(step())

    @rule(versions=st.integers(0, 20))
    def lag(self, versions: int) -> None:
        self.cluster.replay = versions

    @rule(verb=st.sampled_from(["list", "watch"]), error=ERRORS, after=st.integers(0, 2), times=st.integers(1, 3))
    def refuse(self, verb: str, error, after: int, times: int) -> None:
        self.cluster.fail(Fault(verb, error=error, after=after, times=times))

    @rule()
    def refresh(self) -> None:
        async def step() -> None:
            self.refreshes.append(asyncio.create_task(self.informer.refresh()))

        self.runner.run(step())

    @rule(seconds=st.sampled_from([0.0, 0.3, 7.0]))
    def pass_time(self, seconds: float) -> None:
        self.runner.run(self.clock.advance(seconds))

    @invariant()
    def what_was_told_adds_up_to_the_store(self) -> None:
        if hasattr(self, "informer"):
            assert not self.task.done(), "an informer never ends"
            assert self.told.now == dict(self.informer.store)

    def teardown(self) -> None:
        async def calm() -> None:
            self.cluster.mend()
            await self.clock.advance(2 * LONGEST_PAUSE_SECONDS)
            listed = await self.cluster.list(PODS, KubePod)
            assert dict(self.informer.store) == {pod.metadata.key: pod for pod in listed.items}
            assert self.told.now == dict(self.informer.store)
            assert all(task.done() for task in self.refreshes)
            self.task.cancel()
            await asyncio.wait({self.task})

        if hasattr(self, "informer"):
            self.runner.run(calm())
        self.runner.close()


async def _at_once(step, *arguments) -> None:
    step(*arguments)


TestFollowingTheServer = FollowingTheServer.TestCase
TestFollowingTheServer.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
