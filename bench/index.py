"""One decision of the index at 5,000 x 8 devices and 40,000 shares, for the 500 names that kube-scheduler sends.

Prints CPU microseconds of place (p50, p99) and of booking, and of patching the fleet. Asserts nothing.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from tessera.allocator.index import Index
from tessera.allocator.ledger import Commit, Ledger, Release, Reserve
from tessera.core.device import Device, Node
from tessera.core.fleet import Fleet
from tessera.core.request import Claim, Container, Pod, Request
from tessera.core.share import ComputeMilli, MemoryMiB, ShareSpec
from tessera.core.units import MiB, Milli
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.kernel import compiled_looker
from tessera.wire.kube.extender import NodeNames

SIZES = (
    (1, 8192, 100), (1, 20480, 250), (1, 40960, 500), (1, 10000, 125), (2, 40960, 500),
    (1, 81920, 1000), (1, 4096, 50), (4, 20480, 250), (1, 30000, 300), (1, 16384, 0),
)  # fmt: skip
NAMES = 500
MEASURED = 5000


def a_fleet(nodes: int) -> Fleet:
    """Nodes of eight equal devices."""
    return Fleet(
        [
            Node(
                f"node-{n:05}",
                tuple(Device(f"GPU-{n:05}-{i}", i, "A100", MiB(81920), "NVIDIA", numa=i // 4) for i in range(8)),
            )
            for n in range(nodes)
        ]
    )


def a_request(count: int, memory: int, compute: int) -> Request:
    """Request = limit."""
    m, c = MemoryMiB(MiB(memory)), ComputeMilli(Milli(compute))
    return Request((Claim(("main",), count, ShareSpec(m, m, c, c)),))


def cpu(action: Callable[[], object]) -> float:
    """CPU milliseconds of a call."""
    began = time.thread_time()
    action()
    return (time.thread_time() - began) * 1000


def measure(policy: str, *, kernel: bool, nodes: int, shares: int) -> None:
    """Fill the fleet by the index itself, pods coming and going, and print the last decisions' times."""
    rng = random.Random(1)
    fleet = a_fleet(nodes)
    ledger = Ledger(fleet)
    index = Index(ledger, POLICIES[policy], looker=compiled_looker() if kernel else None)
    requests = [a_request(*size) for size in SIZES]
    names = list(fleet.node_names)
    held: list[str] = []
    places, books = [], []
    for number in range(shares + MEASURED):
        start = rng.randrange(nodes)
        some = NodeNames(json.dumps((names[start:] + names[:start])[:NAMES]).encode())
        pod = Pod("default", f"p{number}", f"u{number}", (Container("main"),), rng.choice(requests))
        began = time.thread_time()
        placed = index.place(pod, some)
        places.append((time.thread_time() - began) * 1e6)
        if placed is not None:
            began = time.thread_time()
            ledger.apply(Reserve(placed.placement))
            ledger.apply(Commit(pod.uid))
            books.append((time.thread_time() - began) * 1e6)
            held.append(pod.uid)
        while len(held) > shares * 0.9:
            at = rng.randrange(len(held))
            ledger.apply(Release(held[at]))
            held[at] = held[-1]
            held.pop()
    last, booked = sorted(places[-MEASURED:]), sorted(books[-MEASURED:])
    print(
        f"{policy} {'compiled' if kernel else 'numpy'}, {nodes} x 8, {len(held)} shares: "
        f"place p50 {last[MEASURED // 2]:.0f} us, "
        f"p99 {last[MEASURED * 99 // 100]:.0f} us, book p50 {statistics.median(booked):.0f} us"
    )
    node = fleet.nodes[nodes // 2]
    ill = replace(node, devices=tuple(replace(d, healthy=False) for d in node.devices))
    patched: list[Fleet] = []
    print(
        f"patch the fleet {cpu(lambda: patched.append(fleet.replaced({node.name: ill}))):.1f} ms, "
        f"move the ledger {cpu(lambda: ledger.onto(patched[0])):.1f} ms"
    )


def main(nodes: int = 5000, shares: int = 40_000) -> None:
    """Print the figures of both policies, compiled and not."""
    for policy in ("binpack", DEFAULT_POLICY):
        for kernel in (True, False):
            measure(policy, kernel=kernel, nodes=nodes, shares=shares)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
