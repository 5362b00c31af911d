"""Time of one decision with its commit by the default policy, by fleet size: median, p99 and greatest, in
milliseconds.

A stream of fractional, whole and multi-device pods is placed until the fleet is about 80 % full, then pods come
and go. Every decision is timed (CPU time of its thread) with the ledger's commit, with the compiled kernel and
without; what is scarce is looked at again every 100 pods. The first decision of each kind of pod looks at the
whole fleet.
"""

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders import a_claim, a_node, a_pod, a_share, whole
from tessera.allocator.index import Index
from tessera.allocator.kinds import kind_of
from tessera.allocator.ledger import Commit, Ledger, Release, Reserve
from tessera.allocator.look import Looker
from tessera.core.fleet import Fleet
from tessera.core.request import Pod
from tessera.policy.outlook import outlook_of, protecting
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.kernel import compiled_looker

SHAPES = (
    (1, a_share(10240, 125)), (1, a_share(20480, 250)), (1, a_share(40960, 500)), (1, whole()), (2, whole()),
    (8, whole()), (1, a_share(4096, 0)), (2, a_share(16384, 200)),
)  # fmt: skip
PODS = [a_pod(a_claim(share, count), cpu_milli=4000 * count) for count, share in SHAPES]
SIZES = ((500, 8), (1213, 8), (5000, 8), (10_000, 8))


class World:
    """A fleet, what is on it, and the index under test."""

    def __init__(self, nodes: int, devices: int) -> None:
        self.chance = random.Random(7)
        self.fleet = Fleet([a_node(f"n{i:05d}", devices, memory=81920, cpu_milli=96_000) for i in range(nodes)])
        self.ledger = Ledger(self.fleet)
        self.live: list[str] = []
        self.serial = 0

    def index(self, looker: Looker | None) -> Index:
        """An index that expects what comes."""
        counts = {kind_of(self.fleet, pod): 1 for pod in PODS}
        return Index(self.ledger, POLICIES[DEFAULT_POLICY], outlook_of(self.fleet, counts), looker)

    def decide(self, index: Index) -> float:
        """Place one more pod; milliseconds."""
        self.serial += 1
        if self.serial % 100 == 0:
            index.outlook = protecting(index.outlook, self.ledger.view(), index.outlook.generation + 1)
        like = PODS[self.chance.randrange(len(PODS))]
        uid = f"p{self.serial}"
        pod = Pod("default", uid, uid, like.containers, like.request, cpu_milli=like.cpu_milli)
        began = time.thread_time()
        placed = index.place(pod)
        if placed:
            self.ledger.apply(Reserve(placed.placement))
            self.ledger.apply(Commit(uid))
        took = (time.thread_time() - began) * 1000
        if placed:
            self.live.append(uid)
        return took

    def leave(self) -> None:
        """One pod ends."""
        at = self.chance.randrange(len(self.live))
        self.ledger.apply(Release(self.live[at]))
        self.live[at] = self.live[-1]
        self.live.pop()

    def full(self) -> bool:
        """Whether four fifths are taken."""
        return int(self.ledger.view().usage.left.sum()) < len(self.fleet.devices) * 200


def measured(world: World, index: Index, decisions: int) -> list[float]:
    """Milliseconds of so many decisions, pods coming and going."""
    times = []
    for _ in range(decisions):
        times.append(world.decide(index))
        while world.full():
            world.leave()
    return sorted(times)


def main(decisions: int = 2000) -> None:
    """Print a line for each fleet size and way of looking."""
    print(f"{DEFAULT_POLICY}, decision + commit: nodes x devices, median / p99 / max ms of CPU")
    for nodes, devices in SIZES:
        world = World(nodes, devices)
        filling = world.index(compiled_looker())
        while not world.full():
            world.decide(filling)
        for name, looker in (("compiled", compiled_looker()), ("numpy", None)):
            times = measured(world, world.index(looker), decisions)
            p99 = times[int(len(times) * 0.99)]
            print(f"  {nodes} x {devices} {name}: {statistics.median(times):.3f} / {p99:.3f} / {times[-1]:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
