"""The client over bytes that a script decides: what it sends, what it repeats, and how a watch ends."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from runtime.kube.scripted import Script, hangs, resets, says, streams
from tessera.runtime.kube import poster as poster_module
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig, ExecPlugin
from tessera.runtime.kube.exchange import Limits
from tessera.runtime.kube.port import (
    GPU_NODES,
    PODS,
    ApiError,
    ConnectionLostError,
    EventType,
    PatchType,
    Select,
    UnreachableError,
    WatchEvent,
)
from tessera.runtime.kube.slim import SlimClient
from tessera.runtime.kube.verbs import LONGEST_WAIT_SECONDS, TRIES
from tessera.wire.kube.objects import KubePod

Client = ApiClient | SlimClient
POD = {"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"}}
FIXED = {"token": "t"}
BUSY = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "later"}


class Waits:
    """A clock on which waiting takes no time, and is remembered."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return sum(self.waited)

    def wall(self) -> float:
        return 1_800_000_000.0

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


def aiohttp_client(config: ClusterConfig, clock: Waits) -> Client:
    quick = aiohttp.ClientTimeout(total=5, sock_connect=5, sock_read=0.2)
    return ApiClient(config, rng=random.Random(1), clock=clock, timeout=quick)


def slim_client(config: ClusterConfig, clock: Waits) -> Client:
    return SlimClient(config, rng=random.Random(1), clock=clock, limits=Limits(total=5, connect=5, silence=0.2))


class Making:
    """Which of the two clients the laws are run on."""

    client: Callable[[ClusterConfig, Waits], Client]


@pytest.fixture(autouse=True, params=[aiohttp_client, slim_client], ids=["aiohttp", "slim"])
def _made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Making, "client", staticmethod(request.param), raising=False)


class Talk:
    """A client, the script that it talks to, and how long it waited."""

    def __init__(self, script: Script, client: Client, clock: Waits) -> None:
        self.script, self.client, self.clock = script, client, clock


def talk(law: Callable[[Talk], Awaitable[None]], *answers: Any, **fields: Any) -> Talk:
    async def body() -> Talk:
        script, clock = Script(*answers), Waits()
        async with asyncio.timeout(20), script.serve() as address:
            config = ClusterConfig("test", address, **fields)
            client = Making.client(config, clock)
            try:
                await law(Talk(script, client, clock))
            finally:
                await client.close()
        return Talk(script, client, clock)

    return asyncio.run(body())


def one_call(*answers: Any, **fields: Any) -> Talk:
    async def law(t: Talk) -> None:
        await t.client.get(PODS, "a", KubePod, namespace="n")

    return talk(law, *answers, **fields)


async def watched(client: Client, as_: type = KubePod) -> list[WatchEvent[Any]]:
    return [event async for event in client.watch(PODS, as_, Select("n"), resource_version="5")]


# What is sent


def test_calls_are_addressed_as_the_api_has_it():
    async def law(t: Talk) -> None:
        client = t.client
        await client.get(GPU_NODES, "node/1", dict)
        await client.create(PODS, b"{}", dict, namespace="n", name="a", subresource="binding")
        await client.patch(PODS, "a", {}, dict, namespace="n", type_=PatchType.APPLY, field_manager="me")
        await client.patch(PODS, "a", [], dict, namespace="n", type_=PatchType.JSON, subresource="status")
        await client.delete(PODS, "a", namespace="n", uid="u", resource_version="7", grace_seconds=0)
        await client.list(PODS, dict, Select("n", "a=b,c in (d)", "spec.nodeName=x"))

    asked = talk(law, says(200, POD)).script.asked
    assert [(a.method, a.path) for a in asked] == [
        ("GET", "/apis/tessera.dev/v1alpha1/gpunodes/node%2F1"),
        ("POST", "/api/v1/namespaces/n/pods/a/binding"),
        ("PATCH", "/api/v1/namespaces/n/pods/a"),
        ("PATCH", "/api/v1/namespaces/n/pods/a/status"),
        ("DELETE", "/api/v1/namespaces/n/pods/a"),
        ("GET", "/api/v1/namespaces/n/pods"),
    ]
    assert asked[2].query == {"fieldManager": "me", "force": "true"}
    assert asked[2].headers["content-type"] == "application/apply-patch+yaml"
    assert asked[3].headers["content-type"] == "application/json-patch+json"
    options = {"preconditions": {"uid": "u", "resourceVersion": "7"}, "gracePeriodSeconds": 0}
    assert json.loads(asked[4].body) == options
    assert asked[5].query == {
        "limit": "500",
        "labelSelector": "a=b,c in (d)",
        "fieldSelector": "spec.nodeName=x",
    }


