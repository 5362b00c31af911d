"""Every device of a cluster with what is allocated, what is free and who holds it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tessera.cluster.anomalies import Anomaly, anomalies_of, concerns
from tessera.cluster.observe import Look, placements
from tessera.core.device import Device
from tessera.core.placement import Charge
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus
from tessera.wire.planfile import API_VERSION


class How(StrEnum):
    """How somebody holds a device."""

    SHARE = "share"
    SET_ASIDE = "set-aside"
    FOREIGN = "foreign"


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds what of a device. ``set-aside``: one that stands for what a pod uses without Tessera."""

    pod: str
    how: How
    memory_mib: int
    compute_milli: int
    exclusive: bool
    containers: tuple[str, ...] = ()


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One device. Memory in MiB, compute in thousandths of the device."""

    node: str
    index: int
    uuid: str
    model: str
    vendor: str
    numa: int | None
    healthy: bool
    reason: str
    usable: bool
    isolation: str
    memory_mib: int
    memory_allocated_mib: int
    memory_free_mib: int
    compute_allocated_milli: int
    shares: int
    exclusive: bool
    holders: tuple[Holding, ...]


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """What ``kubectl tessera devices -o json`` prints. Fields are added, never renamed."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    kind: str = "Devices"
    nodes: int
    devices: tuple[DeviceRow, ...]
    anomalies: tuple[Anomaly, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    """A node's own part of its devices' rows."""

    name: str
    status: GPUNodeStatus
    usable: bool

    def facts(self) -> Mapping[str, DeviceFacts]:
        """The published facts by uuid."""
        return {facts.uuid: facts for facts in self.status.devices}


def devices_of(look: Look, names: Iterable[str] | None = None) -> Devices:
    """The devices of these nodes, or of all, by node and index."""
    wanted = None if names is None else frozenset(names)
    chosen = [node for node in look.fleet.nodes if wanted is None or node.name in wanted]
    held = holders_of(look)
    rows: list[DeviceRow] = []
    for node in chosen:
        about = _Node(node.name, look.statuses[node.name], usable=not node.cordoned)
        facts = about.facts()
        rows.extend(_row(look, about, device, facts[device.uuid], held) for device in node.devices)
    return Devices(
        nodes=len(chosen),
        devices=tuple(rows),
        anomalies=tuple(a for a in anomalies_of(look) if wanted is None or concerns(a, wanted, look)),
    )


def holders_of(look: Look) -> Mapping[str, tuple[Holding, ...]]:
    """Who holds what of each device, by uuid."""
    found: dict[str, list[Holding]] = {}
    for placement in placements(look.state):
        how = How.SHARE if placement.grants else How.SET_ASIDE
        for charge in placement.charges:
            containers = tuple(
                name for name, grants in placement.grants.items() if any(g.uuid == charge.uuid for g in grants)
            )
            found.setdefault(charge.uuid, []).append(_holding(placement.pod_key, how, charge, containers))
    for status in look.statuses.values():
        for facts in status.devices:
            if facts.foreign:
                whole = Charge(facts.uuid, facts.memory_mib, 1000, 1, exclusive=True)
                found.setdefault(facts.uuid, []).append(_holding(facts.foreign, How.FOREIGN, whole, ()))
    return {uuid: tuple(sorted(holders, key=lambda h: h.pod)) for uuid, holders in found.items()}


def _holding(pod: str, how: How, charge: Charge, containers: tuple[str, ...]) -> Holding:
    return Holding(
        pod=pod,
        how=how,
        memory_mib=charge.memory_mib,
        compute_milli=charge.compute_milli,
        exclusive=charge.exclusive,
        containers=containers,
    )


def _row(
    look: Look, node: _Node, device: Device, facts: DeviceFacts, held: Mapping[str, tuple[Holding, ...]]
) -> DeviceRow:
    at, usage = look.fleet.device_row[device.uuid], look.snapshot.usage
    exclusive = bool(usage.exclusive[at]) or bool(facts.foreign)
    memory = device.memory_mib if exclusive else int(usage.memory[at])
    holders = held.get(device.uuid, ())
    return DeviceRow(
        node=node.name,
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        vendor=device.vendor,
        numa=device.numa,
        healthy=device.healthy,
        reason=facts.reason,
        usable=node.usable and device.healthy,
        isolation=node.status.isolation,
        memory_mib=device.memory_mib,
        memory_allocated_mib=memory,
        memory_free_mib=max(0, device.memory_mib - memory),
        compute_allocated_milli=device.compute_milli if exclusive else int(usage.compute[at]),
        shares=len(holders),
        exclusive=exclusive,
        holders=holders,
    )
