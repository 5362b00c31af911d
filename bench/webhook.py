"""The webhook's cost: reviews a second on one core over TLS, and what it adds to the creation of a pod.

The server is pinned to the first core, the clients to the second. In the same run a handler that answers a
constant gives the floor of the HTTP server, so that the ratio is worth more than the figure. With an engine (the
harness under tests/cluster) pods of ours and pods that ask for nothing are created in turn on a real API server.

Usage: ``python bench/webhook.py [--seconds S] [--creates N]``; exits 1 where a goal is missed.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cluster.engine.binaries import CONTROL_PLANE, missing_reason
from cluster.engine.plane import ControlPlane, Options
from cluster.webhook_objects import SHARE
from cluster.webhook_process import Webhook, install
from tessera.runtime.clock import SYSTEM
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.metrics import Metrics
from tessera.runtime.serve import Answer, Bind, serve
from tessera.runtime.tls import Lifetimes, ReloadingContext, new_authority, new_leaf
from tessera.webhook.app import reviewer
from tessera.webhook.profiles import KnownProfiles
from tessera.wire.kube.mutation import Tickets
from tessera.wire.kube.review import Admission
from tessera.wire.kube.verdict import Options as Choices

GOAL_PER_SECOND = 4_000
GOAL_ADDED_MS = 1.0
CONNECTIONS = 8


def a_pod(name: str, share: dict[str, str] | None, replica: int = 0) -> dict[str, object]:
    """A pod as a Deployment makes them, about 5 KB: what the API server adds is there."""
    env = [{"name": f"SETTING_{n}", "value": f"a value of some length {n:04d}"} for n in range(24)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10}
    main = {
        "name": "main",
        "image": "registry.example/team/model-server:v1.42.0",
        "args": ["--model", "/models/large", "--port", "8080"],
        "env": env,
        "resources": {"limits": share, "requests": share} if share else {},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": f"kube-api-access-{replica:05d}", "mountPath": "/var/run/secrets/token"}],
    }
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {"f:containers": {f"k{n}": {} for n in range(60)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "server", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"team.example/owner": "inference"},
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {
            "containers": [main, {"name": "proxy", "image": "registry.example/proxy:v1", "resources": {}}],
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "volumes": [{"name": f"kube-api-access-{replica:05d}", "emptyDir": {}}],
        },
    }  # fmt: skip


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


def run_server(constant: bool, pipe: "multiprocessing.connection.Connection") -> None:
    """Serve until the pipe says stop; answers with the port, the authority, and at the end its CPU seconds."""
    import uvloop  # noqa: PLC0415 - as the process does

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    async def live() -> None:
        authority = new_authority(Lifetimes().authority, time.time())
        context = ReloadingContext()
        context.load(new_leaf(authority, ["localhost"], Lifetimes().leaf, time.time()))

        async def trivial(_method: str, _path: str, _body: bytes) -> Answer:
            return Answer(b'{"response":{"allowed":true}}')

        profiles = KnownProfiles(MemoryCluster(), clock=SYSTEM, rng=random.Random(1))
        ours = reviewer(Admission(Choices(), Tickets(0), profiles), profiles, Metrics())
        server = await serve(
            trivial if constant else ours, Bind("127.0.0.1", 0), name="bench", tls=context.context
        )
        pipe.send((server.bind.port, authority.certificate.decode()))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv) != "stop":
            pipe.send(resource.getrusage(resource.RUSAGE_SELF))

    uvloop.run(live())


class Client(threading.Thread):
    """One kept connection that asks as fast as it is answered."""

    def __init__(self, port: int, authority: str, requests: Sequence[bytes], until: float) -> None:
        super().__init__()
        self.requests, self.until = requests, until
        self.times: list[float] = []
        context = ssl.create_default_context(cadata=authority)
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = context.wrap_socket(plain, server_hostname="localhost")

    def run(self) -> None:
        """Ask until the time is up."""
        place = 0
        while (began := time.perf_counter()) < self.until:
            self.connection.sendall(self.requests[place % len(self.requests)])
            answer = self.connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
            while b"\r\n\r\n" not in answer or len(answer) < _length(answer):
                answer += self.connection.recv(65536)
            self.times.append(time.perf_counter() - began)
            place += 1
        self.connection.close()


def _length(answer: bytes) -> int:
    head, _, _ = answer.partition(b"\r\n\r\n")
    size = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return len(head) + 4 + int(size.split(b":")[1])


def throughput(
    requests: Sequence[bytes], seconds: float, connections: int, *, constant: bool
) -> tuple[float, float, float]:
    """Reviews a second, CPU microseconds of the server for each, and the median latency in ms."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=run_server, args=(constant, there), daemon=True)
    server.start()
    port, authority = here.recv()
    warm = [Client(port, authority, requests, time.perf_counter() + 0.5) for _ in range(connections)]
    _run(warm)
    here.send("usage")
    before = here.recv()
    clients = [Client(port, authority, requests, time.perf_counter() + seconds) for _ in range(connections)]
    began = time.perf_counter()
    _run(clients)
    took = time.perf_counter() - began
    here.send("usage")
    after = here.recv()
    here.send("stop")
    server.join(10)
    times = [t for client in clients for t in client.times]
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return len(times) / took, cpu / len(times) * 1e6, statistics.median(times) * 1e3