def test_connections_are_kept():
    async def law(t: Talk) -> None:
        for _ in range(5):
            await t.client.get(PODS, "a", dict, namespace="n")
            assert await t.client.post_raw("/x", b"{}") == (200, json.dumps(POD).encode())

    assert talk(law, says(200, POD)).script.connections == 2  # one for each road


def test_a_token_goes_with_every_call():
    assert one_call(says(200, POD), **FIXED).script.asked[0].headers["authorization"] == "Bearer t"


# Lists


def a_page(*names: str, more: str = "", version: str = "9") -> dict[str, Any]:
    items = [{"metadata": {"name": name}} for name in names]
    return {"metadata": {"resourceVersion": version, **({"continue": more} if more else {})}, "items": items}


GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "continue is too old"}


def test_pages_follow_their_token():
    async def law(t: Talk) -> None:
        listed = await t.client.list(PODS, KubePod)
        assert [pod.metadata.name for pod in listed.items] == ["a", "b", "c"]
        assert listed.resource_version == "9"

    asked = talk(law, says(200, a_page("a", "b", more="x")), says(200, a_page("c"))).script.asked
    assert [a.query.get("continue") for a in asked] == [None, "x"]


def test_the_next_page_is_asked_for_before_this_one_is_used():
    async def law(t: Talk) -> None:
        pages = t.client.pages(PODS, KubePod)
        await anext(pages)
        while len(t.script.asked) < 2:  # nobody has asked for more than the first; `talk` bounds the wait
            await asyncio.sleep(0)
        assert [pod.metadata.name async for page in pages for pod in page.items] == ["c"]

    talk(law, says(200, a_page("a", "b", more="x")), says(200, a_page("c")))


@pytest.mark.parametrize("second", [hangs, says(410, GONE)], ids=["silent", "refused"])
def test_whoever_stops_reading_pages_leaves_nothing_under_way(second):
    async def law(t: Talk) -> None:
        before = asyncio.all_tasks()
        pages = t.client.pages(PODS, KubePod)
        await anext(pages)
        while len(t.script.asked) < 2:
            await asyncio.sleep(0)
        await pages.aclose()
        left = asyncio.all_tasks() - before
        ours = [task for task in left if "_call" in repr(task.get_coro())]
        for _ in range(5):  # turns of the loop in which a cancelled call ends
            await asyncio.sleep(0)
        assert all(task.done() for task in ours)

    talk(law, says(200, a_page("a", "b", more="x")), second)


def test_a_list_that_expires_between_pages_is_begun_again():
    async def law(t: Talk) -> None:
        listed = await t.client.list(PODS, KubePod)
        assert [pod.metadata.name for pod in listed.items] == ["a", "c"]
        assert listed.resource_version == "11"

    first = says(200, a_page("a", "b", more="x"))
    talk(law, first, says(410, GONE), says(200, a_page("a", "c", version="11")))


def test_a_list_that_always_expires_is_given_up():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError, match="410 Expired"):
            await t.client.list(PODS, KubePod)

    talk(law, says(410, GONE))


def test_a_list_of_null_is_empty():
    async def law(t: Talk) -> None:
        assert (await t.client.list(PODS, KubePod)).items == ()

    talk(law, says(200, {"metadata": {"resourceVersion": "9"}, "items": None}))


# Failures


def test_a_failure_has_the_servers_code_reason_and_words():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError, match="409 Conflict: it was changed") as refused:
            await t.client.replace(PODS, "a", {}, dict, namespace="n")
        assert (refused.value.code, refused.value.reason) == (409, "Conflict")

    talk(law, says(409, {"code": 409, "reason": "Conflict", "message": "it was changed"}))


