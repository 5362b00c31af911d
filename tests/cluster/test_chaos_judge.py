"""The judge of a chaos run objects to every law that is broken, and to nothing else: histories written by hand."""

import itertools
import json

import pytest

from cluster.chaos.alarms import alarms, warnings
from cluster.chaos.history import GPU_NODES, PODS, Change, Clock
from cluster.chaos.judge import Judge, story
from cluster.chaos.run import Report, Settings, judge_failures
from cluster.chaos.strikes import SPARED_SECONDS, Strike, plan
from cluster.chaos.watchman import Seen, contradictions

TICKET = "tessera.dev/ticket-1"


def seconds(last: int = 1000) -> Clock:
    """Revision n was there after n seconds."""
    return Clock(tuple((float(n), n) for n in range(last)))


def inventory(revision, *devices, node="n"):
    """Devices by uuid, each with 1,000 MiB; a name in brackets is broken."""
    facts = [
        {"uuid": name.strip("()"), "memoryMib": 1000, **({"healthy": False} if name[0] == "(" else {})}
        for name in devices
    ]
    return Change(revision, GPU_NODES, node, {"status": {"devices": facts}})


def record(name="p", memory=600, compute=0, *, device="g", **facts):
    """What a binding writes for a pod of one container."""
    text = {
        "v": 1,
        "pod": f"uid-{name}",
        "node": "n",
        "containers": {"main": [{"uuid": device, "memory": [memory, memory], "compute": [compute, compute]}]},
        "charges": [{"uuid": device, "memory": memory, "compute": compute, **facts}],
    }
    return json.dumps(text)


def a_pod(revision, name="p", *, node="", text=None, phase="Pending", asks=600, ticket=0, started=False, uid=""):
    """A version of a pod that asks for so many MiB of one device."""
    claim = {"containers": ["main"], "count": 1, "share": {"memory": {"mib": asks}, "compute": {"milli": 0}}}
    annotations = {"tessera.dev/request": json.dumps({"v": 1, "claims": [claim]})}
    if text is not None:
        annotations["tessera.dev/allocation"] = text
    limits = {TICKET: str(ticket)} if ticket else {}
    status = {"phase": phase, **({"containerStatuses": [{"name": "main"}]} if started else {})}
    value = {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], "nodeName": node},
        "status": status,
    }
    return Change(revision, PODS, name, value)


def bound(revision, name="p", **facts):
    """The version that binds it, with its allocation unless another is given."""
    pod = {key: facts.pop(key) for key in ("ticket", "asks", "phase", "started") if key in facts}
    pod.setdefault("asks", facts.get("memory", 600))
    return a_pod(revision, name, node="n", text=facts.pop("text", record(name, **facts)), **pod)


def gone(revision, name="p"):
    return Change(revision, PODS, name, None)


def verdict(*changes):
    judge = Judge(seconds())
    judge.feed(changes)
    return [(one.rule, one.revision) for one in judge.violations]


