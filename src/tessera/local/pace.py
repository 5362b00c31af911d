"""A run with a compute limit, measured from outside: what the driver says of its processes, told to its region.

The limiter holds the limit by itself. But its events also see the slices of neighbours, so without word from
outside a run beside a busy neighbour gets less than its limit.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tessera.core.placement import Grant
from tessera.core.units import WHOLE
from tessera.runtime.busy import BusyTime, Moment, add_samples, begin_busy
from tessera.runtime.native import Calibration, LiveRegion
from tessera.runtime.nvml import Nvml

TICK_SECONDS: Final = 0.1
"""Shorter than any sample period of a driver, and than any process takes to make a context on a real device."""


_CAP: Final = "device_control.cap_milli"


@dataclass(slots=True, eq=False)
class _Course:
    """One device: its place in the region, and what was measured of the run there."""

    device: int
    uuid: str
    busy: BusyTime
    calibration: Calibration

    def begin(self) -> None:
        """Measure afresh: the limit holds on what the processes measure themselves until there is more."""
        self.busy, self.calibration = begin_busy(_now()), Calibration()


class Pacer:
    """Tells a region, every :data:`TICK_SECONDS`, what its run had of each device on which it is limited.

    The limits are those that the region has at the time: they may be changed while the run goes on.
    """

    def __init__(
        self, region: LiveRegion, nvml: Nvml, grants: Iterable[Grant], is_ours: Callable[[int], bool]
    ) -> None:
        self._region, self._nvml, self._is_ours = region, nvml, is_ours
        self._members: frozenset[tuple[int, int]] = frozenset()
        self._every = [
            _Course(device, grant.uuid, begin_busy(_now()), Calibration()) for device, grant in enumerate(grants)
        ]
        self._courses: list[_Course] = []
        self.due = math.inf
        """When :meth:`tick` has something to do, on the monotonic clock; never for a run that takes no turns."""
        self.learn()

    def learn(self) -> None:
        """Look which devices the run takes turns on: by its own limit, or because others go before it."""
        taking = [course for course in self._every if self._takes_turns(course)]
        for course in taking:
            if course not in self._courses:
                course.begin()
        if not taking:
            self.due = math.inf
        elif not self._courses:
            self.due = time.monotonic()
        self._courses = taking

    def _takes_turns(self, course: _Course) -> bool:
        return 0 < self._milli(course) < WHOLE or self._region.word(course.device, _CAP) > 0

    def _milli(self, course: _Course) -> int:
        return self._region.demand(course.device)[0]

    def tick(self) -> None:
        """Measure and tell, if it is due. Raises :class:`~tessera.runtime.native.RegionCallError`."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + TICK_SECONDS
        members = frozenset((p.pid, p.start_ticks) for p in self._region.processes())
        for course in self._courses:
            # Who ends takes its last sample along, and what it did was charged: nothing must be believed of it.
            if self._members - members:
                course.begin()
            self._tell(course)
        self._members = members

    def _tell(self, course: _Course) -> None:
        samples = self._nvml.process_samples(course.uuid, course.busy.after_us)
        now = _now()
        if samples is None:
            course.begin()
        else:
            ours = {pid for pid in {sample.pid for sample in samples} if self._is_ours(pid)}
            course.busy = add_samples(course.busy, samples, ours, now)
        granted = self._milli(course)
        self._region.tick(course.device, course.calibration, course.busy.reading, granted, now.monotonic_ns)


def _now() -> Moment:
    return Moment(time.time_ns() // 1000, time.monotonic_ns())
