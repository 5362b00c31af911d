"""Servers: where they listen, what they answer, how they end."""

import asyncio
import io
import socket
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tessera.core.errors import InputErrors, UnavailableError
from tessera.runtime.clock import settle
from tessera.runtime.metrics import Metrics
from tessera.runtime.serve import Answer, Bind, Health, Server, health_answers, health_app, parse_bind, serve

LOCAL = Bind("127.0.0.1", 0)


async def echo(method: str, path: str, body: bytes) -> Answer:
    """A lean handler."""
    return Answer(f"{method} {path} ".encode() + body, content_type="text/plain")


async def fetch(server: Server, path: str, body: bytes | None = None) -> tuple[int, str]:
    """Status and text of one request."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            "GET" if body is None else "POST", f"http://{server.bind}{path}", data=body and io.BytesIO(body)
        ) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:80", Bind("127.0.0.1", 80)),
        (":9443", Bind("", 9443)),
        ("[::1]:0", Bind("::1", 0)),
        ("localhost:65535", Bind("localhost", 65535)),
        ("unix:/run/x.sock", Bind(path="/run/x.sock")),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, bind: Bind) -> None:
    assert parse_bind(text) == bind
    assert str(bind) == text


@pytest.mark.parametrize(
    "text", ["", "80", "host", "host:", "host:http", "::1:80", "host:65536", "host:-1", "unix:x"]
)
def test_what_is_no_address_is_refused_with_flag_and_value(text: str) -> None:
    with pytest.raises(InputErrors, match="--metrics-bind: is no address") as refusal:
        parse_bind(text, "--metrics-bind")
    assert refusal.value.problems[0].value == text


def test_a_lean_handler_gets_method_path_and_body() -> None:
    async def scene() -> tuple[int, str]:
        server = await serve(echo, LOCAL, name="t")
        try:
            return await fetch(server, "/filter", b"x" * 3_000_000)
        finally:
            await server.close()

    status, text = asyncio.run(scene())
    assert (status, text[:15], len(text)) == (200, "POST /filter xx", 13 + 3_000_000)


def test_a_port_that_is_taken_is_told_with_a_remedy() -> None:
    async def scene() -> None:
        server = await serve(echo, LOCAL, name="t")
        try:
            await serve(echo, server.bind, name="second")
        finally:
            await server.close()

    with pytest.raises(
        UnavailableError, match=r"the second server cannot listen on 127.0.0.1:\d+: .*choose another"
    ):
        asyncio.run(scene())


def test_every_address_is_both_families() -> None:
    async def scene() -> list[tuple[int, str]]:
        server = await serve(echo, Bind("", 0), name="t")
        try:
            hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
            return [await fetch(Server("", None, Bind(h, server.bind.port), 0), "/") for h in hosts]  # type: ignore[arg-type]
        finally:
            await server.close()

    assert {status for status, _ in asyncio.run(scene())} == {200}


def test_a_unix_socket_replaces_a_dead_one_and_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def scene() -> str:
        server = await serve(echo, Bind(path=str(path)), name="t")
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://x/a") as answer:
            text = await answer.text()
        await server.close()
        return text

    assert asyncio.run(scene()) == "GET /a "
    assert not path.exists()


def test_a_request_in_flight_is_answered_while_the_server_ends_and_no_new_one_is_taken() -> None:
    async def scene() -> tuple[int, str]:
        entered, release = asyncio.Event(), asyncio.Event()

        async def slow(method: str, path: str, body: bytes) -> Answer:
            entered.set()
            await release.wait()
            return Answer(b"done", content_type="text/plain")

        server = await serve(slow, LOCAL, name="t")
        request = asyncio.ensure_future(fetch(server, "/"))
        await entered.wait()
        closing = asyncio.ensure_future(server.close())
        await settle()  # a few turns of the loop, after which it no longer listens
        with pytest.raises(OSError, match=r"refused|failed"):
            await asyncio.open_connection(server.bind.host, server.bind.port)
        assert not request.done()
        release.set()
        answer = await request
        await closing
        return answer

    assert asyncio.run(asyncio.wait_for(scene(), 20)) == (200, "done")


def test_a_server_that_lingers_goes_on_answering_first() -> None:
    async def scene() -> tuple[int, str]:
        server = await serve(echo, LOCAL, name="t", linger=30)
        closing = asyncio.ensure_future(server.close())
        answer = await fetch(server, "/a")
        closing.cancel()
        server.linger = 0
        await server.close()
        return answer

    assert asyncio.run(scene()) == (200, "GET /a ")


def test_health_endpoints_name_the_failing_check_and_why() -> None:
    async def scene() -> list[tuple[int, str]]:
        health, metrics = Health(), Metrics()
        why: list[str | None] = ["not listed yet"]
        health.live["loop"] = lambda: None
        health.ready["pods"] = lambda: why[0]
        metrics.gauge("x", "X.", lambda: 7)

        async def extra(_: web.Request) -> web.Response:
            return web.Response(text="extra")

        server = await serve(health_app(health, metrics, web.get("/debug/x", extra)), LOCAL, name="t")
        try:
            answers = [await fetch(server, "/healthz"), await fetch(server, "/readyz")]
            why[0] = None
            paths = ("/readyz", "/metrics", "/debug/x", "/nothing")
            return answers + [await fetch(server, path) for path in paths]
        finally:
            await server.close()

    live, unready, ready, metrics, extra, nothing = asyncio.run(scene())
    assert live == (200, "[+] loop: ok\nok\n")
    assert unready == (503, "[+] loop: ok\n[-] pods: not listed yet\nnot ok\n")
    assert ready == (200, "[+] loop: ok\n[+] pods: ok\nok\n")
    assert metrics[0] == 200
    assert "\ntessera_x 7\n" in metrics[1]
    assert (extra, nothing[0]) == ((200, "extra"), 404)


def test_the_health_endpoints_are_served_without_the_large_library_too() -> None:
    async def scene() -> list[tuple[int, str]]:
        health, metrics = Health(), Metrics()
        health.live["loop"] = lambda: None
        health.ready["pods"] = lambda: "not listed yet"
        metrics.gauge("x", "X.", lambda: 7)
        server = await serve(health_answers(health, metrics), LOCAL, name="t")
        try:
            return [await fetch(server, path) for path in ("/healthz", "/readyz?verbose", "/metrics", "/nothing")]
        finally:
            await server.close()

    live, unready, metrics, nothing = asyncio.run(scene())
    assert live == (200, "[+] loop: ok\nok\n")
    assert unready == (503, "[+] loop: ok\n[-] pods: not listed yet\nnot ok\n")
    assert (metrics[0], "\ntessera_x 7\n" in metrics[1], nothing[0]) == (200, True, 404)


def test_health_endpoints_are_read_and_not_written() -> None:
    answer = health_answers(Health(), Metrics())("POST", "/metrics", b"")
    assert isinstance(answer, Answer)
    assert answer.status == 405
