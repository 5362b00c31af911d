"""How a pod counts in the target workload."""

from typing import Final

import numpy as np

from tessera.allocator.fit import memo_of
from tessera.allocator.rules import constraints_of
from tessera.core.fleet import Fleet
from tessera.core.placement import Reason
from tessera.core.request import Claim, Constraints, Pod
from tessera.core.units import WHOLE
from tessera.policy.target import Kind

_OF_A_MODEL: Final = frozenset({Reason.VENDOR, Reason.MODEL})
"""What rules out a device for what it is, and not for which one it is."""


def kind_of(fleet: Fleet, pod: Pod) -> Kind:
    """The pod's kind on this fleet, by its largest claim and what that takes of most devices that it may use.

    Raises ``ValueError`` for a pod that has no request.
    """
    if pod.request is None:
        raise ValueError(f"pod {pod.key} asks for no accelerator")
    kinds = [_claimed(fleet, pod, claim, pod.request.constraints) for claim in pod.request.claims]
    return max(kinds, key=lambda kind: kind.milli * kind.count, default=Kind(pod.weighed_cpu_milli, 0, 0))


def _claimed(fleet: Fleet, pod: Pod, claim: Claim, constraints: Constraints) -> Kind:
    memo = memo_of(fleet)
    by_reason = memo.ruled(constraints_of(claim, constraints)).by_reason
    usable = ~np.logical_or.reduce([mask for reason, mask in by_reason if reason in _OF_A_MODEL])
    takes = np.sort(memo.need(claim.share).takes[usable])
    milli = min(int(takes[len(takes) // 2]), WHOLE) if len(takes) else WHOLE
    models = tuple(fleet.models[row] for row in np.unique(fleet.model[usable]).tolist())
    return Kind(pod.weighed_cpu_milli, milli, claim.count, () if len(models) == len(fleet.models) else models)
