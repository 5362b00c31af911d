"""Another share for a run while it runs: room, use, a kill at any moment. Real processes, the simulated driver."""

import os
import signal
from pathlib import Path

import pytest

from local.world import Call, Ended, World, until
from tessera.runtime.region import load_region
from tessera.wire.shm import Region

OK, OUT_OF_MEMORY = "0", "2"
CRASHES = ("before-resize", "after-tighten", "before-commit-resize", "after-commit-resize", "after-resize")
AFTER_THE_COMMIT = CRASHES[3:]


@pytest.fixture
def run(world: World, tenant: Path) -> Call:
    """A run of 8 GiB and 30 % with 1 GiB in use."""
    call = world.run("-q", "--memory", "8Gi", "--compute", "30%", "--name", "it", "--", str(tenant))
    assert call.say("alloc 1024") == OK
    return call


def _regions(world: World) -> list[Region]:
    return [load_region(path) for path in world.state.glob("**/regions/*.region")]


def _in_force(world: World) -> tuple[int, int]:
    """MiB and milli that the only region enforces."""
    (region,) = _regions(world)
    (device,) = region.devices
    return (device.memory_limit or 0) >> 20, device.compute_limit_milli


def _booked(world: World) -> tuple[int, int]:
    """MiB and milli that the ledger has for the only run, as ps shows it."""
    (run,) = world.runs()
    (share,) = run["devices"]
    return share["memory_limit_mib"], share["compute_limit_milli"]


def _resize(world: World, *words: str, **variables: str) -> Ended:
    return world.call("resize", "it", *words, **variables)


def test_a_run_that_grows_allocates_more_at_once(world: World, run: Call) -> None:
    assert run.say("alloc 8192") == OUT_OF_MEMORY
    ended = _resize(world, "--memory", "9Gi")
    assert (ended.code, ended.out) == (0, "it: device 0 (NVIDIA A100-SXM4-80GB): 9,216 MiB, 30% compute\n")
    assert run.say("alloc 8192") == OK
    assert run.say("bytes 1") == OUT_OF_MEMORY
    assert (_in_force(world), _booked(world)) == ((9216, 300), (9216, 300))


def test_a_run_that_shrinks_is_refused_what_it_had_and_others_get_it(world: World, run: Call) -> None:
    assert _resize(world, "--memory", "2Gi", "--compute", "10%").code == 0
    assert run.say("alloc 1025") == OUT_OF_MEMORY
    assert run.say("alloc 1024") == OK
    (device,) = world.devices()
    assert (device["memory_allocated_mib"], device["compute_allocated_milli"]) == (2048, 100)
    asked, given = (line for line in world.call("explain", "it").out.splitlines() if "10%" in line)
    assert "10% of its compute and 2,048 MiB" in asked
    assert "2,048 MiB, 10% of the compute" in given


def test_a_shrink_below_what_is_in_use_is_refused_with_the_figure(world: World, run: Call) -> None:
    ended = _resize(world, "--memory", "1000Mi")
    assert ended.code == 1
    assert "1,024 MiB of device 0 are in use, and 1,000 MiB would be allowed" in ended.err
    assert "would fit: --memory 1024Mi" in ended.err
    assert (_in_force(world), _booked(world)) == ((8192, 300), (8192, 300))
    assert run.say("alloc 7168") == OK
    assert _resize(world, "--memory", "1024Mi").code == 1, "now 8 GiB are in use"


def test_what_the_dead_held_stands_in_nobodys_way(world: World, tenant: Path) -> None:
    world.run("-q", "--memory", "8Gi", "--name", "it", "--", "sh", "-c", f"echo alloc 4096 | {tenant}; exec cat")
    until(lambda: [r for r in _regions(world) if r.devices[0].peak_bytes == 4 << 30], "the tenant has been")
    until(lambda: _resize(world, "--memory", "1Gi").code == 0, "it is dead, and nothing is in use")


