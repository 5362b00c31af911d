"""What the scheduler logs is enough for a simulation to replay what its cluster was asked for."""

import json
import logging

import pytest

from scheduler.test_process import World, play
from scheduler.world import GIB, share
from tessera.runtime.kube.port import PODS
from tessera.wire.decisionlog import read_log


def test_the_log_tells_of_every_pod_that_asked_in_a_form_that_is_read_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="tessera.scheduler")

    async def scenario(world: World) -> None:
        first = await world.pod("first", share(20 * GIB))
        second = await world.pod("second", share(20 * GIB))
        await world.filter(first, "n0")
        await world.bind(first, "n0")
        assert (await world.filter(second, "n0"))["NodeNames"] == []
        await world.api.delete(PODS, "first", namespace="team", grace_seconds=0)
        await world.pass_time(1)

    play(scenario, n0=1)
    fields = [
        {
            "time": record.created,
            "logger": "scheduler",
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        for record in caplog.records
    ]
    told = [line for line in fields if line["message"] in ("bound", "refused", "ended")]
    assert [(line["message"], line["pod"]) for line in told] == [
        ("bound", "team/first"),
        ("refused", "team/second"),
        ("ended", "team/first"),
    ]
    found = read_log("log", "\n".join(json.dumps({**line, "time": "2026-01-02T03:04:05Z"}) for line in told))
    assert [one.pod.name for one in found.pods] == ["first", "second"]
    assert [one.stays for one in found.pods] == [0, None]
    request = found.pods[1].pod.request
    assert request is not None
    assert [claim.share for claim in request.claims] == [share(20 * GIB).share]
