"""Which pods are on which node, or will be: their labels, which soft preferences look at, their tickets and CPU.

How many pods of a selector each node has is counted when it is first asked for, and kept up to date from then on.
"""

from collections.abc import Collection, Mapping
from typing import Final

from tessera.policy.soft import Labels, Selector
from tessera.scheduler.offers import NOTHING, Amounts, Demand, Offers

REMEMBERED_SELECTORS: Final = 64

_NONE: Final[Labels] = {}
LabelSet = tuple[tuple[str, str], ...]
_Sitting = tuple[str, str, LabelSet, Demand, int]
"""A pod's node, namespace, labels, tickets and milli-cores."""


class Population:
    """Nodes, and the pods on them. A :class:`tessera.policy.soft.View`."""

    def __init__(self) -> None:
        self.offers = Offers()
        self._nodes: dict[str, Labels] = {}
        self._pods: dict[str, _Sitting] = {}
        self._cpu: dict[str, int] = {}
        self._busier: set[str] = set()
        self._tallies: dict[Selector, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def set_node(self, name: str, labels: Labels | None, offered: Amounts = NOTHING) -> bool:
        """A node's labels (``None`` where it is gone) and tickets; whether it offers more of any than before."""
        if labels is None:
            self._nodes.pop(name, None)
            return self.offers.set(name, NOTHING)
        self._nodes[name] = labels
        return self.offers.set(name, offered)

    def empty(self, but: Collection[str] = ()) -> None:
        """No pods are known ``but`` these; nodes are."""
        kept = {uid: pod for uid in but if (pod := self._pods.get(uid)) is not None}
        self._pods.clear()
        self._tallies.clear()
        self._busier |= self._cpu.keys()
        self._cpu.clear()
        self.offers.empty()
        for uid, pod in kept.items():
            self.put(uid, *pod)

    def put(
        self, uid: str, node: str, namespace: str, labels: LabelSet, demand: Demand = (), cpu_milli: int = 0
    ) -> None:
        """A pod is on ``node``, or will be, and takes so many of its tickets and milli-cores."""
        pod = (node, namespace, labels, demand, cpu_milli)
        if self._pods.get(uid) == pod:
            return
        self.drop(uid)
        self._pods[uid] = pod
        self._tally(pod, 1)
        self._weigh(node, cpu_milli)
        if demand:
            self.offers.take(node, demand)

    def drop(self, uid: str) -> bool:
        """A pod is gone; whether it leaves tickets of which the node had few."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return False
        self._tally(pod, -1)
        self._weigh(pod[0], -pod[4])
        return bool(pod[3]) and self.offers.give(pod[0], pod[3])

    def overdrawn(self, uid: str) -> str:
        """Why the pod cannot have its tickets where it is, or nothing."""
        node, _, _, demand, _ = self._pods.get(uid, ("", "", (), (), 0))
        return self.offers.overdrawn(node, demand)

    def cpu(self, node: str) -> int:
        """Milli-cores that the node's pods ask for."""
        return self._cpu.get(node, 0)

    def busier(self) -> Collection[str]:
        """The nodes whose pods ask for more or less CPU than at the last call."""
        found, self._busier = self._busier, set()
        return found

    def _weigh(self, node: str, cpu_milli: int) -> None:
        if cpu_milli:
            self._cpu[node] = self._cpu.get(node, 0) + cpu_milli
            self._busier.add(node)

    def labels(self, node: str) -> Labels:
        """A node's labels."""
        return self._nodes.get(node, _NONE)

    def counts(self, selector: Selector) -> Mapping[str, int]:
        """How many of the selected pods each node has."""
        found = self._tallies.pop(selector, None)
        if found is None:
            found = self._counted(selector)
        if len(self._tallies) >= REMEMBERED_SELECTORS:
            del self._tallies[next(iter(self._tallies))]
        self._tallies[selector] = found  # the last asked for is forgotten last
        return found

    def _counted(self, selector: Selector) -> dict[str, int]:
        found: dict[str, int] = {}
        verdicts: dict[tuple[str, LabelSet], bool] = {}
        for node, namespace, labels, _, _ in self._pods.values():
            kind = (namespace, labels)
            verdict = verdicts.get(kind)
            if verdict is None:
                verdict = verdicts[kind] = selector.selects(namespace, dict(labels))
            if verdict:
                found[node] = found.get(node, 0) + 1
        return found

    def _tally(self, pod: _Sitting, sign: int) -> None:
        node, namespace, labels, _, _ = pod
        if not self._tallies:
            return
        own = dict(labels)
        for selector, tally in self._tallies.items():
            if selector.selects(namespace, own):
                left = tally.get(node, 0) + sign
                if left:
                    tally[node] = left
                else:
                    del tally[node]
