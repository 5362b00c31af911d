"""The lean server on the wire: what it understands, what it refuses, in whatever pieces it comes."""

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.runtime.clock import settle
from tessera.runtime.lean import BODY_LIMIT, HEAD_LIMIT, Answer, Connection, Lean, LeanServer
from tessera.runtime.serve import Bind, Server, serve
from tessera.runtime.tls import ReloadingContext, new_authority, new_leaf


def mirror(method: str, path: str, body: bytes) -> Answer:
    """What was asked, as JSON; at once."""
    return Answer(json.dumps([method, path, len(body), body[:20].decode("latin-1")]).encode())


async def slow_mirror(method: str, path: str, body: bytes) -> Answer:
    """The same after a turn of the loop."""
    await asyncio.sleep(0)
    return mirror(method, path, body)


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def converse(handler: Lean, *pieces: bytes) -> Wire:
    """The wire after these pieces arrived, one a turn."""

    async def scene() -> Wire:
        server, wire = LeanServer(handler), Wire()
        connection = Connection(server)
        connection.connection_made(wire)
        for piece in pieces:
            if not wire.closed:
                connection.data_received(piece)
            await settle(30)
        await server.drain(1)
        return wire

    return asyncio.run(scene())


def answers(wire: Wire) -> list[tuple[int, bytes]]:
    """Status and body of each answer on a wire."""
    found, rest = [], wire.written
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        length = int(headers.get("Content-Length", "0"))
        found.append((int(lines[0].split()[1]), rest[:length]))
        rest = rest[length:]
    return found


POST = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET /healthz?a=b HTTP/1.1\r\nHost: x\r\n\r\n"
MIRRORED = [(200, b'["POST", "/filter", 5, "hello"]'), (200, b'["GET", "/healthz?a=b", 0, ""]')]


@pytest.mark.parametrize("handler", [mirror, slow_mirror])
def test_requests_that_follow_each_other_are_answered_in_order(handler: Lean) -> None:
    wire = converse(handler, POST, GET)
    assert answers(wire) == MIRRORED
    assert answers(converse(handler, POST + GET + POST)) == [*MIRRORED, MIRRORED[0]]
    assert b"\r\nDate: " in wire.written


@given(st.lists(st.integers(0, len(POST + GET + POST)), max_size=6), st.booleans())
def test_it_does_not_matter_in_which_pieces_a_request_comes(cuts: list[int], at_once: bool) -> None:
    stream, edges = POST + GET + POST, [0, *sorted(cuts), len(POST + GET + POST)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges) if a < b]
    assert answers(converse(mirror if at_once else slow_mirror, *pieces)) == [*MIRRORED, MIRRORED[0]]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_LIMIT + 1), 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT + b"\r\n\r\n", 431),
    ],
)
def test_what_is_malformed_or_too_large_is_refused_and_the_connection_closed(request_: bytes, status: int) -> None:
    wire = converse(mirror, request_ + GET)
    assert [found for found, _ in answers(wire)] == [status]
    assert wire.closed
    assert b"Connection: close" in wire.written


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail_otherwise_than_by_an_answer(junk: bytes) -> None:
    for status, _ in answers(converse(mirror, junk + b"\r\n\r\n")):
        assert status in (200, 400, 411, 413)


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nCONNECTION:Close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True),
    ],
)
def test_a_connection_is_kept_as_the_client_asks(request_: bytes, kept: bool) -> None:
    async def scene() -> bool:
        wire, connection = Wire(), Connection(LeanServer(mirror))
        connection.connection_made(wire)
        connection.data_received(request_)
        assert answers(wire)[0][0] == 200
        return not wire.closed

    assert asyncio.run(scene()) == kept


def test_head_is_answered_without_a_body() -> None:
    assert converse(mirror, b"HEAD / HTTP/1.1\r\n\r\n").written.endswith(b"\r\n\r\n")


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    wire = converse(mirror, POST.removesuffix(b"hello").replace(b"Host: x", b"Expect: 100-continue"), b"hello")
    assert wire.written.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_handler_that_fails_costs_its_request_only(at_once: bool) -> None:
    def fails(method: str, path: str, body: bytes) -> Answer:
        if path == "/filter":
            raise KeyError("ours")
        return mirror(method, path, body)

    async def fails_later(method: str, path: str, body: bytes) -> Answer:
        await asyncio.sleep(0)
        return fails(method, path, body)

    assert answers(converse(fails if at_once else fails_later, POST, GET)) == [
        (500, b"internal error\n"),
        MIRRORED[1],
    ]


