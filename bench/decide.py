"""Time of one decision with its commit, by fleet size: median, p99 and greatest, in milliseconds.

A stream of fractional, whole and multi-device pods is placed until the fleet is about 80 % full, then pods
come and go. Every decision is timed with the ledger's commit, one core, warm.
"""

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders import a_claim, a_node, a_pod, a_share, whole
from tessera.allocator.ledger import Commit, Ledger, Release, Reserve
from tessera.allocator.place import place
from tessera.core.fleet import Fleet
from tessera.policy.rank import POLICIES


def run(nodes: int, devices: int, decisions: int) -> list[float]:
    """Milliseconds of each of ``decisions`` decisions at about 80 % allocation."""
    chance = random.Random(7)
    fleet = Fleet([a_node(f"n{i:05d}", devices, memory=81920) for i in range(nodes)])
    ledger, live, times = Ledger(fleet), [], []
    policy = POLICIES["binpack"]
    shapes = [
        (1, a_share(10240, 125)),
        (1, a_share(20480, 250)),
        (1, a_share(40960, 500)),
        (1, whole()),
        (2, whole()),
        (8, whole()),
        (1, a_share(4096, 0)),
        (2, a_share(16384, 200)),
    ]
    fill = int(nodes * devices * 0.8)
    for serial in range(fill + decisions):
        count, share = shapes[chance.randrange(len(shapes))]
        pod = a_pod(a_claim(share, count), name=f"p{serial}")
        start = time.perf_counter()
        placed = place(ledger.snapshot(), pod, policy)
        if placed:
            ledger.apply(Reserve(placed.placement))
            ledger.apply(Commit(pod.uid))
        took = (time.perf_counter() - start) * 1000
        if placed:
            live.append(pod.uid)
        if serial >= fill:
            times.append(took)
            if live:
                ledger.apply(Release(live.pop(chance.randrange(len(live)))))
    return times


def main() -> None:
    """Print one line per fleet size."""
    print("decision + commit: nodes x devices, median / p99 / max ms")
    for nodes, devices, decisions in ((500, 8, 2000), (1213, 8, 2000), (5000, 8, 2000)):
        times = sorted(run(nodes, devices, decisions))
        p99 = times[int(len(times) * 0.99)]
        print(f"  {nodes} x {devices}: {statistics.median(times):.3f} / {p99:.3f} / {times[-1]:.3f}")


if __name__ == "__main__":
    main()