def test_a_failure_that_is_no_status_is_quoted_in_short():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError, match="403 Unknown: <html>") as refused:
            await t.client.get(PODS, "a", dict, namespace="n")
        assert len(str(refused.value)) < 350

    talk(law, says(403, b"<html>" + b"x" * 10_000))


def test_an_answer_that_is_not_what_it_should_be_is_unreadable_and_not_repeated():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError) as refused:
            await t.client.get(PODS, "a", KubePod, namespace="n")
        assert refused.value.reason == "Unreadable"

    assert len(talk(law, says(200, {"metadata": 7})).script.asked) == 1


@pytest.mark.parametrize("first", [says(500, {}), says(503, b"starting"), resets])
def test_a_read_is_repeated(first):
    t = one_call(first, says(200, POD))
    assert len(t.script.asked) >= 2
    assert all(0 < seconds <= 1 for seconds in t.clock.waited)


@pytest.mark.parametrize("answer", [says(500, {}), says(503, b""), says(429, BUSY), resets])
def test_a_post_is_never_repeated(answer):
    async def law(t: Talk) -> None:
        with pytest.raises((ApiError, ConnectionLostError)):
            await t.client.create(PODS, {}, dict, namespace="n")

    assert len(talk(law, answer).script.asked) == 1


@pytest.mark.parametrize("answer", [says(500, {}), says(503, b"")])
def test_other_writes_that_failed_are_not_repeated(answer):
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError):
            await t.client.patch(PODS, "a", {}, dict, namespace="n")

    assert len(talk(law, answer).script.asked) == 1


def test_a_write_that_was_put_off_waits_as_long_as_it_is_told():
    async def law(t: Talk) -> None:
        await t.client.patch(PODS, "a", {}, dict, namespace="n")

    assert talk(law, says(429, BUSY, retry_after="3"), says(200, POD)).clock.waited == [3.0]


def test_waiting_and_repeating_are_bounded():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError, match="429"):
            await t.client.get(PODS, "a", dict, namespace="n")

    t = talk(law, says(429, BUSY, retry_after="3600"))
    assert len(t.script.asked) == TRIES
    assert t.clock.waited == [LONGEST_WAIT_SECONDS] * (TRIES - 1)


def test_a_server_that_says_nothing_is_given_up():
    async def law(t: Talk) -> None:
        with pytest.raises(ConnectionLostError):
            await t.client.get(PODS, "a", dict, namespace="n")
        with pytest.raises(ConnectionLostError):
            await t.client.post_raw("/x", b"{}")
        with pytest.raises(ConnectionLostError):
            await watched(t.client)

    talk(law, hangs)


def test_a_server_that_is_not_there_is_a_lost_connection():
    async def law() -> None:
        client = Making.client(ClusterConfig("test", "http://127.0.0.1:1"), Waits())
        with pytest.raises(ConnectionLostError):
            await client.get(PODS, "a", dict, namespace="n")
        await client.close()

    asyncio.run(law())


def test_who_is_not_known_reads_its_token_again_once(tmp_path):
    path = tmp_path / "token"
    path.write_text("old")
    plugin = _counting(tmp_path)
    asked = one_call(says(401, {}), says(200, POD), plugin=plugin).script.asked
    assert [a.headers["authorization"] for a in asked] == ["Bearer t1", "Bearer t2"]

    async def law(t: Talk) -> None:
        with pytest.raises(ApiError, match="401"):
            await t.client.get(PODS, "a", dict, namespace="n")

    assert len(talk(law, says(401, {}), token_file=path).script.asked) == 2
    assert len(talk(law, says(401, {}), **FIXED).script.asked) == 1


def _counting(folder: Path) -> ExecPlugin:
    """A plugin that prints t1, then t2, and so on."""
    path, counter = folder / "plugin", folder / "counter"
    answer = '{"status":{"token":"t%s"}}'
    path.write_text(f"#!/bin/sh\necho x >> {counter}\nn=$(wc -l < {counter})\nprintf '{answer}' $n\n")
    path.chmod(0o755)
    return ExecPlugin(str(path), (), {}, "v1")


