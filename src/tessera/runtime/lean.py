"""A small HTTP/1.1 server for endpoints that are called a thousand times a second by one well-known client.

It exists because of a figure: a request of 5 KB costs our code less than half of what it costs behind aiohttp's
server (``bench/serve.py``), and a scheduler has 0.4 ms for a whole pod. It knows what Go's client sends: HTTP/1.0
and 1.1, keep-alive, pipelining, bodies with a length, ``Expect: 100-continue``. It refuses what that client never
sends: chunked bodies (411), oversized heads (431) and bodies (413), anything malformed (400).

Source: RFC 9112 (HTTP/1.1), sections 2 to 9.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from tessera.runtime.log import logger

BODY_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a request's body: kube-scheduler sends a pod and 5,000 names, an API server up to 3 MiB of object."""
HEAD_LIMIT: Final = 64 * 1024
KEEPALIVE_SECONDS: Final = 300.0
"""Longer than clients keep a connection, so that it is the client who closes an idle one, never both at once."""
REQUEST_SECONDS: Final = 30.0
"""In so many seconds a request that began must have arrived."""
_SWEEP_SECONDS: Final = 5.0
_HEADERS: Final = re.compile(
    rb"\r\n(content-length|transfer-encoding|connection|expect)[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE
)
_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,8000}) HTTP/1\.([01])(?=\r\n|\Z)")

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_log: Final = logger("serve")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a lean handler answers."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


Lean = Callable[[str, str, bytes], Answer | Awaitable[Answer]]
"""``(method, path, body)`` to an answer; a plain function saves the price of a task where nothing is awaited."""


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    path: str
    length: int
    keep: bool
    expects: bool


class _BadRequestError(Exception):
    """What arrived is no request that is served here; it is answered and the connection closed."""

    def __init__(self, status: int, why: str) -> None:
        self.answer = Answer(f"{why}\n".encode(), status, "text/plain")
        super().__init__(why)


