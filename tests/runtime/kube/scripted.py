"""An HTTP server that answers from a script, byte by byte, and remembers what it was asked."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def says(status: int, document: Any = None, **headers: str) -> Answer:
    """A whole answer; ``retry_after="3"`` becomes a header."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()

    async def write(writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-').title()}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return write


def streams(*pieces: bytes, then: str = "end") -> Answer:
    """A chunked answer that ends properly (``end``), with a reset (``reset``), or never (``hang``)."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        if then == "end":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        elif then == "reset":
            _reset(writer)
        else:
            await asyncio.Event().wait()

    return write


async def hangs(writer: asyncio.StreamWriter) -> None:
    """No answer at all."""
    await asyncio.Event().wait()


async def resets(writer: asyncio.StreamWriter) -> None:
    """The connection breaks instead of an answer."""
    _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    taken = writer.get_extra_info("socket")
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Script:
    """Answers in turn; the last one is repeated."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self._answers = list(answers)
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """The address."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while not writer.is_closing():
                self.asked.append(await _request(reader))
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Asked(method, parts.path, dict(parse_qsl(parts.query)), headers, body)
