"""Which ticket numbers wait on which node: from the reservation until the kubelet has taken the pod in.

A number that waits on a node is a reason against that node for the next pod that has it, because the agent could
not tell whose devices it is to hand out.
"""

from collections.abc import Iterable, Mapping


def in_use(number: int) -> str:
    """Why a pod with a number that waits on a node cannot go there."""
    return f"ticket {number} is in use there by a container that has not started yet"


class Waiting:
    """Tickets by number and node."""

    def __init__(self) -> None:
        self._by_ticket: dict[int, dict[str, set[str]]] = {}
        self._by_pod: dict[str, tuple[str, tuple[int, ...]]] = {}

    def put(self, uid: str, node: str, tickets: Iterable[int]) -> None:
        """The pod's containers wait on ``node``, and nowhere else."""
        numbers = tuple(tickets)
        if self._by_pod.get(uid) == (node, numbers):
            return
        self.drop(uid)
        if not numbers:
            return
        self._by_pod[uid] = (node, numbers)
        for number in numbers:
            self._by_ticket.setdefault(number, {}).setdefault(node, set()).add(uid)

    def drop(self, uid: str) -> bool:
        """The pod's containers wait no longer; whether they did."""
        node, numbers = self._by_pod.pop(uid, ("", ()))
        for number in numbers:
            nodes = self._by_ticket[number]
            nodes[node].discard(uid)
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._by_ticket[number]
        return bool(numbers)

    def nodes(self, tickets: Iterable[int], uid: str) -> dict[str, int]:
        """The nodes on which one of these numbers waits for another pod than ``uid``, with the number."""
        return {
            node: number
            for number in tickets
            for node, uids in self._by_ticket.get(number, {}).items()
            if len(uids) > 1 or uid not in uids
        }

    def rows(self) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
        """Node to number to the uids that wait, for people."""
        found: dict[str, dict[int, tuple[str, ...]]] = {}
        for number, nodes in sorted(self._by_ticket.items()):
            for node, uids in nodes.items():
                found.setdefault(node, {})[number] = tuple(sorted(uids))
        return found
