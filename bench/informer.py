"""Memory, pause and speed of an informer with 100,000 pods over TLS: ``bench/informer.py [PODS [EVENTS]]``.

The pods are synthetic and as large as real ones (11 KB each, managedFields included); a process of its own serves
them as an API server does, in pages of 500, and then sends changes of them as fast as they are taken. What is kept
is measured twice: thin pods as :class:`~tessera.wire.kube.objects.KubePod` has them, and the projection that a
scheduler needs (who, where, what was allocated).
"""

import asyncio
import gc
import json
import random
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from tessera.runtime.clock import SYSTEM
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.port import PODS
from tessera.runtime.tls import new_authority, new_leaf
from tessera.wire.kube.objects import KubePod

PAGE = 500
EVENTS = 50_000


class Held(msgspec.Struct, frozen=True, gc=False):
    """What a scheduler keeps of a bound pod."""

    uid: str
    key: str
    node: str
    phase: str
    allocation: str | None
    request: str | None


def held(pod: KubePod) -> Held:
    return Held(
        pod.metadata.uid,
        pod.metadata.key,
        pod.spec.node_name,
        pod.status.phase,
        pod.metadata.annotation("tessera.dev/allocation"),
        pod.metadata.annotation("tessera.dev/request"),
    )


# long: one flat object
def a_pod(number: int, version: int) -> bytes:
    """About 11 KB of JSON in the API server's order, with the parts that a real pod has."""
    name, uid = f"trainer-{number:06d}", f"6f9619ff-8b86-4011-b42d-{number:012x}"
    device = f"GPU-{number % 40_000:08x}-6b3a-4f0e-9d3c-000000000000"
    grant = {"uuid": device, "index": 1, "model": "A100", "memory": [10240, 10240], "compute": [125, 125]}
    allocation = {
        "v": 1,
        "pod": uid,
        "node": f"node-{number % 5000:05d}",
        "containers": {"main": [grant]},
        "charges": [{"uuid": device, "memory": 10240, "compute": 125}],
        "tickets": {"main": number % 512},
    }
    request = {
        "v": 1,
        "dialect": "native",
        "claims": [
            {"containers": ["main"], "count": 1, "share": {"memory": {"mib": 10240}, "compute": {"milli": 125}}}
        ],
    }
    env = [{"name": f"SETTING_{i}", "value": f"value-{i}-of-a-setting"} for i in range(20)]
    paths = {f"f:field{i}": {".": {}, "f:name": {}, "f:value": {}, "f:valueFrom": {}} for i in range(62)}
    container = {
        "name": "main",
        "image": "registry.example/team/trainer:2026.11.1",
        "command": ["python", "-m", "train", "--steps", "10000"],
        "env": env,
        "resources": {
            "limits": {"cpu": "4", "memory": "16Gi", "tessera.dev/gpu": "1", "tessera.dev/ticket-3": "5"},
            "requests": {"cpu": "4", "memory": "16Gi", "tessera.dev/gpu": "1", "tessera.dev/ticket-3": "5"},
        },
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    status = {
        "name": "main",
        "state": {"running": {"startedAt": "2026-11-30T10:00:00Z"}},
        "ready": True,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "sha256:" + "a" * 64,
        "containerID": f"containerd://{number:064x}",
        "started": True,
    }
    pod = {
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 50}",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": 1,
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "labels": {"app": "trainer", "team": f"team-{number % 50}", "tessera.dev/managed": "true"},
            "annotations": {
                "tessera.dev/request": json.dumps(request, separators=(",", ":")),
                "tessera.dev/allocation": json.dumps(allocation, separators=(",", ":")),
            },
            "managedFields": [
                {"manager": m, "operation": "Update", "apiVersion": "v1", "fieldsV1": paths}
                for m in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 5000:05d}",
            "schedulerName": "tessera-scheduler",
            "containers": [container],
            "tolerations": [{"key": f"node.kubernetes.io/{i}", "operator": "Exists"} for i in range(4)],
        },
        "status": {"phase": "Running", "containerStatuses": [status], "podIPs": [{"ip": "10.0.0.1"}]},
    }
    return json.dumps(pod, separators=(",", ":")).encode()


def printer() -> Callable[[int, int], bytes]:
    """Pods by number and version, printed into one rendered text: the server must not be the slower side."""
    mark, version = 123_457, 987_654_321
    parts: list[tuple[str, str]] = [
        (f"trainer-{mark:06d}", "trainer-{n:06d}"),
        (f"{mark:012x}", "{n:012x}"),
        (f"team-{mark % 50}", "team-{t}"),
        (f"node-{mark % 5000:05d}", "node-{m:05d}"),
        (f"GPU-{mark % 40_000:08x}", "GPU-{g:08x}"),
        (f"containerd://{mark:064x}", "containerd://{n:064x}"),
        (f'"resourceVersion":"{version}"', '"resourceVersion":"{v}"'),
    ]
    text = a_pod(mark, version).decode().replace("{", "{{").replace("}", "}}")
    for found, field in parts:
        text = text.replace(found, field)
    return lambda n, v: text.format(n=n, t=n % 50, m=n % 5000, g=n % 40_000, v=v).encode()


