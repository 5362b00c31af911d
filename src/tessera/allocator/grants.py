"""From chosen devices to a placement: the share on each, and what the pod takes of it at its peak."""

from collections.abc import Sequence

from tessera.core.device import Device
from tessera.core.placement import Charge, Grant, Placement
from tessera.core.request import Claim, Pod, phases
from tessera.core.share import Share, resolve

Taken = Sequence[Sequence[tuple[Device, Share]]]


def share_on(device: Device, claim: Claim) -> Share:
    """The claim's share on a device that fits it."""
    share = resolve(claim.share, device.memory_mib, device.milli_tflops)
    assert share is not None, "a device whose TFLOPS are unknown does not fit a claim in TFLOPS"
    return share


def group_of(claim: Claim, groups: Sequence[Sequence[str]]) -> int | None:
    """Which of the same-device groups the claim belongs to."""
    return next((i for i, group in enumerate(groups) if not set(group).isdisjoint(claim.containers)), None)


def placement_of(pod: Pod, node: str, claims: Sequence[Claim], chosen: Sequence[Sequence[Device]]) -> Placement:
    """The pod's placement on ``node``, each claim with its devices."""
    taken = [[(d, share_on(d, claim)) for d in devices] for claim, devices in zip(claims, chosen, strict=True)]
    grants: dict[str, tuple[Grant, ...]] = {}
    for claim, pairs in zip(claims, taken, strict=True):
        granted = tuple(Grant(d.uuid, d.index, d.model, share) for d, share in pairs)
        for container in claim.containers:
            grants[container] = grants.get(container, ()) + granted
    return Placement(
        pod_uid=pod.uid,
        pod_key=pod.key,
        node=node,
        grants=grants,
        charges=_charges(pod, claims, taken),
        cpu_milli=pod.cpu_milli,
        memory_mib=pod.memory_mib,
    )


def _charges(pod: Pod, claims: Sequence[Claim], taken: Taken) -> tuple[Charge, ...]:
    """What the pod takes of each device at its peak, counted per device and per quantity."""
    if len(taken) == 1:
        return tuple(Charge(d.uuid, s.memory_request, s.compute_request, 1, s.exclusive) for d, s in taken[0])
    life = phases(pod.containers)
    sums: dict[str, list[list[int]]] = {}
    exclusive: set[str] = set()
    for claim, pairs in zip(claims, taken, strict=True):
        alive = [p for p, names in enumerate(life) if not names.isdisjoint(claim.containers)]
        for device, share in pairs:
            per_phase = sums.setdefault(device.uuid, [[0, 0, 0] for _ in life])
            if share.exclusive:
                exclusive.add(device.uuid)
            for p in alive:
                for i, amount in enumerate((share.memory_request, share.compute_request, 1)):
                    per_phase[p][i] += amount
    peaks = {uuid: [max(column) for column in zip(*phase, strict=True)] for uuid, phase in sums.items()}
    return tuple(
        Charge(uuid, memory, compute, slots, uuid in exclusive) for uuid, (memory, compute, slots) in peaks.items()
    )
