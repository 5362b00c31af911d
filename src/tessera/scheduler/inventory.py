"""The fleet as the agents publish it. One object a node, so never half of a node."""

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.device import Node
from tessera.core.fleet import Fleet
from tessera.wire.kube.inventory import GPUNodeStatus, node_of


class Inventory:
    """The GPUNodes that exist, and what follows from them."""

    def __init__(self) -> None:
        self._statuses: dict[str, GPUNodeStatus] = {}
        self._nodes: dict[str, Node] = {}
        self._cpu: dict[str, int] = {}
        self.doubled: dict[str, str] = {}
        """Devices that two nodes claim: uuid to the node that is not believed."""

    def __len__(self) -> int:
        return len(self._statuses)

    def set(self, name: str, status: GPUNodeStatus | None) -> bool:
        """Take in what an agent says, ``None`` where its object is gone; whether that changed the fleet."""
        before = self._statuses.get(name)
        if status is None:
            self._nodes.pop(name, None)
            return self._statuses.pop(name, None) is not None
        self._statuses[name] = status
        node = node_of(name, status)
        changed = self._nodes.get(name) != node or before is None or _marks(before) != _marks(status)
        self._nodes[name] = node
        return changed

    def set_cpu(self, name: str, milli: int | None) -> bool:
        """The milli-cores that a node offers to pods, ``None`` where nobody says; whether that changes the
        fleet.
        """
        before = self._cpu.pop(name, None)
        if milli is not None:
            self._cpu[name] = milli
        return milli != before and name in self._nodes

    def fleet(self) -> Fleet:
        """All nodes by name. A device that two nodes claim belongs to the first by name: cards do move."""
        nodes, owners = [], dict[str, str]()
        self.doubled = {}
        for name in sorted(self._nodes):
            node = self._nodes[name]
            taken = [d for d in node.devices if d.uuid in owners]
            for device in taken:
                self.doubled[device.uuid] = name
            if taken or len({d.uuid for d in node.devices}) != len(node.devices):
                kept = {d.uuid: d for d in node.devices if d.uuid not in owners}
                node = Node(name, tuple(kept.values()))
            owners.update((d.uuid, name) for d in node.devices)
            nodes.append(replace(node, cpu_milli=self._cpu.get(name)))
        return Fleet(nodes)

    def marks(self, node: str) -> Mapping[str, int]:
        """How many devices of the node the agent says somebody else holds, by ``namespace/name`` of the pod."""
        status = self._statuses.get(node)
        return {} if status is None else _marks(status)


def _marks(status: GPUNodeStatus) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in status.devices:
        if device.foreign:
            found[device.foreign] = found.get(device.foreign, 0) + 1
    return found
