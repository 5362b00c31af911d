"""The rules that a device's own facts decide, for one device at a time and without arrays.

:mod:`tessera.allocator.fit` has the same rules as columns over a whole fleet; a law holds the two together.
"""

from collections.abc import Callable
from typing import Final

from tessera.core.device import Device
from tessera.core.placement import Reason
from tessera.core.request import Claim, Constraints, ModelRule

STATIC_RULES: Final[tuple[tuple[Reason, Callable[[Device, Constraints], bool]], ...]] = (
    (Reason.VENDOR, lambda d, c: c.vendor is not None and d.vendor != c.vendor),
    (Reason.MODE, lambda d, c: bool(c.modes) and d.mode not in c.modes),
    (Reason.MODEL, lambda d, c: not model_passes(d.model, c)),
    (
        Reason.UUID,
        lambda d, c: (bool(c.uuids_allowed) and d.uuid not in c.uuids_allowed) or d.uuid in c.uuids_denied,
    ),
    (Reason.INDEX, lambda d, c: bool(c.indices) and d.index not in c.indices),
    (Reason.UNHEALTHY, lambda d, _: not d.healthy),
    (Reason.CORDONED, lambda d, _: d.cordoned),
)
"""Each with the devices that it rules out, in the order in which reasons are given."""


def model_passes(model: str, constraints: Constraints) -> bool:
    """Whether the model is allowed and not denied."""
    allowed, denied = constraints.models_allowed, constraints.models_denied
    return (not allowed or _matches(model, allowed)) and not _matches(model, denied)


def _matches(model: str, rules: tuple[ModelRule, ...]) -> bool:
    lowered = model.lower()
    return any(r.pattern == model if r.exact else r.pattern.lower() in lowered for r in rules)


def passes(device: Device, constraints: Constraints) -> bool:
    """Whether the device may serve at all, whatever is used of it."""
    return not any(rules_out(device, constraints) for _, rules_out in STATIC_RULES)


def constraints_of(claim: Claim, constraints: Constraints) -> Constraints:
    """The pod's constraints with what the claim narrows for itself."""
    if claim.vendor is None:
        return constraints
    kept = {name: getattr(constraints, name) for name in constraints.__slots__}
    return Constraints(**{**kept, "vendor": claim.vendor})
