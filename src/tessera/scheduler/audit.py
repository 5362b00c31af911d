"""Is what is held what the pods say? A part of the nodes at a time, so that it is never noticed.

For each node, the allocations of its pods are read again from their text, what is set aside is decided again, and
the sums are compared with the live ledger. Every difference is a fault of ours: it is counted, told, and mended.
"""

from collections.abc import Iterator
from typing import Final

from tessera.core.placement import Placement
from tessera.scheduler.belief import believed
from tessera.scheduler.holdings import Phase
from tessera.scheduler.state import State

NODES_AT_ONCE: Final = 10
"""Twice a second: 1,000 nodes are gone over within a minute, for a hundredth of a busy scheduler's time."""


class Audit:
    """Walks over the nodes of the fleet, round and round. ``drift``: differences found in the last whole round."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._left: Iterator[str] = iter(())
        self._found = 0
        self.drift = 0
        self.rounds = 0

    def step(self, most: int = NODES_AT_ONCE) -> tuple[str, ...]:
        """Look at the next nodes, and say what differs there."""
        problems: list[str] = []
        for _ in range(most):
            node = next(self._left, None)
            found = self._begin() if node is None else node_drift(self._state, node)
            self._found += len(found)
            problems.extend(found)
            if node is None:
                break
        return tuple(problems)

    def _begin(self) -> list[str]:
        """A new round, which begins with the pods that nothing stands for."""
        self.drift, self._found = self._found, 0
        self.rounds += 1
        self._left = iter(self._state.fleet.node_names)
        return unheld(self._state)


def drift_of(state: State) -> tuple[str, ...]:
    """Every difference, at once."""
    return (*unheld(state), *(problem for node in state.fleet.node_names for problem in node_drift(state, node)))


def unheld(state: State) -> list[str]:
    """Bound pods that hold nothing, and holdings without a pod."""
    lost = [
        f"pod {facts.key} is bound to node {facts.node} and holds nothing"
        for uid, facts in state.pods.items()
        if facts.node and state.holdings.get(uid) is None and uid not in state.foreign.get(facts.node, {})
    ]
    orphans = [
        f"pod {held.placement.pod_key} holds devices of node {held.node} and is not known"
        for uid, held in state.holdings.items()
        if held.phase is Phase.BOUND and uid not in state.pods
    ]
    return lost + orphans


def node_drift(state: State, node: str) -> list[str]:
    """What differs on one node; nothing on one that has left the fleet since the round began."""
    if node not in state.fleet.node_row:
        return []
    placements, problems = _placements(state, node)
    fleet, usage = state.fleet, state.view().usage
    sums: dict[str, list[int]] = {}
    for charge in (charge for placement in placements for charge in placement.charges):
        due = sums.setdefault(charge.uuid, [0, 0, 0, 0])
        amounts = (charge.memory_mib, charge.compute_milli, charge.slots, int(charge.exclusive))
        for i, amount in enumerate(amounts):
            due[i] += amount
    for row in fleet.rows(fleet.node_row[node]):
        device = fleet.devices[row]
        live = [int(a[row]) for a in (usage.memory, usage.compute, usage.slots, usage.exclusive)]
        if live != sums.get(device.uuid, [0, 0, 0, 0]):
            problems.append(
                f"device {device.uuid} of node {node}: {live} is booked, {sums.get(device.uuid)} is due"
            )
    return problems


def _placements(state: State, node: str) -> tuple[list[Placement], list[str]]:
    """What ought to be booked on a node, from the texts of its pods."""
    found, problems = list(state.asides(node)), []
    for uid, held in state.holdings.on(node).items():
        facts = state.pods.get(uid)
        if held.phase is not Phase.BOUND or facts is None or facts.allocation is None:
            found.append(held.placement)  # a binding whose event is still to come is what we wrote
            continue
        request = state.requests.of(facts.request)
        allocation = believed(facts, None if isinstance(request, str) else request, {})
        if isinstance(allocation, str):
            problems.append(f"pod {facts.key} holds devices of node {node}, but its allocation {allocation}")
        else:
            found.append(allocation.placement)
    return found, problems
