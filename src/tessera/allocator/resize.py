"""Whether a holder's share can become another one on the very devices that it has.

A share that runs cannot move: its memory is on the device. So a change is judged on its devices alone, against
what the others hold of them. Only what grows needs room; what shrinks is never refused here (whether it is in use
is known to the node alone).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.allocator.grants import placement_of
from tessera.core.device import Device
from tessera.core.placement import Charge, Placement, Reason
from tessera.core.request import Pod
from tessera.core.share import ComputeMilli, MemoryAmount, ShareSpec, resolve
from tessera.core.units import Milli


@dataclass(frozen=True, slots=True)
class Room:
    """What one holder may have of a device at most: all of it less what the others hold."""

    memory_mib: int
    compute_milli: int


@dataclass(frozen=True, slots=True)
class Short:
    """A device that has less room than was asked: MiB for ``Reason.MEMORY``, milli for ``Reason.COMPUTE``."""

    reason: Reason
    uuid: str
    asked: int
    room: int


def resized(spec: ShareSpec, memory: MemoryAmount | None, compute: Milli | None) -> ShareSpec:
    """The share with another amount of memory, of compute, or of both; what is ``None`` stays as it is.

    Request and limit become the same. Of a device that was held as a whole, what is not named stays all of it, but
    no longer alone.
    """
    if memory is not None:
        spec = replace(spec, memory_request=memory, memory_limit=memory, exclusive=False)
    if compute is not None:
        amount = ComputeMilli(compute)
        spec = replace(spec, compute_request=amount, compute_limit=amount, exclusive=False)
    return spec


def room_of(device: Device, uid: str, placements: Iterable[Placement]) -> Room:
    """The room of one holder on a device, by all placements there."""
    memory, compute = int(device.memory_mib), int(device.compute_milli)
    for charge in (c for p in placements if p.pod_uid != uid for c in p.charges if c.uuid == device.uuid):
        memory -= charge.memory_mib
        compute -= charge.compute_milli
    return Room(memory, compute)


def placed_again(pod: Pod, held: Placement, devices: Mapping[str, Device]) -> Placement | None:
    """What the pod's request, as it reads now, is on the devices that it holds.

    ``None`` where the two do not go together: a device is gone, the request asks for another number of them, or
    for TFLOPS of a model of which they are not known.
    """
    chosen = _chosen(pod, held, devices)
    if chosen is None or pod.request is None:
        return None
    return placement_of(pod, held.node, pod.request.claims, chosen)


def _chosen(pod: Pod, held: Placement, devices: Mapping[str, Device]) -> list[Sequence[Device]] | None:
    """The devices of each claim: a container's grants are those of its claims, in their order."""
    claims = pod.request.claims if pod.request else ()
    taken = dict.fromkeys(held.grants, 0)
    chosen: list[Sequence[Device]] = []
    for claim in claims:
        first = claim.containers[0]
        grants = held.grants.get(first, ())[taken.get(first, 0) :][: claim.count]
        found = [devices[grant.uuid] for grant in grants if grant.uuid in devices]
        if len(found) < claim.count or any(_is_unknown(claim.share, device) for device in found):
            return None
        chosen.append(found)
        for container in claim.containers:
            taken[container] = taken.get(container, 0) + claim.count
    whole = all(len(grants) == taken[container] for container, grants in held.grants.items())
    return chosen if whole else None


def _is_unknown(spec: ShareSpec, device: Device) -> bool:
    return resolve(spec, device.memory_mib, device.milli_tflops) is None


def shortages(before: Placement, after: Placement, room: Mapping[str, Room]) -> tuple[Short, ...]:
    """Where the new share is larger than the old one and than its room; none where it fits."""
    was = {charge.uuid: charge for charge in before.charges}
    return tuple(
        short for charge in after.charges for short in _short(was[charge.uuid], charge, room[charge.uuid])
    )


def grows(before: Placement, charge: Charge) -> bool:
    """Whether a charge of the new share is more than that of the old one on the same device."""
    was = next(one for one in before.charges if one.uuid == charge.uuid)
    return charge.memory_mib > was.memory_mib or charge.compute_milli > was.compute_milli


def _short(was: Charge, charge: Charge, room: Room) -> Iterable[Short]:
    if charge.memory_mib > was.memory_mib and charge.memory_mib > room.memory_mib:
        yield Short(Reason.MEMORY, charge.uuid, charge.memory_mib, room.memory_mib)
    if charge.compute_milli > was.compute_milli and charge.compute_milli > room.compute_milli:
        yield Short(Reason.COMPUTE, charge.uuid, charge.compute_milli, room.compute_milli)


def most(shorts: Iterable[Short], reason: Reason) -> int | None:
    """The most that would fit on every device that was short for that reason; ``None`` where none was."""
    return min((max(0, short.room) for short in shorts if short.reason is reason), default=None)
