"""Is the node's driver being replaced? What NVIDIA's operator says of it in the node's labels.

A driver cannot be unloaded while anybody has it open: an agent that held on to it would have the driver's pod end
again and again. So it lets go from the step on in which pods are taken off the node, and comes back when the
operator is through.

Source: NVIDIA/k8s-operator-libs ``pkg/upgrade/consts.go`` (states); NVIDIA/k8s-driver-manager (``gpu.deploy.*``
labels become ``paused-for-...`` while modules are unloaded); kai-gpu-fractioning's changelog (a daemon that held
on).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
DEPLOY: Final = "nvidia.com/gpu.deploy."
PAUSED: Final = "paused-for-"

_IDLE: Final = frozenset(
    {"", "unknown", "upgrade-done", "upgrade-required", "uncordon-required", "upgrade-skipped"}
)
"""Nothing happens, or it waits its turn, or it is over."""
_BEFORE: Final = frozenset({"cordon-required", "wait-for-jobs-required"})
"""Nothing new comes, but pods that run may go on, perhaps for hours: they are watched until they are taken off."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A replacement of the driver: ``why`` nothing is handed out, and whether the driver must be let go of."""

    why: str = ""
    lets_go: bool = False


def upgrade_of(labels: Mapping[str, str] | None) -> Upgrade:
    """What a node's labels say. A state that is not known is taken for one in which the driver goes."""
    found = labels or {}
    state = found.get(STATE, "")
    for name in sorted(found):
        if name.startswith(DEPLOY) and found[name].startswith(PAUSED):
            return Upgrade(_why(name, found[name]), lets_go=True)
    if state in _IDLE:
        return Upgrade()
    return Upgrade(_why(STATE, state), lets_go=state not in _BEFORE)


def _why(label: str, value: str) -> str:
    return f"the node's driver is being replaced (its label {label} is {value})"
