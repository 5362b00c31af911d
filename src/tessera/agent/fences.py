"""Which fence holds a device's memory, if any: the strongest that this node has, as far as a person allows it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.agent.cgroups import CgroupTree
from tessera.agent.fence import Fence, Refused
from tessera.agent.fence_dmem import CAPACITY, DmemFence, read_regions, region_of
from tessera.agent.fence_nvml import NvmlFence
from tessera.agent.machine import Machine
from tessera.runtime.log import logger

REMEDY: Final = "start the agent with --tier=auto to let the limiter hold memory alone"

_log: Final = logger("agent.fences")


class TierPolicy(StrEnum):
    """What a person decided about this node's tier."""

    AUTO = "auto"
    """The driver's limit where there is one, else the limiter alone."""
    DRIVER = "driver"
    """Nothing is handed out where the driver cannot limit it."""
    HOOK = "hook"
    """The limiter alone."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the last look found of a device: its fence, or why it has none."""

    fence: Fence | None
    why: Refused | None = None


class Fences:
    """See the module. What was found of a device that cannot be read now stays: nobody falls back in silence."""

    def __init__(self, machine: Machine, tree: CgroupTree, policy: TierPolicy) -> None:
        self._machine, self._tree, self.policy = machine, tree, policy
        self._nvml = NvmlFence(machine.group_limits, tree.enable)
        self._found: dict[str, _Found] = {}
        self._asked: set[str] = set()
        self._opening = 0
        self._told = ""

    def look(self, uuids: Iterable[str]) -> None:
        """Ask about devices that can be read now and were not asked about since the driver was opened."""
        if self._machine.openings != self._opening:
            self._opening, self._asked = self._machine.openings, set()
        for uuid in uuids:
            if self.policy is not TierPolicy.HOOK and uuid not in self._asked:
                self._learn(uuid, self._ask(uuid))
        why = str(self.problem or "")
        if why != self._told:
            self._told = why
            _log.info("driver tier", devices=len(self._found), problem=why or "none")

    def _learn(self, uuid: str, found: _Found) -> None:
        if found.why is None or found.why.lasts:
            self._asked.add(uuid)
        elif self.of(uuid) is not None:
            return  # it could be limited before: that it was not answered just now changes nothing
        self._found[uuid] = found

    def _ask(self, uuid: str) -> _Found:
        if not self._tree.is_there:
            return _Found(None, Refused("containers of this node are in no tree of cgroup v2", REMEDY))
        own = self._tree.own()
        if own is None:
            return _Found(None, Refused(f"our own cgroup is not below {self._tree.root}", REMEDY, lasts=False))
        refused = self._nvml.refusal(uuid, own)
        if refused is None:
            return _Found(self._nvml)
        fence = self._kernel_fence(uuid)
        return _Found(fence, None if fence else refused)

    def _kernel_fence(self, uuid: str) -> Fence | None:
        address = self._machine.address(uuid)
        region = None if address is None else region_of(address, self._capacity())
        return None if region is None else DmemFence({uuid: region}, self._tree.enable)

    def _capacity(self) -> Mapping[str, int | None]:
        try:
            return read_regions(self._tree.root / CAPACITY)
        except (OSError, ValueError):
            return {}

    def of(self, uuid: str) -> Fence | None:
        """The fence of a device; ``None`` where it has none, or nobody knows yet."""
        found = self._found.get(uuid)
        return found.fence if found else None

    def is_away(self, uuid: str) -> bool:
        """Whether a device has a fence that does not answer now."""
        return self.of(uuid) is self._nvml and self._machine.group_limits() is None

    def lacking(self, uuids: Iterable[str]) -> tuple[str, ...]:
        """Those of these devices that have no fence."""
        return tuple(uuid for uuid in uuids if self.of(uuid) is None)

    @property
    def problem(self) -> Refused | None:
        """Why there is a device without a fence; ``None`` where there is none."""
        return next((found.why for found in self._found.values() if found.why is not None), None)