def serve(pods: int, events: int, folder: Path) -> None:
    """The process that stands for the API server: pages, then changes of all pods in turn."""
    a_pod = printer()
    first = pods + 1
    changes = [b'{"type":"MODIFIED","object":%s}\n' % a_pod(i % pods, first + i) for i in range(min(events, 2000))]
    start = asyncio.Event()

    async def listed(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await watched(request)
        begin = int(request.query.get("continue", "0"))
        end = min(begin + PAGE, pods)
        more = b',"continue":"%d"' % end if end < pods else b""
        items = b",".join(a_pod(i, i + 1) for i in range(begin, end))
        return web.Response(
            body=b'{"metadata":{"resourceVersion":"%d"%s},"items":[%s]}' % (pods, more, items),
            content_type="application/json",
        )

    async def watched(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await start.wait()
        for i in range(0, events, 100):
            batch = b"".join(
                changes[(i + j) % len(changes)].replace(
                    b'"resourceVersion":"%d"' % (first + (i + j) % len(changes)),
                    b'"resourceVersion":"%d"' % (first + i + j),
                )
                for j in range(100)
            )
            await response.write(batch)
        await asyncio.Event().wait()
        return response

    async def go(_: web.Request) -> web.Response:
        start.set()
        return web.Response()

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/api/v1/pods", listed)
        app.router.add_get("/go", go)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "leaf.crt", folder / "leaf.key")
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


def resident() -> float:
    """MiB of this process, now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure(config: ClusterConfig, pods: int, events: int, *, projected: bool) -> None:
    client = ApiClient(config, page=PAGE)
    project: Any = held if projected else None
    before = resident()
    informer: Informer[KubePod, Any] = Informer(
        client, PODS, KubePod, clock=SYSTEM, rng=random.Random(1), project=project
    )
    wall, cpu = time.perf_counter(), time.process_time()
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(informer.store) == pods
    print(f"  list      {pods} pods: {wall:.1f} s, {cpu:.1f} s of CPU ({cpu / pods * 1e6:.0f} us a pod)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  memory    {resident():.0f} MiB resident in all, peak {peak:.0f}; {before:.0f} before the list")
    pauses = []
    for _ in range(5):
        began = time.perf_counter()
        gc.collect()
        pauses.append((time.perf_counter() - began) * 1000)
    print(f"  collect   {max(pauses):.1f} ms at most in 5 full collections")
    seen = 0

    def count(_old: object, _new: object) -> None:
        nonlocal seen
        seen += 1

    informer.handlers.append(count)
    last = str(pods + events)
    wall, cpu = time.perf_counter(), time.process_time()
    await client.raw("/go")
    while informer.resource_version != last:
        await asyncio.sleep(0.005)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"  events    {events / wall:.0f} a second beside their server, {events / cpu:.0f} a second of CPU "
        f"({cpu / events * 1e6:.0f} us each; {seen} told)"
    )
    task.cancel()
    await asyncio.wait({task})
    await client.close()


def main() -> None:
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    events = int(sys.argv[2]) if len(sys.argv) > 2 else EVENTS
    print(f"{len(a_pod(1, 1))} bytes a pod")
    for projected in (True, False):
        # Each in a process of its own: memory that was freed is not always given back.
        subprocess.run([sys.executable, __file__, "one", str(pods), str(events), str(int(projected))], check=True)


def one(pods: int, events: int, *, projected: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, now = Path(name), time.time()
        authority = new_authority(86400, now)
        leaf = new_leaf(authority, ["127.0.0.1"], 86400, now)
        (folder / "leaf.crt").write_bytes(leaf.certificate)
        (folder / "leaf.key").write_bytes(leaf.key)
        with subprocess.Popen(
            [sys.executable, __file__, "serve", str(pods), str(events), name], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            config = ClusterConfig(
                "bench", f"https://127.0.0.1:{int(server.stdout.readline())}", authority.certificate
            )
            print("projection" if projected else "thin pods")
            try:
                uvloop.run(measure(config, pods, events, projected=projected))
            finally:
                server.kill()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", pods, events, folder]:
            serve(int(pods), int(events), Path(folder))
        case ["one", pods, events, projected]:
            one(int(pods), int(events), projected=projected == "1")
        case _:
            main()
