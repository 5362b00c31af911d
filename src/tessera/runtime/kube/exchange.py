"""Requests to one server over kept-alive HTTP/1.1 connections, and answers whole or as they arrive.

One request at a time is on a connection. Nothing is repeated here: a connection that breaks with a request on it
is a :class:`ConnectionLostError`, and the server may have acted. A connection whose answer was not read to its end
is cut, without TLS's farewell: the server may be slow to answer that, or gone.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from tessera.runtime.kube.framing import Body, Head, body_of, take_head
from tessera.runtime.kube.port import ConnectionLostError, UnreachableError

KEPT_SECONDS: Final = 60.0
"""How long an idle connection is kept: shorter than by API servers (90 s), so that both never end it at once."""
KEPT: Final = 64
ENOUGH: Final = 256 * 1024
"""Bytes of an answer that wait to be read; beyond, the server has to wait."""
_ATTEMPT_SECONDS: Final = 0.25
"""After which the next address of a name is tried beside the last. Source: RFC 8305, section 5."""
_ALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
"""A peer that died in silence is noticed in half a minute: a watch may have nothing to say for minutes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: for a whole call, for connecting, and for a server that says nothing where an answer is due."""

    total: float = 30.0
    connect: float = 5.0
    silence: float = 20.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes
    retry_after: str


class Exchange:
    """The connections to one server. ``context`` is its TLS, ``None`` for plain http."""

    def __init__(self, server: str, context: ssl.SSLContext | None, server_name: str, limits: Limits) -> None:
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if context else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._context = context
        self._server_name = (server_name or self._host) if context else None
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        uvloop = type(self._loop).__module__.partition(".")[0] == "uvloop"  # it tries one address after the other
        self._eyeballs: dict[str, Any] = {} if uvloop else {"happy_eyeballs_delay": _ATTEMPT_SECONDS}
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._retired = False
        self._sweeping: asyncio.TimerHandle | None = None

    async def call(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """The whole answer. Raises :class:`ConnectionLostError` where none came in time."""
        stream = await self._ask(method, target, headers, body, self._loop.time() + self._limits.total)
        try:
            return await stream.whole(self._limits.silence)
        finally:
            stream.close()

    async def open(self, target: str, headers: Mapping[str, str], seconds: float) -> "Stream":
        """The answer to a GET, whose body is still to come for at most ``seconds``. The caller closes it.

        Raises :class:`ConnectionLostError` where no answer begins in time.
        """
        stream = await self._ask("GET", target, headers, None, self._loop.time() + seconds)
        try:
            await stream.begun(self._limits.silence)
        except BaseException:
            stream.close()
            raise
        return stream

    def retire(self) -> None:
        """Begin nothing new, and keep no connection beyond what is on it."""
        self._retired = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def close(self) -> None:
        """Close every connection; what is on one is lost."""
        self.retire()
        for connection in list(self._open):
            connection.abort()

    async def _ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, deadline: float
    ) -> "Stream":
        request = self._request(method, target, headers, body)
        connection = self._kept() or await self._connect()
        return connection.ask(request, deadline)

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """A request as it is sent. What could end a line early is refused, wherever it came from."""
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"Host: {self._authority}"]
        lines.extend(f"{name}: {value}" for name, value in headers.items())
        if body is not None or method not in ("GET", "DELETE"):
            lines.append(f"Content-Length: {len(body or b'')}")
        if any("\r" in line or "\n" in line for line in lines) or " " in target:
            raise ValueError("a header or an address with a line break or a blank in it")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    def _kept(self) -> "_Connection | None":
        oldest = self._loop.time() - KEPT_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.since > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> "_Connection":
        """A new connection. Raises :class:`UnreachableError`."""
        try:
            async with asyncio.timeout(self._limits.connect):
                transport, connection = await self._loop.create_connection(
                    lambda: _Connection(self),
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._server_name,
                    **self._eyeballs,
                )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            raise UnreachableError(f"{self._authority}: {error or type(error).__name__}") from None
        _keep_alive(transport.get_extra_info("socket"))
        return connection

    def opened(self, connection: "_Connection") -> None:
        """A connection came about."""
        self._open.add(connection)

    def lost(self, connection: "_Connection") -> None:
        """One is gone."""
        self._open.discard(connection)

    def freed(self, connection: "_Connection") -> None:
        """One has no request on it any more."""
        if self._retired or len(self._idle) >= KEPT:
            connection.abort()
            return
        connection.since = self._loop.time()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(KEPT_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Closes what was idle for too long; looks again while anything is idle."""
        oldest = self._loop.time() - KEPT_SECONDS
        for connection in [c for c in self._idle if c.since <= oldest or not c.usable]:
            self._idle.remove(connection)
            connection.abort()
        self._sweeping = self._loop.call_later(KEPT_SECONDS, self._sweep) if self._idle else None


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE:
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Connection(asyncio.Protocol):
    """One connection and the one request that may be on it."""

    def __init__(self, pool: Exchange) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self.since = 0.0
        """Idle since, in the loop's seconds."""

    @property
    def usable(self) -> bool:
        """Whether a request can be put on it."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, deadline: float) -> "Stream":
        """Sends a request; its answer will arrive in the stream."""
        assert self._transport is not None
        self._stream = Stream(self, deadline)
        self._transport.write(request)
        return self._stream

    def leave(self, stream: "Stream") -> None:
        """The stream is not read any more."""
        if self._stream is not stream:
            return
        self._stream = None
        if stream.reusable and self.usable:
            if stream.paused:
                self.resume()
            self._pool.freed(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Closes without farewell."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read nothing more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """More of an answer; what nobody asked for ends the connection."""
        if self._stream is None:
            self.abort()
            return
        try:
            self._stream.feed(data)
        except ValueError as error:
            self._stream.fail(str(error))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and with it what is still to come of an answer."""
        self._transport = None
        self._pool.lost(self)
        if self._stream is not None:
            self._stream.fail(str(exc) if exc else "the server closed the connection")


