"""The shell of a process: what runs in it, what happens when a part dies, how it ends.

::

    async def scheduler(shell: Shell) -> None:
        client = ...
        shell.on_end("client", client.close)
        shell.supervise("pods", informer.run, Fate.RESTART)
        shell.on_end("server", (await serve(...)).close)

    sys.exit(run(scheduler, name="scheduler"))

What was started last ends first: a server drains before the tasks that answer its requests are cancelled, and the
client closes after them. SIGTERM and SIGINT end the process in that order; a second one ends it at once.

Exit codes: 0 ended as asked; 1 a vital part died, or something outside is missing; 2 wrong input.
"""

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final

from tessera.core.errors import InputErrors, TesseraError
from tessera.runtime.clock import SYSTEM, Clock
from tessera.runtime.log import logger

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0
GRACE_SECONDS: Final = 25.0
"""For the whole end, below the 30 s that Kubernetes gives before SIGKILL."""

_log: Final = logger("shell")


class Fate(StrEnum):
    """What the death of a task means. Returning without an exception is no death, unless the task is vital."""

    RESTART = "restart"
    """It is started again after a growing pause."""
    END = "end"
    """The process cannot go on without it: when it dies or returns, the process ends with code 1."""


class Shell:
    """See the module. ``stopping`` is set when the end begins: readiness should be false from then on.

    ``deaths`` counts per task, for metrics.
    """

    def __init__(self, *, clock: Clock = SYSTEM, chance: random.Random | None = None) -> None:
        self.clock = clock
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self.deaths: dict[str, int] = {}
        self._chance = chance or random.Random()  # noqa: S311 - spreads restarts, guards nothing
        self._endings: list[tuple[str, Callable[[], Awaitable[None]]]] = []

    def supervise(self, name: str, task: Callable[[], Awaitable[None]], fate: Fate = Fate.END) -> None:
        """Run ``task`` until the process ends; ``name`` stands in the line that tells of its death."""
        running = asyncio.get_running_loop().create_task(self._supervise(name, task, fate), name=name)

        async def cancel() -> None:
            running.cancel()
            await asyncio.wait([running])

        self._endings.append((name, cancel))

    def on_end(self, name: str, ending: Callable[[], Awaitable[None]]) -> None:
        """Call ``ending`` when the process ends, before everything that was registered earlier."""
        self._endings.append((name, ending))

    def ending(self) -> str | None:
        """A readiness check: why not, once the end has begun."""
        return "the process is ending" if self.stopping.is_set() else None

    def stop(self, exit_code: int = 0) -> None:
        """Begin the end; the first exit code that is not 0 stays."""
        self.exit_code = self.exit_code or exit_code
        self.stopping.set()

    async def end(self, grace: float = GRACE_SECONDS) -> None:
        """Undo everything in reverse order, within ``grace`` seconds; what takes longer is left behind."""
        self.stopping.set()
        deadline = self.clock.monotonic() + grace
        for name, ending in reversed(self._endings):
            left = max(0.1, deadline - self.clock.monotonic())
            await self._ending(name, ending, left)
        self._endings.clear()

    async def _ending(self, name: str, ending: Callable[[], Awaitable[None]], left: float) -> None:
        try:
            await asyncio.wait_for(ending(), left)
        except TimeoutError:
            _log.error("left behind", task=name, seconds=round(left, 1))
        except Exception as error:  # noqa: BLE001 - the supervisor; the other parts must end too
            _log.error("ended badly", task=name, error=describe(error), trace=error)

    async def _supervise(self, name: str, task: Callable[[], Awaitable[None]], fate: Fate) -> None:
        pause = FIRST_PAUSE
        while True:
            began = self.clock.monotonic()
            try:
                await task()
            except Exception as error:  # noqa: BLE001 - the one supervisor of the process
                self._died(name, error, fate)
            else:
                if fate is Fate.END and not self.stopping.is_set():
                    self._died(name, None, fate)
                return
            if fate is Fate.END:
                return
            if self.clock.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await self.clock.sleep(pause * self._chance.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _died(self, name: str, error: Exception | None, fate: Fate) -> None:
        self.deaths[name] = self.deaths.get(name, 0) + 1
        told = "returned" if error is None else describe(error)
        expected = error is None or isinstance(error, TesseraError)
        _log.error("died", trace=None if expected else error, task=name, error=told, then=fate.value)
        if fate is Fate.END:
            self.stop(1)


def describe(error: BaseException) -> str:
    """An error in one line: our own by their text, others with their type."""
    return str(error) if isinstance(error, TesseraError) else f"{type(error).__name__}: {error}"


def run(app: Callable[[Shell], Awaitable[None]], *, name: str, uvloop: bool = False) -> int:
    """Start ``app``, wait for a signal or a death, end; the exit code. Logging must be configured.

    ``app`` returns once everything is started. ``uvloop`` takes that event loop where it is installed.
    """
    with asyncio.Runner(loop_factory=_uvloop() if uvloop else None) as runner:
        return runner.run(_live(app, name))


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - only the processes that want it pay for it
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _live(app: Callable[[Shell], Awaitable[None]], name: str) -> int:
    shell = Shell()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_stray)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _signalled, shell, number)
    starting = asyncio.ensure_future(app(shell))
    stopping = loop.create_task(shell.stopping.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            _log.info("started", process=name)
            await stopping
    except InputErrors as error:
        _log.error("wrong input", process=name, problems=[str(problem) for problem in error.problems])
        shell.stop(2)
    except Exception as error:  # noqa: BLE001 - the supervisor
        expected = isinstance(error, TesseraError)
        _log.error("cannot start", trace=None if expected else error, process=name, error=describe(error))
        shell.stop(1)
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
    await shell.end()
    _log.info("ended", process=name, code=shell.exit_code)
    return shell.exit_code


def _signalled(shell: Shell, number: signal.Signals) -> None:
    if shell.stopping.is_set():
        _log.warning("ended at once", signal=number.name)
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        return
    _log.info("stopping", signal=number.name)
    shell.stop()


def _stray(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    _log.error("stray failure", trace=error, what=context.get("message", ""))
