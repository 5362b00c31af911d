"""Events: what reaches the API server, and what never waits for it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tessera.core.errors import TesseraError
from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.events import BURST, QUEUE, EventKind, Recorder, Subject, cut, subject_of
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import EVENTS, GPUS, ApiError, ConnectionLostError
from tessera.wire.kube.objects import Meta

POD = Subject("Pod", "a", "u1", "team")
WARNING = EventKind.WARNING


def play(scene: Callable[[Recorder, MemoryCluster, ManualClock], Awaitable[None]]) -> list[dict[str, Any]]:
    """The events on the server after a scene, in the order of their names' objects."""

    async def main() -> list[dict[str, Any]]:
        clock = ManualClock()
        server = MemoryCluster(wall=clock.wall)
        recorder = Recorder(server, "scheduler", "host-1", clock=clock, chance=random.Random(1))
        running = asyncio.ensure_future(recorder.run())
        await scene(recorder, server, clock)
        assert not running.done()
        running.cancel()
        return list((await server.list(EVENTS, dict)).items)

    return asyncio.run(main())


def test_an_event_says_who_what_why_and_when() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        recorder.record(POD, WARNING, "NotPlaced", "no device has 20,480 MiB", "Filter")
        await clock.advance(1)
        await recorder.flush()

    (event,) = play(scene)
    assert event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"].startswith("a.")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u1", "namespace": "team"}
    facts = {
        key: event[key] for key in ("type", "reason", "action", "note", "reportingController", "reportingInstance")
    }
    assert facts == {
        "type": "Warning",
        "reason": "NotPlaced",
        "action": "Filter",
        "note": "no device has 20,480 MiB",
        "reportingController": "tessera.dev/scheduler",
        "reportingInstance": "host-1",
    }
    assert event["eventTime"] == "2027-01-15T08:00:00.000000Z"
    assert "series" not in event


def test_an_event_on_an_object_without_namespace_stands_in_default() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        recorder.record(subject_of(GPUS, Meta(name="gpu-1", uid="u")), WARNING, "Unhealthy", "fell off the bus")
        await clock.advance(1)

    (event,) = play(scene)
    assert (event["metadata"]["namespace"], event["regarding"]["apiVersion"]) == (
        "default",
        "tessera.dev/v1alpha1",
    )


def test_what_repeats_is_one_event_with_a_count_that_is_written_once_a_minute() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for _ in range(300):
            recorder.record(POD, WARNING, "NotPlaced", "full")
            await clock.advance(1)
        await clock.advance(61)
        writes = [call.verb for call in server.calls]
        assert writes[0] == "create"
        assert 5 <= len(writes) <= 8

    (event,) = play(scene)
    assert event["series"]["count"] == 300


def test_repetitions_before_the_first_write_are_counted_in_it() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for _ in range(5):
            recorder.record(POD, WARNING, "NotPlaced", "full")
        await clock.advance(1)
        assert len(server.calls) == 1

    (event,) = play(scene)
    assert event["series"]["count"] == 5


def test_another_note_is_another_event_since_notes_never_change() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for note in ("largest free 2 MiB", "largest free 1 MiB"):
            recorder.record(POD, WARNING, "NotPlaced", note)
        await clock.advance(1)

    assert {event["note"] for event in play(scene)} == {"largest free 2 MiB", "largest free 1 MiB"}


def test_after_a_long_silence_the_same_is_a_new_event() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for _ in range(2):
            recorder.record(POD, WARNING, "NotPlaced", "full")
            await clock.advance(361)

    assert len(play(scene)) == 2


def test_an_object_that_draws_too_many_events_is_cut_off_and_the_others_are_not() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for number in range(100):
            recorder.record(POD, WARNING, "NotPlaced", f"reason {number}")
        recorder.record(Subject("Pod", "b", "u2", "team"), WARNING, "NotPlaced", "full")
        await clock.advance(1)
        assert recorder.counts.limited == 100 - BURST
        await clock.advance(30)
        recorder.record(POD, WARNING, "NotPlaced", "after a while")
        await clock.advance(1)

    events = play(scene)
    assert sum(event["regarding"]["name"] == "a" for event in events) == BURST + 1
    assert sum(event["regarding"]["name"] == "b" for event in events) == 1


def test_recording_never_waits_and_a_full_queue_loses_its_oldest() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for number in range(QUEUE + 5):
            recorder.record(Subject("Pod", f"p{number}", f"u{number}", "team"), WARNING, "NotPlaced", "full")
        assert recorder.counts.overflowed == 5
        for _ in range(40):
            await clock.advance(1)
        assert recorder.counts.written == QUEUE

    names = {event["regarding"]["name"] for event in play(scene)}
    assert "p4" not in names
    assert {"p5", f"p{QUEUE + 4}"} <= names


@pytest.mark.parametrize(
    "error", [ConnectionLostError("cut"), ApiError(500, "InternalError", "x"), ApiError(429, "T", "x")]
)
def test_a_server_that_fails_for_a_while_gets_it_later(error: TesseraError) -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        server.fail(Fault("create", EVENTS, error=error, times=3))
        recorder.record(POD, WARNING, "NotPlaced", "full")
        await clock.advance(10)

    assert len(play(scene)) == 1


def test_what_the_server_refuses_or_never_takes_is_given_up_and_counted() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        server.fail(Fault("create", EVENTS, error=ApiError(403, "Forbidden", "being terminated")))
        recorder.record(POD, WARNING, "NotPlaced", "one")
        await clock.advance(1)
        assert (recorder.counts.failed, len(server.calls)) == (1, 1)
        server.away = True
        recorder.record(POD, WARNING, "NotPlaced", "two")
        await clock.advance(120)
        assert recorder.counts.failed == 2
        server.away = False
        recorder.record(POD, WARNING, "NotPlaced", "three")
        await clock.advance(1)

    assert [event["note"] for event in play(scene)] == ["three"]


def test_a_count_that_could_not_be_written_is_owed_and_an_event_that_expired_is_made_again() -> None:
    async def scene(recorder: Recorder, server: MemoryCluster, clock: ManualClock) -> None:
        for _ in range(2):
            recorder.record(POD, WARNING, "NotPlaced", "full")
            await clock.advance(1)
        (event,) = (await server.list(EVENTS, dict)).items
        assert event["series"]["count"] == 2
        await server.delete(EVENTS, event["metadata"]["name"], namespace="team")
        server.fail(Fault("patch", EVENTS, error=ConnectionLostError("cut"), times=2))
        for _ in range(3):
            recorder.record(POD, WARNING, "NotPlaced", "full")
        await clock.advance(70)

    (event,) = play(scene)
    assert event["series"]["count"] == 3


def test_a_long_note_is_cut_between_words_at_the_apis_limit() -> None:
    assert cut("short") == "short"
    assert cut("x" * 1024) == "x" * 1024
    assert cut("aaa bbb ccc", 10) == "aaa bbb…"
    assert cut("aaaa bb cc", 9) == "aaaa…"
    assert cut("aaa bbb ccc", 9) == "aaa…"
    assert cut("é" * 10, 9) == "ééé…"
    long = cut("MiB größer " * 200)
    assert len(long.encode()) <= 1024
    assert long.endswith(("MiB…", "größer…"))