class Stream:
    """An answer as it arrives. ``deadline``, in the loop's seconds, is the last moment in which it may."""

    def __init__(self, connection: _Connection, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._loop = asyncio.get_running_loop()
        self.head: Head | None = None
        self._body: Body | None = None
        self._held = b""
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self.paused = False
        """Whether the server has to wait for our reading."""
        self._error: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether all of it came."""
        return self._body is not None and self._body.ended

    @property
    def reusable(self) -> bool:
        """Whether the connection can take another request: this answer ended, and nothing came after it."""
        head, body = self.head, self._body
        return head is not None and head.keeps and body is not None and body.ended and not body.rest

    async def begun(self, silence: float) -> Head:
        """The head, within ``silence`` seconds. Raises :class:`ConnectionLostError`."""
        try:
            while self.head is None:
                await self._change(silence)
        except TimeoutError:
            raise ConnectionLostError(f"no answer in {silence:g} s") from None
        return self.head

    async def whole(self, silence: float) -> Reply:
        """All of it, never ``silence`` seconds without a byte. Raises :class:`ConnectionLostError`."""
        head = await self.begun(silence)
        parts = []
        try:
            while part := await self.read(silence):
                parts.append(part)
        except TimeoutError:
            raise ConnectionLostError("the answer did not come to its end in time") from None
        return Reply(head.status, b"".join(parts), head.retry_after)

    async def read(self, silence: float | None = None) -> bytes:
        """What has arrived of the body, empty at its end.

        Raises ``TimeoutError`` after ``silence`` seconds without a byte and at the deadline, and
        :class:`ConnectionLostError`.
        """
        while not self._parts:
            if self.ended:
                return b""
            await self._change(silence)
        data = b"".join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts.clear()
        self._waiting = 0
        if self.paused:
            self.paused = False
            self._connection.resume()
        return data

    async def readany(self) -> bytes:
        """The same, however long the server is silent; :class:`~tessera.runtime.kube.stream.Chunks`."""
        return await self.read()

    def close(self) -> None:
        """Read nothing more; a connection with more to come is cut."""
        self._connection.leave(self)

    def feed(self, data: bytes) -> None:
        """What arrived on the connection. Raises ``ValueError`` where it is no answer."""
        if self._body is None:
            taken = take_head(self._held + data)
            if taken is None:
                self._held += data
                return
            self.head, data = taken
            self._held = b""
            self._body = body_of(self.head)
        parts = self._body.feed(data)
        self._parts.extend(parts)
        self._waiting += sum(map(len, parts))
        if self._waiting > ENOUGH and not self.paused:
            self.paused = True
            self._connection.pause()
        self._wake()

    def fail(self, why: str) -> None:
        """Nothing more comes; nothing happens where all of it came."""
        if not self.ended and self._error is None:
            self._error = why
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _change(self, silence: float | None) -> None:
        """Return when something arrived or ended."""
        if self._error is not None:
            raise ConnectionLostError(self._error)
        limit = self._deadline if silence is None else min(self._deadline, self._loop.time() + silence)
        self._waiter = self._loop.create_future()
        try:
            async with asyncio.timeout_at(limit):
                await self._waiter
        finally:
            self._waiter = None