def test_a_growth_that_does_not_fit_is_refused_with_what_would(world: World, run: Call) -> None:
    neighbour = world.run("-q", "--memory", "40Gi", "--compute", "50%", "--", "cat")
    until(lambda: len(world.runs()) == 2, "the neighbour has its share")
    ended = _resize(world, "--memory", "60Gi", "--compute", "60%")
    assert ended.code == 1
    assert "device 0 has 40,960 MiB of memory for it, what others hold taken off; 61,440 MiB is more" in ended.err
    assert "device 0 has 50% of compute for it" in ended.err
    assert "would fit: --memory 40960Mi --compute 50%" in ended.err
    assert _resize(world, "--memory", "40960Mi", "--compute", "50%").code == 0
    assert run.say("alloc 39936") == OK
    assert _resize(world, "--memory", "40961Mi").code == 1
    assert neighbour.end().code == 0


def test_who_waits_comes_before_who_grows(world: World, run: Call) -> None:
    waiter = world.run("--memory", "75Gi", "--wait", "--name", "later", "--", "true")
    assert "waits" in waiter.hear_error()
    ended = _resize(world, "--memory", "9Gi")
    assert ended.code == 1
    assert "others wait for that device since before: later" in ended.err
    assert _resize(world, "--memory", "5Gi").code == 0, "who gives back is in nobody's way"
    assert waiter.end().code == 0, "5 GiB and 75 are all of it"
    assert _resize(world, "--memory", "9Gi").code == 0


def test_what_is_not_said_stays(world: World, tenant: Path) -> None:
    world.run("-q", "--compute", "25%", "--name", "it", "--", "cat")
    until(lambda: [r for r in world.runs() if r["state"] == "running"], "it runs")
    assert _resize(world, "--compute", "30%").code == 0
    assert _booked(world) == (20480, 300), "a quarter of the memory came with a quarter of the compute"
    assert _resize(world, "--memory", "1Gi").code == 0
    assert _booked(world) == (1024, 300)


def test_a_run_that_had_the_whole_device_can_let_others_in(world: World) -> None:
    world.run("-q", "--name", "it", "--", "cat")
    until(lambda: [r for r in world.runs() if r["state"] == "running"], "it runs")
    assert world.run("--memory", "1Gi", "--", "true").end().code == 1
    assert _resize(world, "--memory", "50%").code == 0
    assert _booked(world) == (40960, 1000)
    assert world.run("-q", "--memory", "1Gi", "--", "true").end().code == 1, "all of the compute is taken still"
    assert _resize(world, "--compute", "50%").code == 0
    assert world.run("-q", "--memory", "1Gi", "--", "true").end().code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --memory, --compute or both"),
        (("--memory", "8"), "is a number without a unit"),
        (("--compute", "0%", "--memory", "lots"), "is not between 0.1% and 100%"),
    ],
)
def test_a_wish_that_means_nothing_changes_nothing(
    world: World, run: Call, words: tuple[str, ...], message: str
) -> None:
    ended = _resize(world, *words)
    assert (ended.code, message in ended.err) == (2, True)
    assert (_in_force(world), _booked(world)) == ((8192, 300), (8192, 300))


def test_a_run_that_waits_and_one_that_is_none_are_named(world: World, run: Call) -> None:
    world.run("--wait", "--name", "later", "--", "true").hear_error()
    waiting = world.call("resize", "later", "--memory", "1Gi")
    assert (waiting.code, "run later waits and holds nothing yet" in waiting.err) == (1, True)
    none = world.call("resize", "nobody", "--memory", "1Gi")
    assert (none.code, "there are: it, later" in none.err) == (2, True)


def test_killed_at_any_moment_ledger_and_region_agree(world: World, run: Call) -> None:
    """Never more in force than is booked, and the same as soon as anybody, here ps, has looked."""
    booked = (8192, 300)
    for point, gib, percent in [(point, *turn) for point in CRASHES for turn in ((12, 20), (4, 40))]:
        words = ("--memory", f"{gib}Gi", "--compute", f"{percent}%")  # one grows, the other shrinks
        assert _resize(world, *words, TESSERA_TEST_CRASH_AT=point).code == -signal.SIGKILL
        booked = (gib << 10, percent * 10) if point in AFTER_THE_COMMIT else booked
        memory, compute = _in_force(world)
        assert (memory <= booked[0], compute <= booked[1]) == (True, True), point
        assert _booked(world) == booked, point
        assert _in_force(world) == booked, point


