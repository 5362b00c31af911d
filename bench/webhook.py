"""The webhook's cost: reviews a second on one core over TLS, and what it adds to the creation of a pod.

The server is pinned to the first core, the clients to the second. Every kind of review has a server of its own,
and they are asked in turns of a second, so that a machine that changes its speed changes it for all; a handler
that answers a constant gives the floor of the HTTP server. What counts is CPU time: the rate is that of a
client in Python on a busy machine. With an engine (the harness under tests/cluster) pods are created on a real
API server, see ``webhook_creates.py``.

Usage: ``python bench/webhook.py [--seconds S] [--rounds N] [--creates N]``; exits 1 where a goal is missed.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import socket
import ssl
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "cluster"))

from processes import cpu_seconds

from cluster.engine.binaries import CONTROL_PLANE, missing_reason
from tessera.runtime.clock import SYSTEM
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.metrics import Metrics
from tessera.runtime.serve import Answer, Bind, serve
from tessera.runtime.tls import Lifetimes, ReloadingContext, new_authority, new_leaf
from tessera.webhook.app import reviewer
from tessera.webhook.profiles import KnownProfiles
from tessera.wire.kube.mutation import Tickets
from tessera.wire.kube.review import Admission
from tessera.wire.kube.verdict import Options
from webhook_creates import a_pod, creates

GOAL_PER_SECOND = 4_000
GOAL_ADDED_MS = 1.0
CONNECTIONS = 8
NEVER_SEEN = 30_000
"""More than are asked in all rounds together."""


def reviews(different: int) -> list[bytes]:
    """Requests with reviews of ``different`` contents, each ready to be sent."""
    found = []
    for n in range(max(different, 64)):
        share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(1000 + n % different)}
        request = {
            "uid": f"705ab4f5-6393-11e8-b7cc-{n:012d}",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "team",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": a_pod("", share, n),
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        }
        review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
        body = json.dumps(review).encode()
        head = f"POST /v1/pods?timeout=5s HTTP/1.1\r\nHost: webhook\r\nContent-Length: {len(body)}\r\n\r\n"
        found.append(head.encode() + body)
    return found


# the server, in a process of its own


def run_server(constant: bool, pipe: Connection) -> None:
    """Tell the port and the authority, and serve until the pipe says stop."""
    import uvloop  # noqa: PLC0415 - as the process does

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    async def live() -> None:
        authority = new_authority(Lifetimes().authority, time.time())
        context = ReloadingContext()
        context.load(new_leaf(authority, ["localhost"], Lifetimes().leaf, time.time()))

        def trivial(_method: str, _path: str, _body: bytes) -> Answer:
            return Answer(b'{"response":{"allowed":true}}')

        profiles = KnownProfiles(MemoryCluster(), clock=SYSTEM, rng=random.Random(1))
        ours = reviewer(Admission(Options(), Tickets(0), profiles), profiles, Metrics())
        server = await serve(
            trivial if constant else ours, Bind("127.0.0.1", 0), name="bench", tls=context.context
        )
        pipe.send((server.bind.port, authority.certificate.decode()))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(live())


class Client(threading.Thread):
    """One kept connection that asks as fast as it is answered, in turn with its siblings."""

    def __init__(
        self, port: int, authority: str, requests: Sequence[bytes], turn: Iterator[int], seconds: float
    ) -> None:
        super().__init__()
        self.requests, self.turn, self.seconds = requests, turn, seconds
        self.times: list[float] = []
        context = ssl.create_default_context(cadata=authority)
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = context.wrap_socket(plain, server_hostname="localhost")

    def run(self) -> None:
        """Ask until the time is up."""
        until = time.perf_counter() + self.seconds
        while (began := time.perf_counter()) < until:
            self.connection.sendall(self.requests[next(self.turn) % len(self.requests)])
            answer = self.connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
            while b"\r\n\r\n" not in answer or len(answer) < _length(answer):
                answer += self.connection.recv(65536)
            self.times.append(time.perf_counter() - began)
        self.connection.close()


def _length(answer: bytes) -> int:
    head, _, _ = answer.partition(b"\r\n\r\n")
    size = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return len(head) + 4 + int(size.split(b":")[1])


@dataclass
class Kind:
    """One kind of review with its server, and what was measured of it: one figure a round."""

    label: str
    requests: Sequence[bytes]
    constant: bool = False
    turn: Iterator[int] = field(default_factory=itertools.count)
    cpu: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start the server."""
        self._pipe, there = multiprocessing.Pipe()
        self._server = multiprocessing.Process(target=run_server, args=(self.constant, there), daemon=True)
        self._server.start()
        self._port, self._authority = self._pipe.recv()

    def ask(self, seconds: float, connections: int = CONNECTIONS) -> None:
        """One round."""
        assert self._server.pid is not None
        clients = [
            Client(self._port, self._authority, self.requests, self.turn, seconds) for _ in range(connections)
        ]
        before, began = cpu_seconds(self._server.pid), time.perf_counter()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        took, times = time.perf_counter() - began, [t for client in clients for t in client.times]
        self.cpu.append((cpu_seconds(self._server.pid) - before) / len(times) * 1e6)
        self.rates.append(len(times) / took)
        self.waits.append(statistics.median(times) * 1e3)

    def forget(self) -> None:
        """Drop what was measured while the server was cold."""
        for figures in (self.cpu, self.rates, self.waits):
            figures.clear()

    def stop(self) -> None:
        """End the server."""
        self._pipe.send("stop")
        self._server.join(10)

    def line(self, floor: "Kind") -> str:
        """The medians of all rounds, and the least and the most CPU time of one."""
        cpu, rate, wait = (statistics.median(figures) for figures in (self.cpu, self.rates, self.waits))
        over = cpu - statistics.median(floor.cpu)
        return (
            f"  {self.label + ':':<27} {cpu:4.0f} us of CPU each ({min(self.cpu):.0f} to {max(self.cpu):.0f}), "
            f"{over:+4.0f} over the floor, {rate:6,.0f}/s, p50 {wait:.2f} ms"
        )


