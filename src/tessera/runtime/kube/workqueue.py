"""A queue of keys to reconcile: what changes a hundred times is looked at once.

A key is in the queue at most once and worked on by at most one worker; a key that is added while it is worked on
comes again afterwards, so that no change is missed. Failures come again after a pause that doubles per key.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from tessera.core.errors import TesseraError
from tessera.runtime.clock import SYSTEM, Clock
from tessera.runtime.log import logger

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 300.0

_log: Final = logger("workqueue")


class WorkQueue(Generic[K]):
    """See the module. ``work(key)`` returns in how many seconds to look again, or ``None``.

    It may raise :class:`TesseraError` (a conflict, a server away): that is logged and tried again. Any other
    exception ends :meth:`run`; the key is kept, and the supervisor that starts ``run`` again goes on with it.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        name: str,
        workers: int = 4,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
    ) -> None:
        self._work, self._name, self._workers, self._clock = work, name, workers, clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._ready: dict[K, None] = {}
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, tuple[float, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Keys that wait for a worker; those that wait for a time are not counted."""
        return len(self._ready) + len(self._again)

    def add(self, key: K) -> None:
        """Have ``key`` looked at, now or as soon as it is not being looked at. Ignored once closed."""
        if self._closed:
            return
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have ``key`` looked at in ``seconds``; of several times the earliest holds."""
        due = self._clock.monotonic() + seconds
        waiting = self._timers.get(key)
        if self._closed or (waiting and waiting[0] <= due):
            return
        if waiting:
            waiting[1].cancel()
        task = asyncio.get_running_loop().create_task(self._add_later(key, seconds))
        self._timers[key] = (due, task)

    async def run(self) -> None:
        """Work until :meth:`close` was called and everything that waits for a worker is done."""
        workers = [asyncio.ensure_future(self._worker()) for _ in range(self._workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def close(self) -> None:
        """Take no more keys and forget those that wait for a time; :meth:`run` returns when the rest is done."""
        self._closed = True
        for _, task in self._timers.values():
            task.cancel()
        self._timers.clear()
        self._changed.set()

    async def _worker(self) -> None:
        while (key := await self._next()) is not None:
            self._running.add(key[0])
            done = False
            try:
                await self._once(key[0])
                done = True
            finally:
                self._running.discard(key[0])
                if key[0] in self._again or not done:
                    self._again.discard(key[0])
                    self._ready[key[0]] = None
                self._changed.set()

    async def _next(self) -> tuple[K] | None:
        """The key that waits longest, in a tuple since a key may be falsy; ``None`` at the end."""
        while not self._ready:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        return (key,)

    async def _once(self, key: K) -> None:
        try:
            again = await self._work(key)
        except TesseraError as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause = self._pause(failures)
            _log.warning(
                "failed",
                queue=self._name,
                key=str(key),
                error=str(error),
                failures=failures,
                again=round(pause, 1),
            )
            self.add_after(key, pause)
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add_after(key, again)

    def _pause(self, failures: int) -> float:
        longest = min(FIRST_PAUSE * float(1 << min(failures - 1, 16)), LONGEST_PAUSE)
        return longest * self._chance.uniform(0.75, 1.0)

    async def _add_later(self, key: K, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._timers.pop(key, None)
        self.add(key)
