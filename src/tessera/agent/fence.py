"""A limit of device memory that no process of a container steps around: the port, and how one is put up.

A fence limits what a cgroup holds of a device. Who stands behind it (the driver, or the kernel alone) is a
backend's business; all of them pass ``tests/agent/test_fence_contract.py``. Nothing here is believed because it
was written: a limit counts once it was read back.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tessera.core.units import BYTES_PER_MIB, render_mib

SLACK: Final = 2 * BYTES_PER_MIB
"""By how much less a backend may hold than was asked without being wrong: a page of the largest kind."""
_STEPS: Final = tuple(BYTES_PER_MIB << power for power in range(1, 11))
"""What a driver may round limits up to, 2 MiB to 1 GiB. Its manual shows 4,000 MiB becoming 4,096."""


@dataclass(frozen=True, slots=True)
class Held:
    """What holds for a cgroup on a device now, in bytes; ``limit`` is ``None`` where nothing does."""

    limit: int | None
    used: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a fence cannot be put up, or looked at, and what a person does about it."""

    what: str
    remedy: str
    is_ours: bool = False
    """Whether it is how the agent was started: its person would want to know."""
    lasts: bool = True
    """Whether asking again would bring the same."""
    is_unknown: bool = False
    """Whether there was no answer: of what holds, nothing is known."""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class Fence(Protocol):
    """See the module. ``group`` is a cgroup's directory; all of it answers at once, without waiting."""

    name: str
    """Who stands behind it, for people and metrics."""

    def held(self, uuid: str, group: Path) -> Held | Refused:
        """What holds for a cgroup on a device."""
        ...

    def set(self, uuid: str, group: Path, limit: int | None) -> Refused | None:
        """Limit a cgroup to so many bytes of a device, or not at all. It promises nothing: read it back."""
        ...


def put_up(fence: Fence, uuid: str, group: Path, limit: int) -> int | Refused:
    """The bytes that hold for the cgroup from now on: ``limit``, or less where the backend rounds; never more."""
    said = ""
    for step in (1, *_STEPS):
        ask = limit // step * step
        if ask == 0:
            break
        refused = fence.set(uuid, group, ask)
        if refused is not None:
            return refused
        held = fence.held(uuid, group)
        if isinstance(held, Refused):
            return held
        if held.limit is None or held.limit < ask - SLACK:
            return Refused(
                f"{fence.name} was told to limit {uuid} to {_text(ask)} and holds {_text(held.limit)}",
                "see who else limits cgroups on this node",
            )
        if held.limit <= limit:
            return held.limit
        said = _text(held.limit)
    return Refused(
        f"{fence.name} makes {said or 'nothing'} of a limit of {_text(limit)} of {uuid}",
        "ask for another amount of memory, or start the agent with --tier=hook",
    )


def take_down(fence: Fence, uuid: str, group: Path) -> Refused | None:
    """Let nothing of ours limit the cgroup any more. What is read then may be the limit of one above it."""
    return fence.set(uuid, group, None)


def _text(limit: int | None) -> str:
    return "nothing" if limit is None else render_mib(limit // BYTES_PER_MIB)