def test_a_plugin_that_fails_is_a_lost_connection():
    async def law(t: Talk) -> None:
        with pytest.raises(ConnectionLostError, match="exec plugin /absent"):
            await t.client.get(PODS, "a", dict, namespace="n")

    talk(law, says(200, POD), plugin=ExecPlugin("/absent", (), {}, "v1"))


# Watches


def an_event(type_: str, name: str, version: str, **metadata: Any) -> bytes:
    obj = {"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": version, **metadata}}
    return json.dumps({"type": type_, "object": obj}, separators=(",", ":")).encode() + b"\n"


BOOKMARK = (
    b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"12","creationTimestamp":null},'
    b'"spec":{"containers":null},"status":{}}}\n'
)


def test_a_watch_asks_for_bookmarks_and_for_an_end():
    async def law(t: Talk) -> None:
        await watched(t.client)

    [asked] = talk(law, streams()).script.asked
    assert (asked.query["watch"], asked.query["allowWatchBookmarks"]) == ("true", "true")
    assert asked.query["resourceVersion"] == "5"
    assert 300 <= int(asked.query["timeoutSeconds"]) < 450


def test_events_come_as_they_are_however_they_are_cut():
    text = an_event("ADDED", "a", "6") + an_event("MODIFIED", "a", "8") + BOOKMARK + an_event("DELETED", "a", "13")

    async def law(t: Talk) -> None:
        events = await watched(t.client)
        assert [(e.type, e.resource_version) for e in events] == [
            (EventType.ADDED, "6"),
            (EventType.MODIFIED, "8"),
            (EventType.BOOKMARK, "12"),
            (EventType.DELETED, "13"),
        ]
        assert [e.object and e.object.metadata.key for e in events] == ["n/a", "n/a", None, "n/a"]

    talk(law, streams(text))
    talk(law, streams(*(text[i : i + 7] for i in range(0, len(text), 7))))


def test_fields_in_another_order_are_read_as_well():
    async def law(t: Talk) -> None:
        [event] = await watched(t.client)
        assert (event.type, event.object.metadata.name, event.resource_version) == (EventType.ADDED, "a", "6")

    talk(law, streams(b'{"object": {"metadata": {"name": "a", "resourceVersion": "6"}}, "type": "ADDED"}\n'))


