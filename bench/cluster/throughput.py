"""Pods per second through the real kube-scheduler, with our extender and without it, in turns in one run.

Both kube-schedulers are stock; nodes, pods and everything else are the same. What the plain one cannot know
(resources that no node has) it is told to ignore. Everything runs on the same cores: API server, etcd, both
schedulers, the client that creates the pods, and our process.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pods import VENDOR_RESOURCES, Counter, a_pod, delete_all, numbers
from processes import cpu_seconds, rss_mib, start_scheduler

from cluster.engine.kinds import install_kinds
from cluster.engine.nodes import Session, add_nodes, open_session, some_nodes
from cluster.engine.plane import ControlPlane, Options

NAMESPACE = "default"


def plain_config() -> dict[str, object]:
    """The stock scheduler without an extender, told to ignore what no node has."""
    fit = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeResourcesFitArgs",
        "ignoredResources": list(VENDOR_RESOURCES),
        "scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 1}]},
    }
    return {
        "clientConnection": {"qps": 5000, "burst": 10000},
        "profiles": [{"schedulerName": "plain", "pluginConfig": [{"name": "NodeResourcesFit", "args": fit}]}],
    }


async def one_run(session: Session, scheduler: str, count: int, pid: int) -> tuple[float, float, float]:
    """Pods per second from the first create to the last bind, the median time from create to bound, and the CPU
    milliseconds that process ``pid`` used for each until then.
    """
    counter = Counter(session, NAMESPACE)
    watch = asyncio.create_task(counter.watch())
    await counter.watching.wait()
    created: dict[str, float] = {}

    async def create(number: int) -> None:
        name = f"p-{number}"
        await session.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", a_pod(name, number, scheduler))
        created[name] = time.perf_counter()

    mine = [next(numbers()) for _ in range(count)]
    start, used = time.perf_counter(), cpu_seconds(pid)
    await session.each(mine, create)
    await counter.until(count, 300, watch)
    took, used = max(counter.bound.values()) - start, cpu_seconds(pid) - used
    waits = [counter.bound[name] - created[name] for name in created]
    watch.cancel()
    await delete_all(session, NAMESPACE)
    return count / took, statistics.median(waits), used / count * 1000


async def runs(plane: ControlPlane, count: int, times: int, pid: int) -> None:
    """Alternate, and print each run and the ratio of the medians."""
    rates: dict[str, list[float]] = {"plain": [], "tessera-scheduler": []}
    async with open_session(plane) as session:
        for scheduler in rates:
            await one_run(session, scheduler, 200, pid)
        for _ in range(times):
            for scheduler, found in rates.items():
                rate, wait, ours = await one_run(session, scheduler, count, pid)
                found.append(rate)
                extra = f", our CPU {ours:.2f} ms a pod" if scheduler != "plain" else ""
                print(f"{scheduler:18} {rate:6.0f} pods/s, create to bound p50 {wait:.2f} s{extra}", flush=True)
    plain, ours = (statistics.median(found) for found in rates.values())
    print(f"ratio of medians {ours / plain:.3f} (goal 0.90), our memory {rss_mib(pid):.0f} MiB")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{options.nodes} nodes x {options.devices} devices, {options.pods} pods a run, {os.cpu_count()} cores",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder), Options(scheduler=False)) as plane:
        install_kinds(plane)
        add_nodes(plane, some_nodes(options.nodes, devices=options.devices))
        plane.start_scheduler("plain", config=plain_config())
        ours = start_scheduler(plane)
        asyncio.run(runs(plane, options.pods, options.times, ours.pid))


if __name__ == "__main__":
    sys.exit(main())
