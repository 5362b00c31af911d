"""Who uses how much of what they may: one row a container and device, one a device."""

from collections.abc import Iterable, Iterator

import msgspec

from tessera.cluster.devices import devices_of
from tessera.cluster.observe import Look
from tessera.cluster.usage import (
    CONTAINER_PEAK,
    CONTAINER_REFUSED,
    CONTAINER_USED,
    DEVICE_BUSY,
    DEVICE_USED,
    Used,
    mib,
)
from tessera.core.placement import Grant, Placement
from tessera.wire.planfile import API_VERSION


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """A container on a device: its limits, and what it uses; ``null`` where nobody knows."""

    namespace: str
    pod: str
    container: str
    node: str
    device: int
    uuid: str
    memory_limit_mib: int
    memory_used_mib: int | None
    memory_peak_mib: int | None
    compute_limit_milli: int
    exclusive: bool
    refused: int | None
    isolation: str | None = None
    """How its limits hold: enforced, unverified or absent."""


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """A device: what is given out, and what is used by whomever; ``null`` where nobody knows."""

    node: str
    index: int
    uuid: str
    model: str
    healthy: bool
    memory_mib: int
    memory_allocated_mib: int
    memory_used_mib: int | None
    compute_allocated_milli: int
    busy_percent: float | None
    shares: int


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A node of which nothing is known now, and why."""

    node: str
    why: str


class Top(msgspec.Struct, frozen=True, kw_only=True):
    """What ``kubectl tessera top -o json`` prints. Fields are added, never renamed."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    kind: str = "Top"
    pods: tuple[PodUse, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    silent: tuple[Silence, ...] = ()


def top_pods(look: Look, used: Used, namespace: str = "") -> Top:
    """The pods that hold a share, those of one namespace or all, by name."""
    held = sorted((held.placement for _, held in look.state.holdings.items()), key=lambda p: p.pod_key)
    chosen = [p for p in held if not namespace or p.pod_key.partition("/")[0] == namespace]
    rows = tuple(row for placement in chosen for row in _rows(placement, used))
    return Top(pods=rows, silent=tuple(_silent(used, {row.node for row in rows})))


def top_devices(look: Look, used: Used) -> Top:
    """Every device, by node and index."""
    rows = tuple(
        DeviceUse(
            node=row.node,
            index=row.index,
            uuid=row.uuid,
            model=row.model,
            healthy=row.healthy,
            memory_mib=row.memory_mib,
            memory_allocated_mib=row.memory_allocated_mib,
            memory_used_mib=mib(used.device(DEVICE_USED, row.uuid)),
            compute_allocated_milli=row.compute_allocated_milli,
            busy_percent=_percent(used.device(DEVICE_BUSY, row.uuid)),
            shares=row.shares,
        )
        for row in devices_of(look).devices
    )
    return Top(devices=rows, silent=tuple(_silent(used, {row.node for row in rows})))


def _rows(placement: Placement, used: Used) -> Iterator[PodUse]:
    for container, grants in sorted(placement.grants.items()):
        for grant in sorted(grants, key=lambda g: g.index):
            yield _row(placement, container, grant, used)


def _row(placement: Placement, container: str, grant: Grant, used: Used) -> PodUse:
    namespace, _, pod = placement.pod_key.partition("/")
    key = (namespace, pod, container, grant.uuid)
    refused = used.container(CONTAINER_REFUSED, key)
    return PodUse(
        namespace=namespace,
        pod=pod,
        container=container,
        node=placement.node,
        device=grant.index,
        uuid=grant.uuid,
        memory_limit_mib=grant.share.memory_limit,
        memory_used_mib=mib(used.container(CONTAINER_USED, key)),
        memory_peak_mib=mib(used.container(CONTAINER_PEAK, key)),
        compute_limit_milli=grant.share.compute_limit,
        exclusive=grant.share.exclusive,
        refused=None if refused is None else int(refused),
        isolation=used.isolation.get(key[:3]),
    )


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * ratio, 1)


def _silent(used: Used, nodes: Iterable[str]) -> Iterator[Silence]:
    for node in sorted(nodes):
        if node in used.silent:
            yield Silence(node=node, why=f"its agent did not answer: {used.silent[node]}")
        elif node not in used.answered:
            yield Silence(node=node, why="no agent runs on it")
