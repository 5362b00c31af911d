"""Which allocation annotations are believed: only what the bound pod can have got from us.

Whoever may write pods may write this annotation on a pod that is bound already. It carries uid and node, so a copy
from elsewhere is nothing; what is left is checked against the pod's own request and against itself.
"""

from collections.abc import Mapping

from tessera.core.placement import Placement
from tessera.core.request import Request
from tessera.core.share import ComputeMilli, MemoryMiB, Share, ShareSpec
from tessera.scheduler.facts import PodFacts
from tessera.wire.kube.allocation import Allocation, decode_allocation


def believed(facts: PodFacts, request: Request | None, node_of: Mapping[str, str]) -> Allocation | str:
    """The allocation of a bound pod, or why it is not believed. ``node_of``: where each known device is.

    A device that is not known may have broken or moved away under the running pod, and is no contradiction.
    """
    if facts.allocation is None:
        return "has none"
    if request is None:
        return "is on a pod without a request"
    try:
        found = decode_allocation(facts.allocation, uid=facts.uid, key=facts.key, node=facts.node)
    except ValueError as error:
        return str(error)
    return _contradiction(found, request, node_of) or found


def _contradiction(found: Allocation, request: Request, node_of: Mapping[str, str]) -> str:
    placement = found.placement
    wanted = {name for claim in request.claims for name in claim.containers}
    if placement.grants.keys() != wanted:
        names = ", ".join(sorted(placement.grants.keys() ^ wanted))
        return f"does not grant what the request asks for (containers {names})"
    for name, grants in placement.grants.items():
        asked = [claim.share for claim in request.claims if name in claim.containers for _ in range(claim.count)]
        if len(grants) != len(asked):
            return f"grants {len(grants)} devices to container {name}, which asks for {len(asked)}"
        if any(not _equals(grant.share, share) for grant, share in zip(grants, asked, strict=True)):
            return f"grants container {name} another share than it asks for"
    return misplaced(placement, node_of) or _undercharged(found)


def _equals(granted: Share, asked: ShareSpec) -> bool:
    """Whether a grant is what was asked for, as far as that is not relative to the device."""
    memory, compute = asked.memory_request, asked.compute_request
    return (
        granted.exclusive == asked.exclusive
        and (not isinstance(memory, MemoryMiB) or granted.memory_request == memory.mib)
        and (not isinstance(compute, ComputeMilli) or granted.compute_request == compute.milli)
    )


def misplaced(placement: Placement, node_of: Mapping[str, str]) -> str:
    """Which device is on another node; empty where none is."""
    for charge in placement.charges:
        if node_of.get(charge.uuid, placement.node) != placement.node:
            return f"grants device {charge.uuid}, which is on node {node_of[charge.uuid]}"
    return ""


def _undercharged(found: Allocation) -> str:
    """A pod's peak on a device is at least each single grant on it."""
    charges = {charge.uuid: charge for charge in found.placement.charges}
    for grants in found.placement.grants.values():
        for grant in grants:
            charge, share = charges[grant.uuid], grant.share
            if (
                charge.memory_mib < share.memory_request
                or charge.compute_milli < share.compute_request
                or charge.exclusive < share.exclusive
            ):
                return f"charges less for device {grant.uuid} than it grants"
    return ""
