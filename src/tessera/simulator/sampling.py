"""Which nodes kube-scheduler shows for one pod when it does not look at all of them.

It goes round over the nodes from where it stopped the last time, keeps those that pass its own checks (here: CPU
and memory of the node), and stops at so many; then devices are looked for on those alone. A pod that finds none is
tried again, from where that look stopped, until every node was seen once.

Source: kube-scheduler, ``numFeasibleNodesToFind`` and ``nextStartNodeIndex`` (schedule_one.go); by default it
looks for 500 of 5,000 nodes (50 % less 1 % for every 125 nodes, 5 % and 100 nodes at least).
"""

from collections.abc import Iterator

import numpy as np

from tessera.core.fleet import Ints, Snapshot
from tessera.core.request import Pod


class Sampler:
    """Samples of ``size`` nodes, one after another. ``looks`` counts them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._start = 0
        self.looks = 0

    def samples(self, snapshot: Snapshot, pod: Pod) -> Iterator[frozenset[str]]:
        """Names of nodes, until all nodes were seen; whoever has placed the pod stops asking."""
        count = len(snapshot.fleet.nodes)
        seen = 0
        while seen < count:
            rows, passed = self._next(snapshot, pod, count - seen)
            seen += passed
            self._start = (self._start + passed) % count
            self.looks += 1
            names = snapshot.fleet.node_names
            yield frozenset([names[row] for row in rows.tolist()])

    def _next(self, snapshot: Snapshot, pod: Pod, most: int) -> tuple[Ints, int]:
        """Nodes from the start on that have CPU and memory for the pod, and how many were passed for them."""
        fleet, usage = snapshot.fleet, snapshot.usage
        order = (self._start + np.arange(most)) % len(fleet.nodes)
        open_ = fleet.open & (usage.cpu + pod.cpu_milli <= fleet.cpu)
        open_ &= usage.host_memory + pod.memory_mib <= fleet.host_memory
        found = np.flatnonzero(open_[order])[: self._size]
        passed = int(found[-1]) + 1 if len(found) == self._size else most
        return np.asarray(order[found], dtype=np.int64), passed
