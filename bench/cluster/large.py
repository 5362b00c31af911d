"""The scheduler at 5,000 nodes, 40,000 devices and 40,000 bound shares, all of them objects of a real API server.

Prints: how long a restart takes until the first placement (with half of the shares and with all), the process's
memory, and the time of Filter for the 500 names that kube-scheduler sends at that size, HTTP included.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from pods import SIZES, a_pod, a_request
from processes import rss_mib, start_extender

from cluster.engine.kinds import install_kinds
from cluster.engine.nodes import SimulatedNode, add_nodes, open_session, some_nodes
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.service import Service
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger
from tessera.core.fleet import Fleet
from tessera.core.placement import Placement
from tessera.core.request import Container, Pod
from tessera.policy.rank import POLICIES
from tessera.wire.kube.allocation import encode_allocation
from tessera.wire.kube.inventory import GPUNodeStatus, node_of
from tessera.wire.kube.names import ALLOCATION

NAMES_PER_CALL = 500
"""What kube-scheduler sends of 5,000 nodes: a tenth, by default."""


def placements(nodes: tuple[SimulatedNode, ...], shares: int) -> list[Placement]:
    """So many legal placements, spread over the fleet by the allocator itself."""
    fleet = Fleet([node_of(n.name, GPUNodeStatus(devices=n.inventory)) for n in nodes])
    ledger = Ledger(fleet)
    index = Index(ledger, POLICIES["node-spread-device-binpack"])
    small = [size[0] == 1 and size[2] < 500 for size in SIZES]
    requests = [a_request(*size) for size in SIZES]
    numbers = (number for number in itertools.count() if small[number % len(SIZES)])
    found: list[Placement] = []
    while len(found) < shares:
        number = next(numbers)
        request = requests[number % len(SIZES)]  # what the pod of this number asks for: see a_pod
        placed = index.place(Pod("default", f"s-{number}", str(number), (Container("main"),), request))
        assert placed is not None, "the fleet is too small for so many shares"
        ledger.apply(Adopt(placed.placement))
        found.append(placed.placement)
    return found


async def bind_all(plane: ControlPlane, wanted: list[Placement]) -> None:
    """Create a pod for each placement and bind it, as webhook and scheduler would have."""
    async with open_session(plane) as session:

        async def bind(placement: Placement) -> None:
            name = placement.pod_key.partition("/")[2]
            base = "/api/v1/namespaces/default/pods"
            made = json.loads(await session.call("POST", base, a_pod(name, int(placement.pod_uid), "none")))
            uid = made["metadata"]["uid"]
            held = Placement(uid, placement.pod_key, placement.node, placement.grants, placement.charges)
            meta = {"name": name, "uid": uid, "annotations": {ALLOCATION: encode_allocation(held, {})}}
            target = {"apiVersion": "v1", "kind": "Node", "name": placement.node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
            await session.call("POST", f"{base}/{name}/binding", body)
            status = {"status": {"phase": "Running", "containerStatuses": [_running()]}}
            await session.call("PATCH", f"{base}/{name}/status", status, "application/merge-patch+json")

        await session.each(wanted, bind)


def _running() -> dict[str, Any]:
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {"name": "main", "image": "none", "imageID": "", "ready": True, "restartCount": 0, "state": state}


def arguments(number: int, names: list[str]) -> bytes:
    """What kube-scheduler posts to Filter: a pod that was not placed yet, and names in its rotating order."""
    pod = a_pod(f"f-{number}", number, "tessera-scheduler")
    pod["metadata"] |= {"namespace": "default", "uid": f"uid-f-{number}"}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


async def filter_times(url: str, names: list[str], calls: int) -> list[float]:
    """Milliseconds of each call, one after another over one connection, as kube-scheduler calls."""
    rng = random.Random(1)
    times = []
    async with aiohttp.ClientSession() as http:
        for number in range(calls):
            start = rng.randrange(len(names))
            chosen = (names[start:] + names[:start])[:NAMES_PER_CALL]
            body = arguments(number, chosen)
            begin = time.perf_counter()
            async with http.post(url + "/filter", data=body) as answer:
                text = await answer.read()
            times.append((time.perf_counter() - begin) * 1000)
            assert len(json.loads(text)["NodeNames"] or ()) == 1, text[:300]
    return sorted(times)


async def floor_times(calls: int) -> float:
    """The median of the same exchange with a server that answers at once: what HTTP costs here."""

    async def nothing(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=b"{}")

    runner = web.ServerRunner(web.Server(nothing))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    body = arguments(0, [f"node-{i:04d}" for i in range(NAMES_PER_CALL)])
    times = []
    async with aiohttp.ClientSession() as http:
        for _ in range(calls):
            begin = time.perf_counter()
            async with http.post(f"http://127.0.0.1:{port}/", data=body) as answer:
                await answer.read()
            times.append((time.perf_counter() - begin) * 1000)
    await runner.cleanup()
    return sorted(times)[calls // 2]


def held(service: Service) -> int:
    """How many shares the extender says that it found when it started."""
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if '"message":"ready"' in line]
    return int(lines[-1]["holding"])


def restart(plane: ControlPlane, names: list[str], shares: int) -> tuple[int, str]:
    """Start the extender and print the time until its first placement."""
    begin = time.perf_counter()
    service, url = start_extender(plane)
    asyncio.run(filter_times(url, names, 1))
    took = time.perf_counter() - begin
    holders = held(service)
    assert holders == shares, f"{holders} of {shares} allocations are believed"
    print(f"start with {shares:,} bound shares to the first placement: {took:.2f} s", flush=True)
    return service.pid, url


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--shares", type=int, default=40_000)
    parser.add_argument("--calls", type=int, default=3000)
    options = parser.parse_args()
    nodes = some_nodes(options.nodes, devices=8)
    names = [node.name for node in nodes]
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder), Options(scheduler=False, controller_manager=False))
        with plane:
            install_kinds(plane)
            add_nodes(plane, nodes)
            wanted = placements(nodes, options.shares)
            half = options.shares // 2
            print(
                f"{options.nodes:,} nodes x 8 devices, {options.shares:,} shares, {os.cpu_count()} cores",
                flush=True,
            )
            asyncio.run(bind_all(plane, wanted[:half]))
            restart(plane, names, half)
            plane.services["tessera-scheduler"].stop()
            asyncio.run(bind_all(plane, wanted[half:]))
            pid, url = restart(plane, names, options.shares)
            times = asyncio.run(filter_times(url, names, options.calls))
            floor = asyncio.run(floor_times(options.calls))
            p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            print(f"Filter of {NAMES_PER_CALL} names over HTTP: p50 {p50:.2f}, p99 {p99:.2f} ms (goal 0.4 / 2 ms)")
            print(f"  the same exchange with an empty handler, client included: p50 {floor:.2f} ms")
            print(f"memory {rss_mib(pid):.0f} MiB (goal 400)")


if __name__ == "__main__":
    main()
