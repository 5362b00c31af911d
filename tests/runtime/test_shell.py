"""The life of a process: order of ending, deaths, signals, exit codes."""

import asyncio
import itertools
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

from tessera.core.errors import UnavailableError
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.shell import Fate, Shell


async def forever() -> None:
    """A task that only ends by being cancelled."""
    await asyncio.Event().wait()


def test_what_started_last_ends_first() -> None:
    async def scene() -> list[str]:
        ended, shell = list[str](), Shell()

        def ending(name: str) -> Callable[[], Awaitable[None]]:
            async def end() -> None:
                ended.append(name)

            return end

        async def task() -> None:
            try:
                await forever()
            finally:
                ended.append("task")

        shell.on_end("client", ending("client"))
        shell.supervise("task", task)
        shell.on_end("server", ending("server"))
        await settle()
        await shell.end()
        return ended

    assert asyncio.run(scene()) == ["server", "task", "client"]


def test_an_ending_that_fails_or_hangs_does_not_keep_the_others_from_ending() -> None:
    async def scene() -> bool:
        shell, ended = Shell(), asyncio.Event()

        async def last() -> None:
            ended.set()

        async def fails() -> None:
            raise OSError("boom")

        shell.on_end("last", last)
        shell.on_end("fails", fails)
        shell.on_end("hangs", forever)
        await shell.end(grace=0.05)
        return ended.is_set()

    assert asyncio.run(scene())


def test_a_task_that_dies_is_started_again_after_a_pause_that_grows() -> None:
    async def scene() -> list[float]:
        clock, starts = ManualClock(monotonic=0.0), list[float]()
        shell = Shell(clock=clock, chance=random.Random(1))

        async def task() -> None:
            starts.append(clock.monotonic())
            raise UnavailableError("the world is not there", "wait")

        shell.supervise("task", task, Fate.RESTART)
        await clock.advance(10)
        assert shell.deaths == {"task": len(starts)}
        assert not shell.stopping.is_set()
        await shell.end()
        return starts

    starts = asyncio.run(scene())
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    # 0.5, 1, 2, 4 s, each +-20 %: the fifth start comes at 6.0 s to 9.0 s, the sixth after 12.4 s at the earliest
    assert len(pauses) == 4
    assert all(0.8 * 0.5 * 2**n <= pause <= 1.2 * 0.5 * 2**n for n, pause in enumerate(pauses))


def test_after_a_long_life_the_pause_is_short_again() -> None:
    async def scene() -> float:
        clock, starts = ManualClock(monotonic=0.0), list[float]()
        shell = Shell(clock=clock, chance=random.Random(1))

        async def task() -> None:
            starts.append(clock.monotonic())
            if len(starts) == 5:
                await clock.sleep(100)
            raise UnavailableError("gone", "wait")

        shell.supervise("task", task, Fate.RESTART)
        await clock.advance(130)
        await shell.end()
        return starts[5] - (starts[4] + 100)

    assert asyncio.run(scene()) <= 0.6


def test_the_end_of_a_vital_task_ends_the_process() -> None:
    async def scene(task: object) -> tuple[bool, int]:
        shell = Shell()
        shell.supervise("vital", task, Fate.END)  # type: ignore[arg-type]
        await asyncio.wait_for(shell.stopping.wait(), 5)
        await shell.end()
        return shell.stopping.is_set(), shell.exit_code

    async def dies() -> None:
        raise RuntimeError("boom")

    async def returns() -> None:
        return

    assert asyncio.run(scene(dies)) == (True, 1)
    assert asyncio.run(scene(returns)) == (True, 1)


def test_a_task_that_may_end_does_not_end_the_process() -> None:
    async def scene() -> tuple[bool, dict[str, int]]:
        shell = Shell()

        async def returns() -> None:
            return

        shell.supervise("once", returns, Fate.RESTART)
        await settle()
        stopped = shell.stopping.is_set()
        await shell.end()
        return stopped, shell.deaths

    assert asyncio.run(scene()) == (False, {})


def test_readiness_ends_with_the_process() -> None:
    async def scene() -> tuple[str | None, str | None]:
        shell = Shell()
        before = shell.ending()
        shell.stop()
        return before, shell.ending()

    assert asyncio.run(scene()) == (None, "the process is ending")


PROGRAM = """
    import asyncio, sys
    from tessera.core.errors import InputErrors, Problem, UnavailableError
    from tessera.runtime.log import configure, logger
    from tessera.runtime.shell import run
    log = logger("t")
    async def closing(): log.info("closed")
    async def hanging(): log.info("hanging"); await asyncio.sleep(600)
    async def app(shell):
        what = sys.argv[1]
        if what == "input": raise InputErrors([Problem("--bind", "", "", "x", "is wrong", "mend it")])
        if what == "world": raise UnavailableError("no server", "start one")
        if what == "bug": raise RuntimeError("boom")
        shell.on_end("x", hanging if what == "hangs" else closing)
    configure("info", human=False)
    sys.exit(run(app, name="t", uvloop=sys.argv[2] == "uvloop"))
"""


def start(tmp_path: Path, what: str, loop: str = "uvloop") -> subprocess.Popen[str]:
    """A process of the program above."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return subprocess.Popen([sys.executable, str(path), what, loop], stderr=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], message: str) -> str:
    """What it logged up to the line with this message."""
    assert process.stderr
    seen = ""
    for line in process.stderr:
        seen += line
        if f'"message":"{message}"' in line:
            return seen
    raise AssertionError(f"never logged {message!r}: {seen}")


def test_sigterm_ends_a_process_in_order_on_either_loop(tmp_path: Path) -> None:
    for loop in ("asyncio", "uvloop"):
        process = start(tmp_path, "runs", loop)
        read_until(process, "started")
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=30)[1]
        assert process.returncode == 0
        assert told.index('"message":"stopping"') < told.index('"message":"closed"') < told.index('"ended"')


def test_a_second_signal_ends_a_process_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "hangs")
    read_until(process, "started")
    process.send_signal(signal.SIGINT)
    read_until(process, "hanging")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM


def test_exit_codes_tell_wrong_input_from_a_broken_world(tmp_path: Path) -> None:
    for what, code, told in (
        ("input", 2, "--bind: is wrong"),
        ("world", 1, "no server; start one"),
        ("bug", 1, "boom"),
    ):
        process = start(tmp_path, what)
        text = process.communicate(timeout=30)[1]
        assert (process.returncode, told in text) == (code, True), text
        assert ("Traceback" in text) == (what == "bug")
