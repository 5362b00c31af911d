"""Events are accepted, counted and cut on both API servers."""

import asyncio
from contextlib import suppress
from typing import Any

from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.events import EventKind, Recorder, Subject, subject_of
from tessera.runtime.kube.port import EVENTS, GPUS, Select
from tessera.wire.kube.objects import Meta

from .conftest import Backend


def test_first_events_series_and_long_notes_are_accepted(backend: Backend) -> None:
    async def scene() -> list[dict[str, Any]]:
        async with backend.connect() as client:
            recorder = Recorder(client, "scheduler", "host-1")
            running = asyncio.ensure_future(recorder.run())
            pod = Subject("Pod", "a" * 253, "u1", backend.namespace)
            for note in ("full", "x" * 5000, "é" * 700):
                recorder.record(pod, EventKind.WARNING, "NotPlaced", note)
            await recorder.flush()
            recorder.record(pod, EventKind.WARNING, "NotPlaced", "full")
            await recorder.flush()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert (recorder.counts.failed, recorder.counts.written) == (0, 4)
            return list((await client.list(EVENTS, dict, Select(namespace=backend.namespace))).items)

    events = {event["note"][:4]: event for event in asyncio.run(scene())}
    assert set(events) == {"full", "xxxx", "éééé"}
    assert events["full"]["series"]["count"] == 2
    assert "series" not in events["xxxx"] or events["xxxx"]["series"] is None
    assert len(events["xxxx"]["note"].encode()) <= 1024


def test_an_event_about_an_object_of_the_cluster_is_accepted(backend: Backend) -> None:
    name = backend.name("gpu")

    async def scene() -> list[dict[str, Any]]:
        async with backend.connect() as client:
            recorder = Recorder(client, "agent", "host-1", clock=ManualClock())
            running = asyncio.ensure_future(recorder.run())
            recorder.record(subject_of(GPUS, Meta(name=name, uid="u")), EventKind.NORMAL, "Found", "a new device")
            await recorder.flush()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert recorder.counts.failed == 0
            return list((await client.list(EVENTS, dict, Select(namespace="default"))).items)

    assert [event["note"] for event in asyncio.run(scene()) if event["regarding"]["name"] == name] == [
        "a new device"
    ]
