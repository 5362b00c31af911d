"""A clock that tests own: order of waking, jumps, deadlines."""

import asyncio

import pytest

from tessera.runtime.clock import SYSTEM, ManualClock, within


def test_sleepers_wake_in_the_order_of_their_deadlines_each_at_its_own() -> None:
    async def scene() -> list[tuple[str, float]]:
        clock, woken = ManualClock(monotonic=0.0), list[tuple[str, float]]()

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((name, clock.monotonic()))

        tasks = [asyncio.ensure_future(sleeper(*x)) for x in (("late", 3.0), ("early", 1.0), ("never", 9.0))]
        await clock.advance(5)
        for task in tasks:
            task.cancel()
        return woken

    assert asyncio.run(scene()) == [("early", 1.0), ("late", 3.0)]


def test_a_sleeper_that_sleeps_again_is_woken_again_in_one_advance() -> None:
    async def scene() -> list[float]:
        clock, ticks = ManualClock(monotonic=0.0), list[float]()

        async def ticker() -> None:
            while True:
                await clock.sleep(2)
                ticks.append(clock.monotonic())

        task = asyncio.ensure_future(ticker())
        await clock.advance(7)
        task.cancel()
        return ticks

    assert asyncio.run(scene()) == [2.0, 4.0, 6.0]


def test_a_jump_moves_the_wall_clock_only() -> None:
    clock = ManualClock(wall=100.0, monotonic=7.0)
    clock.jump(-40)
    assert (clock.wall(), clock.monotonic()) == (60.0, 7.0)


def test_work_that_takes_longer_than_it_may_is_cancelled() -> None:
    async def scene() -> bool:
        clock, cancelled = ManualClock(), asyncio.Event()

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        task = asyncio.ensure_future(within(clock, 3, hang()))
        await clock.advance(2.9)
        assert not task.done()
        await clock.advance(0.2)
        with pytest.raises(TimeoutError, match="3 s"):
            await task
        return cancelled.is_set()

    assert asyncio.run(scene())


def test_work_that_is_done_in_time_gives_its_result() -> None:
    async def answer() -> int:
        return 42

    assert asyncio.run(within(SYSTEM, 60, answer())) == 42