def throughput(seconds: float, rounds: int) -> Iterator[str]:
    """What a review costs, by what it is about."""
    floor = Kind("a constant answer", reviews(1), constant=True)
    template = Kind("pods of one template", reviews(1))
    kinds = [
        floor,
        template,
        Kind("each of 64 other contents", reviews(64)),
        Kind("never seen before", reviews(NEVER_SEEN)),
    ]
    for kind in kinds:
        kind.start()
        kind.ask(0.5)
        kind.forget()
    for _ in range(rounds):
        for kind in kinds:
            kind.ask(seconds)
    yield from (kind.line(floor) for kind in kinds)
    cpu = statistics.median(template.cpu)
    template.forget()
    template.ask(seconds, connections=1)
    yield f"  one connection: {template.rates[0]:,.0f}/s, p50 {template.waits[0]:.2f} ms"
    for kind in kinds:
        kind.stop()
    yield f"  one core's worth of pods of one template: {1e6 / cpu:,.0f}/s (goal {GOAL_PER_SECOND:,})"
    if 1e6 / cpu < GOAL_PER_SECOND:
        _MISSED.append("reviews a second")


_MISSED: list[str] = []


def main() -> int:
    """Print every figure; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--creates", type=int, default=500, help="of each kind of pod")
    given = parser.parse_args()
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(everywhere)})
    size = len(reviews(1)[0])
    print(f"reviews of {size / 1024:.1f} KB over TLS, server on one core, {CONNECTIONS} connections:")
    for line in throughput(given.seconds, given.rounds):
        print(line, flush=True)
    os.sched_setaffinity(0, everywhere)
    reason = missing_reason(*CONTROL_PLANE)
    if reason or not given.creates:
        print(reason or "no pod is created, as was asked for")
    else:
        print(f"creating {given.creates} pods of each kind on a real API server, one client, in turns:")
        added, lines = creates(given.creates)
        print("\n".join(lines))
        _MISSED.extend(["added to a pod's creation"] if added > GOAL_ADDED_MS else [])
    print(f"goals: {GOAL_PER_SECOND:,}/s and {GOAL_ADDED_MS} ms; missed: {', '.join(_MISSED) or 'none'}")
    return 1 if _MISSED else 0


if __name__ == "__main__":
    sys.exit(main())