def test_an_expired_version_is_a_410_as_a_status_and_as_an_event():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError) as refused:
            await watched(t.client)
        assert refused.value.code == 410

    talk(law, says(410, GONE))
    talk(law, streams(an_event("ADDED", "a", "6"), json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n"))


def test_a_silent_end_is_an_end_and_a_broken_one_a_loss():
    async def events(t: Talk) -> None:
        assert len(await watched(t.client)) == 1

    async def lost(t: Talk) -> None:
        events = t.client.watch(PODS, KubePod, resource_version="5")
        assert (await anext(events)).resource_version == "6"
        with pytest.raises(ConnectionLostError):
            await anext(events)

    whole = an_event("ADDED", "a", "6")
    talk(events, streams(whole))
    talk(lost, streams(whole, then="reset"))
    talk(lost, streams(whole, whole[:20], then="reset"))
    talk(lost, streams(whole, whole[:20]))


def test_an_event_of_over_a_mebibyte_is_read():
    async def law(t: Talk) -> None:
        [event] = await watched(t.client)
        assert len(event.object.metadata.labels["x"]) == 1_500_000

    talk(law, streams(an_event("ADDED", "a", "6", labels={"x": "v" * 1_500_000})))


def test_an_unknown_type_of_event_is_unreadable():
    async def law(t: Talk) -> None:
        with pytest.raises(ApiError, match="Unreadable"):
            await watched(t.client)

    talk(law, streams(b'{"type":"MOVED","object":{}}\n'))
    talk(law, streams(b"not JSON\n"))


def test_leaving_a_watch_closes_its_connection():
    async def law(t: Talk) -> None:
        events = t.client.watch(PODS, KubePod, resource_version="5")
        assert (await anext(events)).resource_version == "6"
        await events.aclose()
        await t.client.close()

    talk(law, streams(an_event("ADDED", "a", "6"), then="hang"))


# The short road


def test_a_raw_post_gives_status_and_body_and_repeats_nothing():
    async def law(t: Talk) -> None:
        assert await t.client.post_raw("/api/v1/x", b'{"a":1}') == (409, b'{"code": 409}')
        assert await t.client.post_raw("/api/v1/x", b'{"a":1}') == (503, b'{"code": 503}')

    asked = talk(law, says(409, {"code": 409}), says(503, {"code": 503}), **FIXED).script.asked
    assert [(a.method, a.path, a.body) for a in asked] == [("POST", "/api/v1/x", b'{"a":1}')] * 2
    assert asked[0].headers["authorization"] == "Bearer t"
    assert asked[0].headers["content-type"] == "application/json"


def test_a_raw_post_reads_chunked_answers():
    async def law(t: Talk) -> None:
        assert await t.client.post_raw("/x", b"{}") == (200, b"abcdef")
        assert await t.client.post_raw("/x", b"{}") == (200, b"abcdef")

    assert talk(law, streams(b"abc", b"def")).script.connections == 1


def test_a_raw_post_whose_connection_breaks_is_a_loss_and_the_next_one_opens_another():
    async def law(t: Talk) -> None:
        await t.client.post_raw("/x", b"{}")
        with pytest.raises(ConnectionLostError):
            await t.client.post_raw("/x", b"{}")
        assert (await t.client.post_raw("/x", b"{}"))[0] == 200

    t = talk(law, says(200, {}), resets, says(200, {}))
    assert (len(t.script.asked), t.script.connections) == (3, 2)


def test_a_connection_that_the_server_ends_is_not_used_again():
    async def law(t: Talk) -> None:
        for _ in range(2):
            await t.client.post_raw("/x", b"{}")

    assert talk(law, says(200, {}, connection="close"), says(200, {})).script.connections == 2


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\n\r\n", b"nonsense", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"])
def test_what_is_no_answer_is_a_loss(answer):
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async def law(t: Talk) -> None:
        with pytest.raises(ConnectionLostError):
            await t.client.post_raw("/x", b"{}")

    talk(law, write)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nEvil: 1", "/\u00fc"])
def test_a_path_that_is_not_quoted_is_refused(path):
    async def law(t: Talk) -> None:
        with pytest.raises(ValueError, match="not quoted"):
            await t.client.post_raw(path, b"{}")

    assert talk(law, says(200, {})).script.asked == []


def test_parallel_raw_posts_do_not_mix_up_their_answers():
    async def say_back(writer: asyncio.StreamWriter) -> None:
        body = script.asked[-1].body  # of this request: nothing ran since it was read
        await asyncio.sleep(0)
        await says(200, body)(writer)

    async def law() -> None:
        async with asyncio.timeout(20), script.serve() as address:
            client = Making.client(ClusterConfig("test", address), Waits())
            answers = await asyncio.gather(*(client.post_raw(f"/{n}", b"%d" % n) for n in range(100)))
            assert [body for _, body in answers] == [b"%d" % n for n in range(100)]
            await client.close()

    script = Script(say_back)
    asyncio.run(law())
    assert script.connections == poster_module.CONNECTIONS, "what came while all were taken waited its turn"


def test_a_raw_post_that_never_had_a_connection_was_not_sent(monkeypatch):
    monkeypatch.setattr(poster_module, "TURN_SECONDS", 0.01)

    async def law() -> None:
        async with asyncio.timeout(20), script.serve() as address:
            client = Making.client(ClusterConfig("test", address), Waits())
            paths = [f"/{n}" for n in range(poster_module.CONNECTIONS)]
            stuck = [asyncio.ensure_future(client.post_raw(path, b"{}")) for path in paths]
            while len(script.asked) < len(stuck):
                await asyncio.sleep(0.001)
            with pytest.raises(UnreachableError, match=f"{poster_module.CONNECTIONS} requests are unanswered"):
                await client.post_raw("/late", b"{}")
            for one in stuck:
                one.cancel()
            await asyncio.wait(stuck)
            await client.close()

    script = Script(hangs)
    asyncio.run(law())
    assert "/late" not in {asked.path for asked in script.asked}