def test_the_supervisor_puts_in_force_what_a_killed_call_booked(world: World, run: Call) -> None:
    ended = _resize(world, "--memory", "12Gi", TESSERA_TEST_CRASH_AT="after-commit-resize")
    assert ended.code == -signal.SIGKILL
    until(lambda: _in_force(world) == (12288, 300), "nobody but the supervisor has looked")


def test_a_run_whose_supervisor_is_gone_is_resized_by_the_call_alone(world: World, tenant: Path) -> None:
    fifo = world.state.parent / "fifo"
    os.mkfifo(fifo)
    call = world.run("-q", "--memory", "8Gi", "--name", "it", "--", "sh", "-c", f"{tenant} < {fifo} & read line")
    with fifo.open("w") as told:
        print("alloc 1024", file=told, flush=True)
        assert call.hear() == OK
        os.kill(call.pid, signal.SIGKILL)
        until(lambda: (world.named("it") or {})["state"] == "unwatched", "it shows as unwatched")
        assert _resize(world, "--memory", "2Gi").code == 0
        print("alloc 1024\nbytes 1", file=told, flush=True)
        assert (call.hear(), call.hear()) == (OK, OUT_OF_MEMORY)


def test_a_limit_that_comes_later_holds_launches_and_one_that_goes_lets_them_go(
    world: World, tenant: Path
) -> None:
    call = world.run("-q", "--memory", "8Gi", "--name", "it", "--", str(tenant))
    assert call.say("work 10") == OK
    (region,) = _regions(world)
    assert region.devices[0].compute.throttled == 0
    assert _resize(world, "--compute", "20%").code == 0
    assert call.say("work 30") == OK
    (region,) = _regions(world)
    held = region.devices[0].compute.throttled
    assert held > 0
    until(lambda: _regions(world)[0].generation > region.generation, "the supervisor ticks what is limited now")
    assert _resize(world, "--compute", "100%").code == 0
    assert call.say("work 30") == OK
    assert _regions(world)[0].devices[0].compute.throttled == held


def test_a_paused_run_launches_nothing_until_it_is_resumed(world: World, run: Call) -> None:
    paused = world.call("pause", "it")
    assert (paused.code, paused.out) == (0, "it: paused; 'tessera resume it' lets it go on\n")
    (shown,) = world.runs()
    assert (shown["state"], shown["paused"]) == ("paused", True)
    assert "it is paused" in world.call("explain", "it").out
    assert run.process.stdin
    run.process.stdin.write("work 1\n")
    run.process.stdin.flush()
    assert _regions(world)[0].devices[0].compute.finished_ns == 0
    assert _resize(world, "--memory", "9Gi").code == 0, "a pause does not keep anybody from a resize"
    assert _regions(world)[0].paused
    assert world.call("resume", "it").code == 0
    assert run.hear() == OK
    assert world.runs()[0]["state"] == "running"


def test_a_paused_run_ends_as_any_other(world: World, run: Call) -> None:
    assert world.call("pause", "it").code == 0
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    assert world.runs() == []


@pytest.mark.parametrize("spoil", ["truncate", "remove", "replace"])
def test_a_region_that_its_run_spoils_ends_the_run(world: World, tenant: Path, spoil: str) -> None:
    """A process that could go on past its limits, or be watched by nobody, is ended; nothing stays booked."""
    how = {"truncate": ": >", "remove": "rm", "replace": "touch x; mv x"}[spoil]
    script = f"{how} $TESSERA_REGION; exec {tenant}"
    call = world.run("-q", "--memory", "8Gi", "--", "sh", "-c", f"cd {world.state.parent}; {script}")
    ended = call.wait()
    assert ended == 1
    assert call.process.stderr
    assert "was removed, replaced or cut off" in call.process.stderr.read()
    assert (world.runs(), world.regions) == ([], [])
