"""Small builders for tests: a fleet, a pod, a share, in one readable line each."""

from collections.abc import Sequence

from tessera.core.device import Device, Node
from tessera.core.fleet import Fleet
from tessera.core.request import Claim, Constraints, Container, ContainerKind, Pod, Preference, Request
from tessera.core.share import ComputeMilli, MemoryFraction, MemoryMiB, ShareSpec
from tessera.core.units import MiB, Milli


def a_device(uuid: str = "g0", memory: int = 24576, **facts: object) -> Device:
    """A device with the given memory (MiB); anything else by keyword."""
    given: dict[str, object] = {"index": 0, "model": "A100", "vendor": "nvidia", **facts}
    return Device(uuid=uuid, memory_mib=MiB(memory), **given)  # type: ignore[arg-type]


def a_node(name: str = "n0", devices: int | Sequence[Device] = 1, memory: int = 24576, **facts: object) -> Node:
    """A node with so many equal devices, or with these."""
    if isinstance(devices, int):
        devices = [a_device(f"{name}-{i}", memory, index=i) for i in range(devices)]
    return Node(name=name, devices=tuple(devices), **facts)  # type: ignore[arg-type]


def a_fleet(*nodes: Node) -> Fleet:
    """A fleet of these nodes."""
    return Fleet(nodes)


def a_share(memory: int = 0, compute: int = 0, *, exclusive: bool = False) -> ShareSpec:
    """Request = limit, in MiB and milli-devices."""
    mem, com = MemoryMiB(MiB(memory)), ComputeMilli(Milli(compute))
    return ShareSpec(mem, mem, com, com, exclusive)


def whole() -> ShareSpec:
    """A whole device, exclusively."""
    mem, com = MemoryFraction(Milli(1000)), ComputeMilli(Milli(1000))
    return ShareSpec(mem, mem, com, com, exclusive=True)


def a_claim(share: ShareSpec, count: int = 1, containers: str | tuple[str, ...] = "main") -> Claim:
    """A claim of one container, or held jointly by several."""
    return Claim((containers,) if isinstance(containers, str) else containers, count, share)


def a_pod(
    *claims: Claim,
    name: str = "p",
    kinds: dict[str, ContainerKind] | None = None,
    constraints: Constraints | None = None,
    **facts: object,
) -> Pod:
    """A pod of these claims; its containers are those that the claims name, in order, ``kinds`` saying which
    are not app containers.
    """
    names = dict.fromkeys(c for claim in claims for c in claim.containers)
    containers = tuple(Container(c, (kinds or {}).get(c, ContainerKind.APP)) for c in names)
    request = Request(claims, constraints or Constraints(), Preference())
    given: dict[str, object] = {"containers": containers, "request": request, **facts}
    return Pod(namespace="default", name=name, uid=name, **given)  # type: ignore[arg-type]
