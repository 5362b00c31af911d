"""The scheduler's log read back as pods: order, lifetimes, what is passed over, what is wrong."""

import json
from typing import Any

from builders import a_share
from tessera.core.request import Claim, Dialect, Request
from tessera.wire.decisionlog import read_log
from tessera.wire.kube.request import encode_request

HALF = encode_request(Request((Claim(("main",), 1, a_share(8192, 500)),)), Dialect.NATIVE)


def line(message: str, uid: str, second: int, **fields: Any) -> str:
    """A line of the scheduler's log."""
    time = f"2026-01-02T03:04:{second:02d}.000Z"
    return json.dumps(
        {"time": time, "level": "info", "logger": "scheduler", "message": message, "uid": uid, **fields}
    )


def asked(message: str, uid: str, second: int) -> str:
    return line(message, uid, second, pod=f"team/{uid}", request=HALF, cpu_milli=4000)


def test_pods_come_in_the_order_in_which_they_were_first_decided_on_each_once():
    text = "\n".join(
        (asked("refused", "b", 0), asked("bound", "a", 1), asked("bound", "b", 2), line("ended", "b", 30))
    )
    found = read_log("log", text)
    assert not found.problems
    assert [(one.pod.name, one.stays, one.source) for one in found.pods] == [
        ("b", 28, "log:1"),
        ("a", None, "log:2"),
    ]
    pod = found.pods[0].pod
    assert (pod.namespace, pod.cpu_milli) == ("team", 4000)
    assert pod.request is not None
    assert pod.request.claims[0].share == a_share(8192, 500)


def test_other_lines_and_what_is_no_line_are_passed_over():
    noise = [
        "panic: not json",
        '{"cut": ',
        json.dumps({"logger": "agent", "message": "bound", "uid": "x", "request": HALF}),
        line("ready", "", 0),
        line("ended", "never-bound", 1),
    ]
    found = read_log("log", "\n".join([*noise, asked("bound", "a", 2)]))
    assert [one.pod.name for one in found.pods] == ["a"]


def test_pods_whose_request_is_not_told_are_counted():
    found = read_log("log", "\n".join((line("bound", "old", 0, pod="team/old"), asked("bound", "a", 1))))
    assert (len(found.pods), found.skipped) == (1, 1)


def test_a_log_of_something_else_is_a_problem():
    (problem,) = read_log("log", "Jan 2 systemd[1]: Started.\n").problems
    assert "tells of no pod" in problem.message


def test_a_request_that_cannot_be_read_is_a_problem_with_its_line():
    text = "\n".join((asked("bound", "a", 0), line("bound", "b", 1, pod="team/b", request='{"v": 9}')))
    (problem,) = read_log("log", text).problems
    assert (problem.source, problem.object, problem.field) == ("log:2", "Pod/team/b", "request")