def _run(clients: Sequence[Client]) -> None:
    for client in clients:
        client.start()
    for client in clients:
        client.join()


# a real API server


def added(creates: int) -> Iterator[str]:
    """What a review adds to the creation of a pod: both kinds in turn, one client."""
    with tempfile.TemporaryDirectory() as folder:
        with ControlPlane(Path(folder) / "plane", Options(scheduler=False, controller_manager=False)) as plane:
            replica = Webhook(plane, Path(folder), "--linger", "0")
            install(plane, replica.url)
            replica.start()
            plane.new_namespace("team")
            times: dict[str, list[float]] = {"plain": [], "ours": []}
            for n in range(-50, creates):
                for kind, share in (("plain", None), ("ours", SHARE)):
                    body = a_pod(f"{kind}-{n + 50}", share)
                    began = time.perf_counter()
                    plane.api.post("/api/v1/namespaces/team/pods", body)
                    if n >= 0:
                        times[kind].append((time.perf_counter() - began) * 1e3)
        plain, ours = (sorted(times[kind]) for kind in ("plain", "ours"))
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            without, with_us = plain[int(len(plain) * part)], ours[int(len(ours) * part)]
            yield f"  {name}: {without:.2f} ms without a review, {with_us:.2f} with, {with_us - without:+.2f} ms"
        _MISSED.extend(
            ["added to a pod's creation"]
            if statistics.median(ours) - statistics.median(plain) > GOAL_ADDED_MS
            else []
        )


_MISSED: list[str] = []


def main() -> int:
    """Print every figure; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--creates", type=int, default=500)
    given = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    size = len(reviews(1)[0])
    print(f"reviews of {size / 1024:.1f} KB over TLS, server on one core, {CONNECTIONS} connections:")
    floor, cpu, median = throughput(reviews(1), given.seconds, CONNECTIONS, constant=True)
    print(f"  a constant answer:       {floor:7,.0f}/s, {cpu:4.0f} us of CPU each, p50 {median:.2f} ms")
    for label, different in (
        ("pods of one template", 1),
        ("each of 64 other contents", 64),
        ("never seen before", 50_000),
    ):
        rate, cpu, median = throughput(reviews(different), given.seconds, CONNECTIONS, constant=False)
        share = f"{rate / floor:.2f} of the floor"
        print(f"  {label + ':':<24} {rate:7,.0f}/s, {cpu:4.0f} us of CPU each, p50 {median:.2f} ms, {share}")
        if different == 1 and 1e6 / cpu < GOAL_PER_SECOND:
            _MISSED.append("reviews a second")
    rate, cpu, median = throughput(reviews(1), given.seconds, 1, constant=False)
    print(f"  one connection:          {rate:7,.0f}/s, p50 {median:.2f} ms")
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    reason = missing_reason(*CONTROL_PLANE)
    print(reason or "creating a pod on a real API server, one client:")
    for line in () if reason else added(given.creates):
        print(line)
    print(f"goals: {GOAL_PER_SECOND:,}/s and {GOAL_ADDED_MS} ms; missed: {', '.join(_MISSED) or 'none'}")
    return 1 if _MISSED else 0


if __name__ == "__main__":
    sys.exit(main())
