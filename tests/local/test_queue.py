"""Many at once, and those who wait."""

import os
import signal

from local.world import Call, World, until

MACHINE = "4xA100-SXM4-80GB"
CALLS = 50
FIT = 4 * 8
"""Eighths of four devices."""


def _say_and_hold(world: World, *options: str) -> list[Call]:
    """So many runs of an eighth of a device; each writes a line when it runs, and ends with its input."""
    world.machine = MACHINE
    words = ("-q", "--memory", "12.5%", "--compute", "12.5%", *options, "--", "sh", "-c", "echo runs; cat")
    return [world.run(*words) for _ in range(CALLS)]


def test_of_fifty_eighths_on_four_devices_exactly_thirty_two_run_and_the_others_are_told_why(world: World) -> None:
    calls = _say_and_hold(world)
    answers = [call.hear() for call in calls]
    assert answers.count("runs") == FIT
    taken = [(d["shares"], d["memory_free_mib"], d["compute_allocated_milli"]) for d in world.devices()]
    assert taken == [(8, 0, 1000)] * 4
    ended = [call.end() for call, answer in zip(calls, answers, strict=True) if answer != "runs"]
    assert [end.code for end in ended] == [1] * (CALLS - FIT)
    for end in ended:
        assert "4 devices short of memory (asked 10,240 MiB, largest free 0 MiB)" in end.err
        assert "held: sh-" in end.err
    for call, answer in zip(calls, answers, strict=True):
        if answer == "runs":
            assert call.end().code == 0
    assert (world.runs(), world.regions) == ([], [])


def test_with_wait_all_fifty_run(world: World) -> None:
    calls = _say_and_hold(world, "--wait")
    until(lambda: len(world.runs()) == CALLS, "all have come")
    states = [run["state"] for run in world.runs()]
    assert states.count("waiting") == CALLS - FIT
    for call in calls:  # all before any is waited for: who came last in this list may have come first in the queue
        call.close_input()
    assert [call.end().code for call in calls] == [0] * CALLS
    assert world.runs() == []


def test_who_waits_says_once_for_what_and_runs_when_it_can(world: World) -> None:
    holder = world.run("-q", "--name", "holder", "--", "cat")
    until(lambda: world.named("holder"), "the device is taken")
    waiter = world.run("--wait", "--memory", "1Gi", "--name", "next", "--", "echo", "at last")
    assert "next (simulated) waits: 1 device held exclusively by another run" in waiter.hear_error()
    account = world.call("explain", "next", "-o", "json").json
    assert account["run"]["state"] == "waiting"
    assert account["waits_for"] == ["1 device held exclusively by another run"]
    assert account["holders"][0].startswith("holder (")
    holder.end()
    ended = waiter.end()
    assert (ended.code, ended.out) == (0, "at last\n")
    assert "waits" not in ended.err


def test_waiting_ends_with_its_time(world: World) -> None:
    holder = world.run("-q", "--name", "holder", "--", "cat")
    until(lambda: world.named("holder"), "the device is taken")
    ended = world.run("--wait", "--timeout", "200ms", "--name", "next", "--", "true").end()
    assert ended.code == 1
    assert "no room for next" in ended.err
    assert [run["name"] for run in world.runs()] == ["holder"]
    holder.end()


def test_ctrl_c_leaves_the_queue(world: World) -> None:
    holder = world.run("-q", "--name", "holder", "--", "cat")
    until(lambda: world.named("holder"), "the device is taken")
    waiter = world.run("--wait", "--name", "next", "--", "true")
    until(lambda: world.named("next"), "it waits")
    assert "waits" in waiter.hear_error()
    os.kill(waiter.pid, signal.SIGINT)
    assert waiter.end().code == 130
    assert [run["name"] for run in world.runs()] == ["holder"]
    holder.end()


def test_what_can_never_fit_does_not_wait(world: World) -> None:
    ended = world.run("--wait", "--devices", "2", "--", "true").end()
    assert ended.code == 1
    assert "waiting would not help" in ended.err