OVER = "no device is over-booked"
RIGHT = {
    "it fits exactly": [bound(3, "a", memory=400), bound(4, "b", memory=600)],
    "one has ended": [bound(3, "a"), bound(4, "a", phase="Succeeded"), bound(5, "b")],
    "one is gone": [bound(3, "a"), gone(4, "a"), bound(5, "b")],
    "another of that name": [bound(3, "a"), gone(4, "a"), a_pod(5, "a", uid="uid-2"), bound(6, "b")],
    "an exclusive one is alone": [bound(3, "a", exclusive=True), gone(4, "a"), bound(5, "b")],
    "a ticket again, later": [
        bound(3, "a", ticket=5),
        bound(4, "a", ticket=5, started=True),
        bound(5, "b", memory=100, ticket=5),
    ],
    "a pod that waits": [a_pod(3), a_pod(4)],
    "it broke a moment ago": [inventory(10, "(g)"), bound(29)],
}
WRONG = {
    "memory": ([bound(3, "a"), bound(4, "b", memory=401)], OVER),
    "compute": ([bound(3, "a", memory=1, compute=600), bound(4, "b", memory=1, compute=401)], OVER),
    "slots": ([bound(3, "a", memory=1, slots=60), bound(4, "b", memory=1, slots=41)], OVER),
    "beside an exclusive one": ([bound(3, "a", memory=1, exclusive=True), bound(4, "b", memory=1)], OVER),
    "an exclusive one beside": ([bound(3, "a", memory=1), bound(4, "b", memory=1, exclusive=True)], OVER),
    "written before": ([a_pod(4, text=record())], "an allocation is only ever written with the binding"),
    "written after": (
        [bound(3, text=record(memory=600)), bound(4, text=record(memory=599))],
        "an allocation is only ever written with the binding",
    ),
    "without one": ([a_pod(4, node="n")], "who is bound has an allocation"),
    "of another pod": ([bound(4, text=record("other"))], "an allocation is of its pod and node"),
    "moved": ([bound(3), a_pod(4, node="m", text=record())], "a binding is for ever"),
    "another size": ([bound(4, asks=700)], "an allocation is what was asked for"),
    "elsewhere": ([inventory(3, "h", node="m"), bound(4, device="h")], "a pod has devices of its node"),
    "broken for long": ([inventory(3, "(g)"), bound(24)], "nobody is placed on a broken device"),
    "lost for long": ([inventory(3), bound(24)], "nobody is placed on a broken device"),
    "a ticket twice": (
        [bound(3, "a", memory=1, ticket=5), bound(4, "b", memory=1, ticket=5)],
        "a ticket waits once on a node",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_has_nothing_against_what_is_right(name):
    assert verdict(inventory(1, "g"), *RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_objects_to_what_is_wrong_at_its_revision(name):
    changes, rule = WRONG[name]
    assert verdict(inventory(1, "g"), *changes) == [(rule, changes[-1].revision)]


def test_what_is_booked_is_what_live_pods_hold():
    judge = Judge(seconds())
    over = bound(4, "b", memory=300, phase="Failed")
    judge.feed([inventory(1, "g", "h"), bound(3, "a", memory=200, compute=50), over])
    assert judge.booked() == {"g": (200, 50), "h": (0, 0)}


def test_the_story_of_a_device_is_that_of_its_pods():
    changes = [inventory(1, "g"), a_pod(2, "other"), bound(3, "a"), gone(4, "a"), bound(5, "b")]
    lines = [line.split(": ", 1)[1] for line in story("g", changes, seconds(), until=4)]
    assert lines == ["n g", "a uid-a Pending  on n g 600/0", "a gone"]


def test_strikes_follow_from_the_seed_and_spare_who_has_just_come_back():
    victims = ("a", "b", "c")
    strikes = plan(7, 200, victims, 1.0)
    assert strikes == plan(7, 200, victims, 1.0)
    assert strikes != plan(8, 200, victims, 1.0)
    assert sum(not strike.stall for strike in strikes) == 200
    for victim in victims:
        own = [strike for strike in strikes if strike.victim == victim]
        assert len(own) > 40
        assert all(later.at >= sooner.end + SPARED_SECONDS for sooner, later in itertools.pairwise(own))


def test_a_region_that_allows_something_else_than_the_record_is_told():
    record_ = {"containers": {"main": [{"uuid": "g", "memory": [100, 200]}]}}
    right, wrong = Seen("u", "main", (("g", 200),)), Seen("u", "main", (("g", 201),))
    stranger = Seen("v", "main", (("g", 200),))
    assert contradictions({right}, {"u": record_}) == []
    assert [text[:11] for text in contradictions({wrong, stranger}, {"u": record_})] == [
        "pod u, main",
        "pod v, main",
    ]


def test_an_error_in_a_log_and_an_alarm_about_nothing_are_told_with_their_number(tmp_path):
    lines = [
        {"level": "info", "message": "bound"},
        {"level": "warning", "message": "watch lost"},
        {"level": "warning", "message": "ungated", "pod": "chaos/a"},
        {"level": "warning", "message": "ungated", "pod": "chaos/b"},
    ]
    log = tmp_path / "agent.log"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "Traceback: it ended\n")
    found = alarms({"agent": log, "webhook": tmp_path / "none.log"})
    assert [text.split(": {")[0] for text in found] == [
        "agent: ungated, 2 times",
        "agent: Traceback: it ended, 1 times",
    ]
    assert "chaos/b" in found[0]
    assert warnings({"agent": log}) == {"ungated": 2, "watch lost": 1}


@pytest.mark.parametrize(
    ("at", "reason", "code", "blamed"),
    [
        (29, "UnexpectedAdmissionError", None, False),
        (31, "UnexpectedAdmissionError", None, True),  # 21 s after the agent was back
        (7, "UnexpectedAdmissionError", None, True),  # before it was killed
        (15, "UnexpectedAdmissionError tessera: no allocation", None, True),
        (15, "StartError tessera: the node agent does not answer", None, False),
        (15, "", 77, True),
        (500, "Chaos", None, False),
    ],
)
def test_who_is_blamed_for_a_pod_that_failed(at, reason, code, blamed):
    """The agent is killed 9 s after the begin and is back a second later."""
    ends = [{"name": "main", "state": {"terminated": {"exitCode": code}}}] if code else []
    failed = bound(at, phase="Failed")
    failed.value["status"] |= {"reason": reason, "containerStatuses": ends}
    judge = Judge(seconds())
    judge.feed([inventory(1, "g"), failed])
    report = Report(Settings(1, 1), (Strike(9.0, "agent", 1.0), Strike(480.0, "webhook-a", 9.0)))
    judge_failures(report, judge, 0.0)
    assert [one.subject for one in report.violations] == (["p"] if blamed else [])
    assert bool(report.excused) == (not blamed and reason != "Chaos")


def test_nobody_is_blamed_for_a_pod_that_was_deleted_before_it_started():
    failed = bound(15, phase="Failed")
    failed.value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    judge = Judge(seconds())
    judge.feed([inventory(1, "g"), failed])
    report = Report(Settings(1, 1), ())
    judge_failures(report, judge, 0.0)
    assert (report.violations, report.excused) == ([], [])
