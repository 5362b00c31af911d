"""CPU of one HTTP request on our servers: ``python bench/serve.py``.

A server process answers 5 KB POSTs of one keep-alive client (as kube-scheduler is one) with nothing. The ways
take turns, and the best of :data:`ROUNDS` counts: on a shared machine the rest is noise. ``bare`` is an asyncio
protocol that does not even look at what it gets: what is left for us to save. The last line is about log lines.
"""

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TextIO

import uvloop
from aiohttp import web

from tessera.runtime.log import configure, logger
from tessera.runtime.serve import Answer, Bind, serve

ROUNDS = 5
REQUESTS = 3000
BODY = b'{"x":"' + b"y" * 5000 + b'"}'
REQUEST = (
    b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
)
SAID = b'{"ok":true}'


def plain(*_: object) -> Answer:
    """A lean handler that waits for nothing."""
    return Answer(SAID)


async def waiting(*_: object) -> Answer:
    """A lean handler in a task."""
    return Answer(SAID)


async def routed(request: web.Request) -> web.Response:
    """A handler of an aiohttp application."""
    await request.read()
    return web.Response(body=SAID, content_type="application/json")


class Bare(asyncio.Protocol):
    """Answers whenever something ends like a body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b'"}'):
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + SAID)  # type: ignore[attr-defined]


async def start_bare() -> int:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def start_routed() -> int:
    app = web.Application()
    app.add_routes([web.post("/filter", routed)])
    return (await serve(app, Bind("127.0.0.1", 0), name="routed")).bind.port


async def start_plain() -> int:
    return (await serve(plain, Bind("127.0.0.1", 0), name="plain")).bind.port


async def start_waiting() -> int:
    return (await serve(waiting, Bind("127.0.0.1", 0), name="waiting")).bind.port


WAYS: dict[str, Callable[[], Awaitable[int]]] = {
    "bare": start_bare,
    "lean, plain": start_plain,
    "lean, async": start_waiting,
    "aiohttp": start_routed,
}


async def live(start: Callable[[], Awaitable[int]], out: int) -> None:
    """Tell the port, then the CPU seconds used so far at every SIGUSR1."""
    os.write(out, f"{await start()}\n".encode())

    def tell() -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        os.write(out, f"{used.ru_utime + used.ru_stime}\n".encode())

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    await asyncio.Event().wait()


def fork(start: Callable[[], Awaitable[int]]) -> tuple[int, int, TextIO]:
    """A server process: pid, port, and where it tells its CPU."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        uvloop.run(live(start, write))
    os.close(write)
    told = os.fdopen(read)
    return pid, int(told.readline()), told


def ask(port: int) -> list[float]:
    """Seconds of each request, in order of size."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(REQUESTS):
            began = time.perf_counter()
            client.sendall(REQUEST + BODY)
            got = b""
            while SAID not in got:
                got += client.recv(65536)
            times.append(time.perf_counter() - began)
    return sorted(times)


def measure(pid: int, port: int, told: TextIO) -> tuple[float, float]:
    """CPU seconds a request, and the median of its latency."""
    os.kill(pid, signal.SIGUSR1)
    before = float(told.readline())
    times = ask(port)
    os.kill(pid, signal.SIGUSR1)
    return (float(told.readline()) - before) / REQUESTS, times[REQUESTS // 2]


def lines() -> tuple[float, float]:
    """CPU seconds of a log line, and of one below the level."""
    log, count = logger("bench"), 20_000
    with Path(os.devnull).open("w") as nothing:
        configure("info", human=False, stream=nothing)
        began = time.process_time()
        for _ in range(count):
            log.info("placed", pod="team/train-abc-12345", node="gpu-node-17", devices=["GPU-1"], ms=0.31)
        between = time.process_time()
        for _ in range(count):
            log.debug("seen", pod="team/train-abc-12345", node="gpu-node-17")
    return (between - began) / count, (time.process_time() - between) / count


def main() -> int:
    """Print the figures."""
    configure("error")
    servers = {name: fork(start) for name, start in WAYS.items()}
    try:
        found = {name: [measure(*server) for _ in range(1)] for name, server in servers.items()}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                found[name].append(measure(*server))
    finally:
        for pid, _, _ in servers.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for name, rounds in found.items():
        cpu, latency = min(r[0] for r in rounds), min(r[1] for r in rounds)
        print(f"{name:12} CPU {cpu * 1e6:5.0f} us a request, p50 {latency * 1e6:5.0f} us")
    line, filtered = min(lines() for _ in range(ROUNDS))
    print(f"log line     CPU {line * 1e6:5.1f} us, below the level {filtered * 1e6:.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
