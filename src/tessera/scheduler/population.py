"""Labels of nodes, and of the pods on them: what soft preferences look at.

How many pods of a selector each node has is counted when it is first asked for, and kept up to date from then on.
"""

from collections.abc import Mapping
from typing import Final

from tessera.policy.soft import Labels, Selector

REMEMBERED_SELECTORS: Final = 64

_NONE: Final[Labels] = {}
LabelSet = tuple[tuple[str, str], ...]


class Population:
    """Nodes and pods by their labels. A :class:`tessera.policy.soft.View`."""

    def __init__(self) -> None:
        self._nodes: dict[str, Labels] = {}
        self._pods: dict[str, tuple[str, str, LabelSet]] = {}
        self._tallies: dict[Selector, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def set_node(self, name: str, labels: Labels | None) -> None:
        """A node's labels; ``None`` where the node is gone."""
        if labels is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = labels

    def empty(self) -> None:
        """No pods are known; nodes are."""
        self._pods.clear()
        self._tallies.clear()

    def put(self, uid: str, node: str, namespace: str, labels: LabelSet) -> None:
        """A pod is on ``node``, or will be."""
        pod = (node, namespace, labels)
        if self._pods.get(uid) == pod:
            return
        self.drop(uid)
        self._pods[uid] = pod
        self._tally(pod, 1)

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._tally(pod, -1)

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
        for node, namespace, labels in self._pods.values():
            kind = (namespace, labels)
            verdict = verdicts.get(kind)
            if verdict is None:
                verdict = verdicts[kind] = selector.selects(namespace, dict(labels))
            if verdict:
                found[node] = found.get(node, 0) + 1
        return found

    def _tally(self, pod: tuple[str, str, LabelSet], sign: int) -> None:
        node, namespace, labels = pod
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
