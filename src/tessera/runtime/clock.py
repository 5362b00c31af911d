"""Time as an argument: what waits or measures takes a :class:`Clock`, so that tests own the time.

Durations and deadlines use ``monotonic`` only. ``wall`` jumps and is skewed between machines: it is for time
stamps that people or certificates read, never for a comparison with another machine's.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

SETTLE_ROUNDS: Final = 50
"""Turns of the event loop that a :class:`ManualClock` gives to the tasks that it woke."""


class Clock(Protocol):
    """Seconds, all of it."""

    def monotonic(self) -> float:
        """Seconds since some moment, never going back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC), as this machine believes."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of the monotonic clock."""
        ...


class SystemClock:
    """This machine's clocks."""

    def monotonic(self) -> float:
        """``CLOCK_BOOTTIME``: unlike ``CLOCK_MONOTONIC`` it counts the time in which the machine was suspended,
        in which a lease runs out all the same.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """``CLOCK_REALTIME``."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(seconds)


SYSTEM: Final = SystemClock()


class ManualClock:
    """A clock that stands still until :meth:`advance`; for tests and for the simulator.

    Sleepers wake in the order of their deadlines, each at exactly its own, and whatever they start runs before the
    next one wakes.
    """

    def __init__(self, wall: float = 1_800_000_000.0, monotonic: float = 1000.0) -> None:
        self._wall = wall
        self._now = monotonic
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        """The virtual monotonic clock."""
        return self._now

    def wall(self) -> float:
        """The virtual wall clock."""
        return self._wall

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass on both clocks."""
        target = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._move(due)
            future.set_result(None)
            await settle()
        self._move(target)
        await settle()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forth or back, as an administrator or NTP does; durations are untouched."""
        self._wall += seconds

    def _move(self, to: float) -> None:
        self._wall += to - self._now
        self._now = to


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """What ``work`` gives within ``seconds`` of ``clock``; else ``TimeoutError``, ``work`` being cancelled."""
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"not done within {seconds:g} s")
        return task.result()
    finally:
        for part in (task, alarm):
            part.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


async def settle(rounds: int = SETTLE_ROUNDS) -> None:
    """Let every task that is ready run until it waits for something."""
    for _ in range(rounds):
        await asyncio.sleep(0)
