"""The work queue: once at a time, never forgotten, later when it failed."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.port import ApiError
from tessera.runtime.kube.workqueue import WorkQueue

Work = Callable[[str], Awaitable[float | None]]


class Bench:
    """A worker that notes what it was given, and may be held up."""

    def __init__(self, **options: int) -> None:
        self.clock = ManualClock(monotonic=0.0)
        self.seen: list[tuple[str, float]] = []
        self.now: set[str] = set()
        self.most = 0
        self.gate: asyncio.Event | None = None
        self.answer: Work | None = None
        self.queue = WorkQueue(self.work, name="t", clock=self.clock, chance=random.Random(1), **options)

    async def work(self, key: str) -> float | None:
        assert key not in self.now, "the same key twice at a time"
        self.now.add(key)
        self.most = max(self.most, len(self.now))
        self.seen.append((key, self.clock.monotonic()))
        try:
            if self.gate:
                await self.gate.wait()
            return await self.answer(key) if self.answer else None
        finally:
            self.now.discard(key)

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.seen]


def play(bench: Bench, scene: Callable[[WorkQueue[str]], Awaitable[None]]) -> Bench:
    """Run a scene beside the queue, then let the queue finish."""

    async def main() -> None:
        running = asyncio.ensure_future(bench.queue.run())
        await scene(bench.queue)
        await bench.queue.close()
        await asyncio.wait_for(running, 10)

    asyncio.run(main())
    return bench


def test_a_key_that_is_added_often_is_worked_on_once() -> None:
    async def scene(queue: WorkQueue[str]) -> None:
        for key in ("a", "b", "a", "a", "b"):
            queue.add(key)
        assert len(queue) == 2
        await settle()

    assert play(Bench(), scene).keys == ["a", "b"]


def test_a_key_that_is_added_while_it_is_worked_on_comes_once_more() -> None:
    bench = Bench()

    async def scene(queue: WorkQueue[str]) -> None:
        bench.gate = asyncio.Event()
        queue.add("a")
        await settle()
        queue.add("a")
        queue.add("a")
        await settle()
        assert bench.keys == ["a"]
        bench.gate.set()
        await settle()

    assert play(bench, scene).keys == ["a", "a"]


def test_no_more_keys_at_a_time_than_workers() -> None:
    bench = Bench(workers=3)

    async def scene(queue: WorkQueue[str]) -> None:
        bench.gate = asyncio.Event()
        for key in "abcdefgh":
            queue.add(key)
        await settle()
        assert bench.keys == ["a", "b", "c"]
        bench.gate.set()
        await settle()

    assert play(bench, scene).keys == list("abcdefgh")
    assert bench.most == 3


def test_a_failure_comes_again_after_a_pause_that_doubles_and_success_forgets_it() -> None:
    bench = Bench()

    async def fail_thrice(key: str) -> float | None:
        if len(bench.seen) in (1, 2, 3, 5):
            raise ApiError(409, "Conflict", "stale")
        return None

    async def scene(queue: WorkQueue[str]) -> None:
        bench.answer = fail_thrice
        queue.add("a")
        await bench.clock.advance(5)
        queue.add("a")
        await bench.clock.advance(5)

    times = [at for _, at in play(bench, scene).seen]
    assert len(times) == 6
    pauses = [times[1], times[2] - times[1], times[3] - times[2], times[5] - times[4]]
    for pause, longest in zip(pauses, (0.1, 0.2, 0.4, 0.1), strict=True):
        assert 0.75 * longest <= pause <= longest + 1e-9


def test_a_key_that_fails_for_days_is_still_tried_every_five_minutes() -> None:
    bench = Bench()

    async def fail(key: str) -> float | None:
        raise ApiError(500, "InternalError", "disk")

    async def scene(queue: WorkQueue[str]) -> None:
        bench.answer = fail
        queue.add("a")
        await bench.clock.advance(86400)
        count = len(bench.seen)
        await bench.clock.advance(301)
        assert len(bench.seen) > count

    assert len(play(bench, scene).seen) < 86400 / 225 + 20


def test_work_may_ask_to_look_again_later() -> None:
    bench = Bench()

    async def later(key: str) -> float | None:
        return 30.0 if len(bench.seen) == 1 else None

    async def scene(queue: WorkQueue[str]) -> None:
        bench.answer = later
        queue.add("a")
        await bench.clock.advance(29)
        assert len(bench.seen) == 1
        await bench.clock.advance(100)

    assert play(bench, scene).seen == [("a", 0.0), ("a", 30.0)]


def test_of_several_times_the_earliest_holds_and_an_added_key_does_not_wait() -> None:
    async def scene(queue: WorkQueue[str]) -> None:
        queue.add_after("a", 20)
        queue.add_after("a", 10)
        queue.add_after("a", 15)
        queue.add_after("b", 50)
        queue.add("b")
        await bench.clock.advance(30)

    bench = Bench()
    assert play(bench, scene).seen == [("b", 0.0), ("a", 10.0)]


def test_at_the_end_what_waits_is_worked_on_and_what_is_for_later_is_not() -> None:
    bench = Bench(workers=1)

    async def scene(queue: WorkQueue[str]) -> None:
        bench.gate = asyncio.Event()
        for key in "abc":
            queue.add(key)
        queue.add_after("later", 5)
        await settle()
        queue.add("a")
        await queue.close()
        queue.add("too late")
        queue.add_after("too late", 1)
        bench.gate.set()

    assert play(bench, scene).keys == ["a", "b", "c", "a"]


def test_a_fault_of_ours_ends_the_run_and_the_key_is_kept_for_the_next() -> None:
    bench = Bench()

    async def broken(key: str) -> float | None:
        if len(bench.seen) == 1:
            raise KeyError("ours")
        return None

    async def main() -> None:
        bench.answer = broken
        bench.queue.add("a")
        with pytest.raises(KeyError):
            await bench.queue.run()
        running = asyncio.ensure_future(bench.queue.run())
        await settle()
        await bench.queue.close()
        await running

    asyncio.run(main())
    assert bench.keys == ["a", "a"]


def test_a_cancelled_run_keeps_the_key_that_it_was_at() -> None:
    bench = Bench()

    async def main() -> None:
        bench.gate = asyncio.Event()
        bench.queue.add("a")
        running = asyncio.ensure_future(bench.queue.run())
        await settle()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(bench.queue) == 1
        assert not bench.now

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_after_every_change_a_key_is_looked_at(seed: int) -> None:
    """The law of level-triggered work: the last look at a key begins after its last change."""
    chance, bench = random.Random(seed), Bench(workers=2)
    changed: dict[str, int] = {}
    looked: dict[str, int] = {}
    tick = iter(range(10**9))

    async def look(key: str) -> float | None:
        looked[key] = next(tick)
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        if chance.random() < 0.2:
            raise ApiError(500, "InternalError", "x")
        return None

    async def scene(queue: WorkQueue[str]) -> None:
        bench.answer = look
        for _ in range(200):
            key = chance.choice("abcd")
            changed[key] = next(tick)
            queue.add(key)
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        await bench.clock.advance(60)

    play(bench, scene)
    assert changed.keys() == looked.keys()
    assert all(looked[key] > changed[key] for key in changed)
