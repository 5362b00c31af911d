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
    """One limited device: its place in the region, and what was measured of the run there."""

    device: int
    uuid: str
    milli: int
    busy: BusyTime
    calibration: Calibration

    def begin(self) -> None:
        """Measure afresh: the limit holds on what the processes measure themselves until there is more."""
        self.busy, self.calibration = begin_busy(_now()), Calibration()


class Pacer:
    """Tells a region, every :data:`TICK_SECONDS`, what its run had of each device on which it is limited."""

    def __init__(
        self, region: LiveRegion, nvml: Nvml, grants: Iterable[Grant], is_ours: Callable[[int], bool]
    ) -> None:
        self._region, self._nvml, self._is_ours = region, nvml, is_ours
        self._members: frozenset[tuple[int, int]] = frozenset()
        self._all = [
            _Course(device, grant.uuid, grant.share.compute_limit, begin_busy(_now()), Calibration())
            for device, grant in enumerate(grants)
        ]
        self._courses = [course for course in self._all if 0 < course.milli < WHOLE]
        self.due = time.monotonic() if self._courses else math.inf
        """When :meth:`tick` has something to do, on the monotonic clock; never for a run that takes no turns."""

    def learn(self) -> None:
        """Look which devices the run takes turns on: by its own limit, or because others go before it."""
        before = self._courses
        self._courses = [c for c in self._all if 0 < c.milli < WHOLE or self._region.word(c.device, _CAP)]
        for course in self._courses:
            if course not in before:
                course.begin()
        if self._courses and self.due == math.inf:
            self.due = time.monotonic()
        elif not self._courses:
            self.due = math.inf

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
        self._region.tick(course.device, course.calibration, course.busy.reading, course.milli, now.monotonic_ns)


def _now() -> Moment:
    return Moment(time.time_ns() // 1000, time.monotonic_ns())
