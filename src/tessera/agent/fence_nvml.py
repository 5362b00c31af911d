"""The fence of NVIDIA's driver, r615 and newer: NVML's memory limits of cgroups."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tessera.agent.fence import Held, Refused
from tessera.runtime.nvml_limits import Cause, DriverSays, GroupLimits, GroupMemory

AWAY: Final = Refused("the driver is not open", "see the agent's log for why", lasts=False, is_unknown=True)


class NvmlFence:
    """See the module. ``limits`` is ``None`` while the driver is away; ``enable`` brings the kernel's files to a
    cgroup.

    The driver says the same of a cgroup without a limit and of accounting that is off, so that only a limit that
    is set tells them apart: :meth:`refusal` sets none, on a cgroup of ours.
    """

    name = "the driver"

    def __init__(self, limits: Callable[[], GroupLimits | None], enable: Callable[[Path], None]) -> None:
        self._limits, self._enable = limits, enable

    def refusal(self, uuid: str, own: Path) -> Refused | None:
        """Why this driver limits no cgroup on a device; ``own`` is one that may be asked with."""
        return self.set(uuid, own, None)

    def held(self, uuid: str, group: Path) -> Held | Refused:
        """What holds for a cgroup on a device, or for the nearest one above it that has a limit."""
        limits = self._limits()
        if limits is None:
            return AWAY
        found = limits.memory(uuid, str(group))
        if isinstance(found, GroupMemory):
            return Held(found.limit, found.used)
        return Held(None, 0) if found.cause is Cause.OFF else refused(found, uuid, group)

    def set(self, uuid: str, group: Path, limit: int | None) -> Refused | None:
        """Limit a cgroup, or not at all."""
        limits = self._limits()
        if limits is None:
            return AWAY
        self._enable(group)
        says = limits.set(uuid, str(group), limit)
        return None if says is None else refused(says, uuid, group)


def refused(says: DriverSays, uuid: str, group: Path) -> Refused:
    """A refusal of the driver for people."""
    what = f"the driver limits no memory of {uuid} for cgroup {group}: {says.words}"
    cause = says.cause
    return Refused(
        what,
        _REMEDIES[cause],
        is_ours=cause is Cause.FORBIDDEN,
        lasts=cause not in (Cause.OTHER, Cause.NO_GROUP),
        is_unknown=cause is Cause.OTHER,
    )


_REMEDIES: Final = {
    Cause.OLD: "it takes driver r615 or newer; with --tier=auto the limiter does it",
    Cause.OFF: "load the driver with RmMemacctMode=3, or start the agent with --tier=hook",
    Cause.FORBIDDEN: "run the agent privileged: the driver lets nobody else set limits",
    Cause.NO_GROUP: "see that the cgroup is there and has the kernel's dmem controller, "
    "or start the agent with --tier=hook",
    Cause.OTHER: "see nvidia-smi",
}
