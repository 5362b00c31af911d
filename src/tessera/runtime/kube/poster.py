"""POST in as few steps as HTTP/1.1 over TLS allows: for bindings, where a general client costs most of a decision.

Kept-alive connections with one request on each at a time; what comes while all are taken waits its turn. Nothing
is repeated: a connection that breaks with a request on it is a :class:`ConnectionLostError`, and the server may
have acted. Figures: ``bench/client.py``.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from tessera.runtime.kube.port import ConnectionLostError, UnreachableError

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0
TURN_SECONDS: Final = 2.0
CONNECTIONS: Final = 64
"""Requests in flight at once. Eight halved the pods that were bound in a second while the API server was busy with
others' calls: it gives each client time by how much that asks for at once.
"""

_END: Final = b"\r\n\r\n"
_Answer = tuple[int, bytes, bool]
"""Status, body, and whether the connection lives on."""


class Poster:
    """POSTs to one server, each answered within ``seconds``. ``context`` is its TLS, ``None`` for plain http."""

    def __init__(
        self, server: str, context: ssl.SSLContext | None, server_name: str = "", seconds: float = ANSWER_SECONDS
    ) -> None:
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if context else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc
        self._context = context
        self._server_name = server_name or self._host
        self._seconds = seconds
        self._idle: list[_Connection] = []
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._closed = False
        self._headers: tuple[Mapping[str, str], bytes] | None = None

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of the answer.

        Raises :class:`ConnectionLostError` where none came; where nothing was sent, that is an
        :class:`UnreachableError`.
        """
        request = self._request(path, body, headers)
        await self._turn()
        try:
            connection = self._kept() or await self._connect()
            try:
                status, answer, lives = await connection.ask(request, self._seconds)
            except BaseException:
                connection.abort()
                raise
            if lives and not self._closed:
                self._idle.append(connection)
            else:
                connection.abort()
        finally:
            self._places.release()
        return status, answer

    async def _turn(self) -> None:
        if not self._places.locked():
            await self._places.acquire()  # at once
            return
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            why = f"{CONNECTIONS} requests are unanswered, and none ended in {TURN_SECONDS:g} s"
            raise UnreachableError(f"{self._authority}: {why}") from None

    def close(self) -> None:
        """Close what is kept; a request that is on its way is answered, and its connection then closed too."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _request(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        if not (path.isascii() and path.isprintable()) or " " in path:
            raise ValueError(f"{path!r} is not quoted")
        if self._headers is None or self._headers[0] is not headers:
            fixed = {"Host": self._authority, "Content-Type": "application/json", "Accept": "application/json"}
            lines = [
                f"{name}: {value}\r\n" for name, value in {**fixed, "User-Agent": "tessera", **headers}.items()
            ]
            self._headers = (headers, "".join(lines).encode("latin-1"))
        return b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
            (self._prefix + path).encode(),
            self._headers[1],
            len(body),
            body,
        )

    def _kept(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        name = self._server_name if self._context else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop), self._host, self._port, ssl=self._context, server_hostname=name
                )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            raise UnreachableError(f"{self._authority}: {error or type(error).__name__}") from None
        return connection


class _Connection(asyncio.Protocol):
    """One connection and the one request that may be on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._waiter: asyncio.Future[_Answer] | None = None

    @property
    def usable(self) -> bool:
        """Whether a request can be put on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, seconds: float) -> _Answer:
        """Sends a request and waits for its answer."""
        assert self._transport is not None
        waiter: asyncio.Future[_Answer] = self._loop.create_future()
        self._waiter = waiter
        self._transport.write(request)
        limit = self._loop.call_later(seconds, self._lost, f"no answer in {seconds:g} s")
        try:
            return await waiter
        finally:
            limit.cancel()
            self._waiter = None

    def abort(self) -> None:
        """Closes without farewell."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        """More of an answer; what nobody asked for ends the connection."""
        if self._waiter is None or self._waiter.done():
            self.abort()
            return
        self._held = self._held + data if self._held else data
        try:
            answer = read_answer(self._held)
        except ValueError as error:
            self._lost(str(error))
            return
        if answer is not None:
            self._held = b""
            self._waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone; a request that is on it has no answer."""
        self._transport = None
        self._lost(str(exc) if exc else "the server closed the connection")

    def _lost(self, why: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionLostError(why))


def read_answer(held: bytes) -> _Answer | None:
    """A whole answer; ``None`` while more has to come. Raises ``ValueError`` for what is no answer."""
    end = held.find(_END)
    if end < 0:
        if len(held) > 65_536 or not b"HTTP/1.1 ".startswith(held[:9]):
            raise ValueError("the answer is not HTTP/1.1")
        return None
    if not held.startswith(b"HTTP/1.1 "):
        raise ValueError("the answer is not HTTP/1.1")
    status, head, start = int(held[9:12]), held[:end].lower(), end + len(_END)
    lives = b"\r\nconnection: close" not in head
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        stop = start + int(head[at + 17 :].split(b"\r\n", 1)[0])
        return (status, held[start:stop], lives and stop == len(held)) if len(held) >= stop else None
    if b"\r\ntransfer-encoding: chunked" in head:
        body = _unchunked(held, start)
        return None if body is None else (status, body, lives)
    raise ValueError("the answer says nothing of its length")


def _unchunked(held: bytes, at: int) -> bytes | None:
    """The body of a chunked answer, once its last chunk is there; trailers are not expected."""
    parts: list[bytes] = []
    while (end := held.find(b"\r\n", at)) >= 0:
        size = int(held[at:end].split(b";", 1)[0], 16)
        at = end + 2 + size + 2
        if len(held) < at:
            return None
        if size == 0:
            return b"".join(parts)
        parts.append(held[end + 2 : end + 2 + size])
    return None