def test_one_request_of_a_connection_at_a_time_and_a_client_that_floods_is_not_read_from() -> None:
    async def scene() -> tuple[int, bool, bool, int]:
        release, entered = asyncio.Event(), list[str]()

        async def waits(method: str, path: str, body: bytes) -> Answer:
            entered.append(path)
            await release.wait()
            return mirror(method, path, body)

        wire, connection = Wire(), Connection(LeanServer(waits))
        connection.connection_made(wire)
        connection.data_received(POST * 2000)
        await settle(5)
        connection.data_received(POST)
        concurrent, flooded = len(entered), not wire.reading
        release.set()
        while len(entered) < 2001:
            await asyncio.sleep(0)
        await settle(5)
        return concurrent, flooded, wire.reading, len(answers(wire))

    assert asyncio.run(scene()) == (1, True, True, 2001)


def test_a_client_that_does_not_read_gets_no_further_answers_until_it_does() -> None:
    async def scene() -> tuple[int, int]:
        wire, connection = Wire(), Connection(LeanServer(mirror))
        connection.connection_made(wire)
        connection.pause_writing()
        connection.data_received(POST + GET)
        before = len(answers(wire))
        connection.resume_writing()
        return before, len(answers(wire))

    assert asyncio.run(scene()) == (0, 2)


def test_a_client_that_is_gone_does_not_stop_what_it_asked_for() -> None:
    async def scene() -> list[str]:
        release, done = asyncio.Event(), list[str]()

        async def binds(method: str, path: str, body: bytes) -> Answer:
            await release.wait()
            done.append(path)
            return Answer(b"")

        wire, server = Wire(), LeanServer(binds)
        connection = Connection(server)
        connection.connection_made(wire)
        connection.data_received(POST)
        connection.connection_lost(None)
        assert (server.working, len(server.connections)) == (1, 0)
        release.set()
        await settle(5)
        assert (server.working, wire.written) == (0, b"")
        return done

    assert asyncio.run(scene()) == ["/filter"]


def test_connections_that_are_idle_or_stuck_for_too_long_are_stale() -> None:
    async def scene() -> list[bool]:
        connection = Connection(LeanServer(mirror))
        connection.connection_made(Wire())
        now = asyncio.get_running_loop().time()
        idle = [connection.is_stale(now + 299), connection.is_stale(now + 301)]
        connection.data_received(POST[:30])
        return [*idle, connection.is_stale(now + 29), connection.is_stale(now + 31)]

    assert asyncio.run(scene()) == [False, True, False, True]


def test_while_it_leaves_every_answer_is_the_last_on_its_connection() -> None:
    async def scene() -> tuple[list[int], bool]:
        server, wire = LeanServer(mirror), Wire()
        connection = Connection(server)
        connection.connection_made(wire)
        server.leaving = True
        connection.data_received(GET + GET)
        await settle(5)
        return [status for status, _ in answers(wire)], wire.closed

    assert asyncio.run(scene()) == ([200], True)


def with_server(scene: Callable[[Server, bytes], Awaitable[None]], handler: Lean = slow_mirror) -> None:
    """Run a scene beside a TLS server on a real socket; the scene gets what to trust."""

    async def main() -> None:
        authority = new_authority(900, time.time())
        context = ReloadingContext()
        context.load(new_leaf(authority, ("127.0.0.1",), 300, time.time()))
        server = await serve(handler, Bind("127.0.0.1", 0), name="t", tls=context.context)
        try:
            await scene(server, authority.certificate)
        finally:
            await server.close()

    asyncio.run(main())


def test_it_speaks_tls_with_an_ordinary_client() -> None:
    async def scene(server: Server, trusted: bytes) -> None:
        context = ssl.create_default_context(cadata=trusted.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.bind.port, ssl=context)
        body = b"x" * 2_000_000
        writer.write(b"POST /mutate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length)) == ["POST", "/mutate", 2_000_000, "x" * 20]
        writer.close()
        await writer.wait_closed()

    with_server(scene)
