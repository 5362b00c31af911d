"""`kubectl tessera resize`: what is written, and what it says of what came of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from scheduler.world import GIB, a_kube_pod, share
from tessera.cli.kubectl import answer_line
from tessera.cluster.resize import Answer, wish
from tessera.core.errors import InputErrors
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.events import EventKind, Recorder, Subject
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import PODS
from tessera.wire.kube.names import REQUEST, RESIZE
from tessera.wire.kube.request import decode_request, encode_request
from tessera.wire.kube.resize import decode_wishes, wished


class Desk:
    """An API server with one pod, and a person who wishes."""

    def __init__(self) -> None:
        self.clock, self.cluster = ManualClock(), MemoryCluster()

    async def pod(self, *claims: Any, node: str = "n0", **facts: Any) -> dict[str, Any]:
        raw = msgspec.to_builtins(a_kube_pod("p", *claims, **facts))
        meta = {key: raw["metadata"][key] for key in ("name", "namespace", "annotations", "labels")}
        spec = {"nodeName": node, "containers": raw["spec"]["containers"]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        made: dict[str, Any] = await self.cluster.create(PODS, body, dict, namespace="team")
        return made

    async def now(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.cluster.get(PODS, "p", dict, namespace="team")
        return found

    async def grant(self) -> None:
        """What the scheduler writes, as far as it is looked at."""
        annotations = (await self.now())["metadata"]["annotations"]
        request, dialect = decode_request(annotations[REQUEST])
        text = encode_request(wished(request, decode_wishes(annotations[RESIZE])), dialect)
        patch = {"metadata": {"annotations": {REQUEST: text}}}
        await self.cluster.patch(PODS, "p", patch, dict, namespace="team")

    def wishing(self, container: str | None = None, **said: str) -> "asyncio.Future[Answer]":
        asked = {"memory": None, "compute": None, **said}
        return asyncio.ensure_future(wish(self.cluster, self.clock, "team", "p", container=container, **asked))


def play(scenario: Callable[[Desk], Awaitable[None]]) -> None:
    asyncio.run(_play(scenario))


async def _play(scenario: Callable[[Desk], Awaitable[None]]) -> None:
    await scenario(Desk())


def test_a_wish_is_written_on_the_pod_and_granted_when_the_request_says_so() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.pod(share(8 * GIB, 300))
        asked = desk.wishing(memory="12Gi", compute="40%")
        await settle()
        assert json.loads((await desk.now())["metadata"]["annotations"][RESIZE]) == {
            "main": {"memory": "12Gi", "compute": "40%"}
        }
        assert not asked.done()
        await desk.grant()
        await desk.clock.advance(1)
        assert await asked == Answer("team/p", "main", granted=True)
        assert "granted; its node puts it in force" in answer_line(await asked)

    play(scenario)


def test_a_refusal_is_shown_as_the_pod_was_told() -> None:
    async def scenario(desk: Desk) -> None:
        made = await desk.pod(share(8 * GIB, 300))
        recorder = Recorder(desk.cluster, "scheduler", "x", clock=desk.clock)
        subject = Subject("Pod", "p", made["metadata"]["uid"], "team")
        writing = asyncio.ensure_future(recorder.run())
        recorder.record(subject, EventKind.WARNING, "ResizeRefused", "14,336 MiB are free", "Resizing")
        await recorder.flush()
        writing.cancel()
        asked = desk.wishing(memory="20Gi")
        await settle()
        await desk.clock.advance(10)
        assert await asked == Answer("team/p", "main", granted=False, note="14,336 MiB are free")
        assert "not granted: 14,336 MiB are free" in answer_line(await asked)

    play(scenario)


def test_a_wish_that_nobody_answers_says_so() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.pod(share(8 * GIB, 300))
        asked = desk.wishing(memory="20Gi")
        await settle()
        await desk.clock.advance(10)
        assert "does tessera-scheduler run?" in answer_line(await asked)

    play(scenario)


def test_what_was_wished_for_others_stays() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.pod(share(GIB, 100, containers="a"), share(GIB, 100, containers="b"))
        for container, said in (("a", {"memory": "2Gi"}), ("b", {"memory": "3Gi"}), ("a", {"compute": "20%"})):
            asked = desk.wishing(container, **said)
            await settle()
            await desk.clock.advance(10)
            await asked
        assert json.loads((await desk.now())["metadata"]["annotations"][RESIZE]) == {
            "a": {"memory": "2Gi", "compute": "20%"},
            "b": {"memory": "3Gi"},
        }

    play(scenario)


@pytest.mark.parametrize(
    ("claims", "node", "container", "message"),
    [
        ((), "n0", None, "holds no share of Tessera"),
        ((share(GIB, 100),), "", None, "waits for a node and holds nothing yet"),
        ((share(GIB, 100, containers="a"), share(GIB, 100, containers="b")), "n0", None, "name one with -c: a, b"),
        ((share(GIB, 100),), "n0", "side", "those are main"),
    ],
)
def test_a_pod_that_has_no_share_to_change_is_told_apart(
    claims: tuple[Any, ...], node: str, container: str | None, message: str
) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.pod(*claims, node=node)
        with pytest.raises(InputErrors, match=message):
            await desk.wishing(container, memory="2Gi")
        assert RESIZE not in ((await desk.now())["metadata"].get("annotations") or {})

    play(scenario)


def test_amounts_that_cannot_be_read_are_not_written() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.pod(share(GIB, 100))
        with pytest.raises(InputErrors, match="wishes memory 'lots' for main"):
            await desk.wishing(memory="lots")
        with pytest.raises(InputErrors, match="resize: is no pod in namespace team"):
            await wish(desk.cluster, desk.clock, "team", "q", container=None, memory="1Gi", compute=None)
        assert RESIZE not in (await desk.now())["metadata"]["annotations"]

    play(scenario)
