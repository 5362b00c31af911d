"""Pods on our nodes that use devices without us: other schedulers', other device plugins', forged ones.

Which devices the kubelet gave them is not written anywhere that we may read, so as many whole devices as they ask
for are set aside, the idlest ones, until the node's agent has seen who holds what and marks the devices itself.
The choice is a function of the bound pods alone, so that a rebuild makes the same one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.device import Device
from tessera.core.placement import Charge, Placement
from tessera.core.units import WHOLE


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A pod that holds ``count`` devices of a node without us."""

    uid: str
    key: str
    node: str
    count: int


def entry_of(uid: str) -> str:
    """The name under which a holder's devices stand in the ledger; no pod has such a uid."""
    return f"foreign/{uid}"


def set_aside(
    devices: Sequence[Device],
    holders: Iterable[Holder],
    marks: Mapping[str, int],
    ours: Iterable[Charge],
) -> tuple[Placement, ...]:
    """What each holder is taken to hold of a node's ``devices``; ``ours`` are the charges of our bound pods.

    Devices that the agent has marked (``marks``: how many, by pod) are out of the game already, and so are as many
    of the pod's count. Where holders want more than there is, the rest has nothing to stand for.
    """
    used: dict[str, tuple[int, int]] = {}
    for charge in ours:
        slots, memory = used.get(charge.uuid, (0, 0))
        used[charge.uuid] = (slots + charge.slots, memory + charge.memory_mib)
    idlest = sorted(
        (d for d in devices if not d.cordoned), key=lambda d: (*used.get(d.uuid, (0, 0)), d.index, d.uuid)
    )
    found, at = [], 0
    for holder in sorted(holders):
        count = max(0, holder.count - marks.get(holder.key, 0))
        taken, at = idlest[at : at + count], at + count
        if taken:
            found.append(_placement(holder, taken))
    return tuple(found)


def _placement(holder: Holder, devices: Sequence[Device]) -> Placement:
    charges = tuple(Charge(d.uuid, d.memory_mib, WHOLE, 1, exclusive=True) for d in devices)
    return Placement(entry_of(holder.uid), holder.key, holder.node, {}, charges)
