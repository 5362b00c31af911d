"""Who may have what others leave of a device: what a share uses now, and what its region shows of it."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from tessera.core.units import WHOLE
from tessera.runtime.native import Borrower

USED_LOOKS: Final = 4
"""Looks over which the part of a device that a share uses now is taken, the newest included."""
WAITED_NS: Final = 250_000_000
"""Who waited no longer ago than this waits now."""


@dataclass(slots=True)
class Usage:
    """Device time of one share on one device, in all, and by the last looks."""

    busy_ns: int = 0
    _looks: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=USED_LOOKS))

    def note(self, now_ns: int) -> None:
        """Remember a look; ``now_ns`` is of the monotonic clock."""
        self._looks.append((now_ns, self.busy_ns))

    @property
    def used_milli(self) -> int:
        """The part of the device that it used over the last looks, in thousandths; 0 before there are two."""
        if len(self._looks) < 2 or self._looks[-1][0] <= self._looks[0][0]:
            return 0
        (then_ns, before), (now_ns, after) = self._looks[0], self._looks[-1]
        return min(WHOLE, (after - before) * WHOLE // (now_ns - then_ns))


@dataclass(frozen=True, slots=True)
class Demand:
    """A share of a device as its region shows it now; ``waited_ns`` is when a launch waited last, 0 for never."""

    limit_milli: int
    mode: int
    waited_ns: int

    @property
    def is_limited(self) -> bool:
        """Whether launches wait for their turn."""
        return self.mode != 0 and 0 < self.limit_milli < WHOLE


def borrower(demand: Demand, used_milli: int, weight: int, now_ns: int) -> Borrower:
    """The share where idle time is divided. One without a limit keeps what it uses and borrows nothing."""
    waits = demand.waited_ns != 0 and demand.waited_ns + WAITED_NS > now_ns
    if demand.is_limited:
        return Borrower(demand.limit_milli, demand.mode, used_milli, max(1, weight), waits)
    return Borrower(WHOLE, 0, used_milli, max(1, weight), waits=False)