class LeanServer:
    """The connections of one listener. :attr:`leaving` makes every answer the last one on its connection."""

    def __init__(self, handler: Lean) -> None:
        self.handler = handler
        self.connections: set[Connection] = set()
        self.leaving = False
        self.working = 0
        self._idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._date = (0, b"")
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def connection(self) -> "Connection":
        """A protocol for a new connection."""
        return Connection(self)

    def began(self) -> None:
        """A request is being worked on."""
        self.working += 1

    def ended(self) -> None:
        """One is not any more."""
        self.working -= 1
        if not self.working:
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Let requests in flight finish, for ``seconds`` at most; then close every connection."""
        self.leaving = True
        self._sweeper.cancel()
        for connection in [c for c in self.connections if not c.busy]:
            connection.close()
        self._idle.clear()
        if self.working:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), seconds)
        for connection in list(self.connections):
            connection.close()

    def date(self) -> bytes:
        """The Date header, made once a second."""
        second = int(self._loop.time())
        if second != self._date[0]:
            self._date = (second, f"\r\nDate: {http_date(time.time())}".encode())
        return self._date[1]

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in [c for c in self.connections if c.is_stale(now)]:
            connection.close()
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)


class Connection(asyncio.Protocol):
    """One connection: at most one request at a time, in the order in which they came."""

    __slots__ = ("_buffer", "_head", "_loop", "_paused", "_since", "_transport", "busy", "server", "start")

    def __init__(self, server: LeanServer) -> None:
        self.server = server
        self.busy = False
        self._transport: asyncio.Transport | None = None
        self._buffer: bytes | bytearray = b""
        self._head: _Head | None = None
        self.start = 0
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Registers."""
        self._transport = cast("asyncio.Transport", transport)  # a stream's protocol gets a stream's transport
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forgets; a handler that runs goes on, since what it does may have begun to count."""
        self._transport = None
        self.server.connections.discard(self)

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close after what is written."""
        if self._transport is not None:
            self._transport.close()

    def is_stale(self, now: float) -> bool:
        """Whether it has been idle, or in the middle of a request, for too long."""
        return not self.busy and now - self._since > (REQUEST_SECONDS if self._buffer else KEEPALIVE_SECONDS)

    def pause_writing(self) -> None:
        """The client does not read: take no further request."""
        self._paused = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._paused = False
        if not self.busy:
            self._advance()

    def data_received(self, data: bytes) -> None:
        """Collects a request; the usual one comes in one piece and is never copied."""
        if not self._buffer:
            self._since = self._loop.time()
            self._buffer = data
        else:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
        if self.busy or self._paused:
            if len(self._buffer) > HEAD_LIMIT and self._transport is not None:
                self._transport.pause_reading()
            return
        self._advance()

    def _advance(self) -> None:
        """Answer what has arrived completely."""
        while self._buffer and not self.busy and not self._paused and self._open:
            try:
                body = self._next_body()
            except _BadRequestError as error:
                self._buffer = b""
                self._write(error.answer, keep=False)
                return
            if body is None:
                return
            assert self._head is not None
            head, self._head = self._head, None
            self._serve(head, body)

    def _next_body(self) -> bytes | None:
        """The body of the first request, taken from the buffer; ``None`` while it has not arrived."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end > HEAD_LIMIT or (end < 0 and len(self._buffer) > HEAD_LIMIT):
                raise _BadRequestError(431, "the head is too long")
            if end < 0:
                return None
            self._head, self.start = _known_head(bytes(self._buffer[:end])), end + 4
            if self._head.expects and len(self._buffer) - self.start < self._head.length and self._transport:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        stop = self.start + self._head.length
        if len(self._buffer) < stop:
            return None
        body = bytes(self._buffer[self.start : stop])
        self._buffer = bytes(self._buffer[stop:])
        return body

    def _serve(self, head: _Head, body: bytes) -> None:
        try:
            answer = self.server.handler(head.method, head.path, body)
        except Exception as error:  # noqa: BLE001 - a fault of one request is answered and must not end the server
            self._write(_failed(head, error), keep=head.keep, bare=head.method == "HEAD")
            return
        if isinstance(answer, Answer):
            self._write(answer, keep=head.keep, bare=head.method == "HEAD")
            return
        self.busy = True
        self.server.began()
        task = asyncio.ensure_future(answer)
        task.add_done_callback(lambda done: self._finish(head, done))

    def _finish(self, head: _Head, done: "asyncio.Future[Answer]") -> None:
        self.busy = False
        self.server.ended()
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        answer = done.result() if error is None else _failed(head, error)
        self._write(answer, keep=head.keep, bare=head.method == "HEAD")
        if self._open and self._transport is not None:
            self._transport.resume_reading()
            self._advance()

    def _write(self, answer: Answer, *, keep: bool, bare: bool = False) -> None:
        if self._transport is None:
            return
        self._since = self._loop.time()
        keep = keep and not self.server.leaving
        parts = (
            _opening(answer.status, answer.content_type),
            str(len(answer.body)).encode(),
            self.server.date(),
            b"\r\n\r\n" if keep else b"\r\nConnection: close\r\n\r\n",
            b"" if bare else answer.body,
        )
        self._transport.write(b"".join(parts))
        if not keep:
            self._transport.close()


_heads: Final[dict[bytes, _Head]] = {}
_HEADS_KEPT: Final = 1024


def _known_head(head: bytes) -> _Head:
    """What matters of a head, remembered: a client's requests differ in their length at most.

    Raises :class:`_BadRequestError`.
    """
    known = _heads.get(head)
    if known is None:
        known = _parse(head)
        if len(head) < 1024:
            if len(_heads) >= _HEADS_KEPT:
                _heads.clear()
            _heads[head] = known
    return known


def _parse(head: bytes) -> _Head:
    """What matters of a head. Raises :class:`_BadRequestError`."""
    line = _LINE.match(head)
    if line is None:
        raise _BadRequestError(400, "the first line is no request of HTTP/1.0 or 1.1")
    found: dict[bytes, bytes] = {}
    for name, value in _HEADERS.findall(head):
        lower = name.lower()
        if lower == b"content-length" and found.get(lower, value) != value:
            raise _BadRequestError(400, "two different lengths")
        found[lower] = value.strip().lower()
    length = found.get(b"content-length", b"0")
    if b"transfer-encoding" in found:
        raise _BadRequestError(411, "send the body with Content-Length, not in chunks")
    if not length.isdigit():
        raise _BadRequestError(400, "Content-Length is no number")
    if len(length) > 9 or int(length) > BODY_LIMIT:
        raise _BadRequestError(413, f"a body of more than {BODY_LIMIT} bytes is not taken")
    options = found.get(b"connection", b"")
    keep = b"keep-alive" in options if line[3] == b"0" else b"close" not in options
    expects = found.get(b"expect") == b"100-continue"
    return _Head(line[1].decode(), line[2].decode(), int(length), keep, expects)


def http_date(wall: float) -> str:
    """Seconds since 1970 as HTTP writes them, in English whatever the locale. Source: RFC 9110, section 5.6.7."""
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(wall)
    return f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year:04} {hour:02}:{minute:02}:{second:02} GMT"


_openings: Final[dict[tuple[int, str], bytes]] = {}


def _opening(status: int, content_type: str) -> bytes:
    """An answer up to the number of its length, remembered: there are few of them."""
    known = _openings.get((status, content_type))
    if known is None:
        reason = HTTPStatus(status).phrase
        text = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: "
        known = _openings[status, content_type] = text.encode()
    return known


def _failed(head: _Head, error: BaseException) -> Answer:
    _log.error("request failed", trace=error, method=head.method, path=head.path)
    return Answer(b"internal error\n", 500, "text/plain")
