"""Killed at any point, mended by the next call: nothing runs on, nothing stays booked, no file is left."""

import os
import signal

import pytest

from local.world import World, until
from tessera.runtime.proc import identity_of
from tessera.wire.shm import parse_region

BEFORE_THE_COMMAND = (
    "before-link-machine.conf",
    "after-link-machine.conf",
    "before-link-ledger.db",
    "after-link-ledger.db",
    "before-insert",
    "after-insert",
    "after-commit",
    "after-region",
    "after-fork",
    "after-record",
)
AFTER_THE_COMMAND = ("before-release", "after-revoke", "before-commit-release", "after-release")


def _is_clean(world: World) -> None:
    """A whole device is free, which it is only when nobody holds any part of it, and no odd file is left."""
    again = world.run("-q", "--devices", "1", "--", "true").end()
    assert (again.code, again.err) == (0, "")
    assert (world.runs(), world.regions) == ([], [])
    assert not [path.name for path in world.state.rglob("*") if ".new" in path.name]


@pytest.mark.parametrize("point", BEFORE_THE_COMMAND)
def test_killed_before_the_command_runs_it_never_does(world: World, point: str) -> None:
    mark = world.state.parent / "mark"
    call = world.run("-q", "--memory", "1Gi", "--", "touch", str(mark), TESSERA_TEST_CRASH_AT=point)
    assert call.wait() == -signal.SIGKILL, "the point was reached"
    _is_clean(world)
    assert not mark.exists()


def test_killed_just_after_the_start_the_command_ends_too(world: World) -> None:
    call = world.run("-q", "--memory", "1Gi", "--", "cat", TESSERA_TEST_CRASH_AT="after-start")
    assert call.wait() == -signal.SIGKILL
    until(lambda: not world.runs(), "the child has ended and its share is free")
    _is_clean(world)


@pytest.mark.parametrize("point", AFTER_THE_COMMAND)
def test_killed_while_giving_back_it_is_given_back(world: World, point: str) -> None:
    mark = world.state.parent / "mark"
    call = world.run("-q", "--memory", "1Gi", "--", "touch", str(mark), TESSERA_TEST_CRASH_AT=point)
    assert call.wait() == -signal.SIGKILL
    assert mark.exists(), "the command ran to its end"
    _is_clean(world)


def test_before_the_share_is_given_back_nobody_gets_anything_of_it_any_more(world: World) -> None:
    call = world.run("-q", "--devices", "1", "--", "true", TESSERA_TEST_CRASH_AT="after-revoke")
    assert call.wait() == -signal.SIGKILL
    (path,) = world.state.glob("sim/*/regions/*.region")
    assert [device.memory_limit for device in parse_region(path.read_bytes()).devices] == [0]


def test_a_killed_supervisor_takes_its_command_along(world: World, tenant: object) -> None:
    call = world.run("-q", "--memory", "8Gi", "--name", "gone", "--", str(tenant))
    child = int(call.say("pid"))
    assert call.say("alloc 8192") == "0"
    identity = identity_of(child)
    assert identity is not None
    os.kill(call.pid, signal.SIGKILL)
    until(lambda: identity_of(child) != identity, "the command is dead")
    assert world.named("gone") is None
    _is_clean(world)


def test_what_a_killed_supervisors_command_left_keeps_the_share_and_the_limit(
    world: World, tenant: object
) -> None:
    fifo = world.state.parent / "fifo"
    os.mkfifo(fifo)
    call = world.run("-q", "--memory", "8Gi", "--name", "half", "--", "sh", "-c", f"{tenant} < {fifo} & read line")
    with fifo.open("w") as told:
        print("pid\nalloc 1024", file=told, flush=True)
        left = int(call.hear())
        assert call.hear() == "0"
        os.kill(call.pid, signal.SIGKILL)
        until(lambda: (world.named("half") or {})["state"] == "unwatched", "it shows as unwatched")
        (run,) = world.runs()
        assert run["devices"][0]["memory_used_mib"] == 1024
        assert world.run("--", "true").end().code == 1, "the device is not whole while somebody holds a part"
        print("alloc 7168\nbytes 1", file=told, flush=True)
        assert (call.hear(), call.hear()) == ("0", "2"), "its limit still holds"
        os.kill(left, signal.SIGKILL)
    until(lambda: world.named("half") is None, "the last process has ended and its share is free")
    _is_clean(world)


def test_a_waiter_who_is_killed_leaves_the_queue(world: World) -> None:
    holder = world.run("-q", "--", "cat")
    until(lambda: len(world.runs()) == 1, "the device is taken")
    waiter = world.run("--wait", "--", "true")
    until(lambda: len(world.runs()) == 2, "somebody waits")
    os.kill(waiter.pid, signal.SIGKILL)
    waiter.wait()
    assert [run["state"] for run in world.runs()] == ["running"]
    holder.end()
    _is_clean(world)
