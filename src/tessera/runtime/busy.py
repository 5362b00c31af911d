"""Device time that the processes of a share have had, from the driver's samples of them: a pure decision.

The driver gives, for each process, percents of its last sample period and when that ended, but not how long the
period was; a process that idled has no sample. So the time between two samples of one process counts as busy at
the later one's rate, unless it idled in between: then as many periods count as ended since the last look.

Whoever has the samples of a device begins with :func:`begin_busy` and calls :func:`add_samples` at every look;
what comes out is what :meth:`tessera.runtime.native.LiveRegion.tick` takes. Nothing is claimed before a process of
the share was seen: in a container the driver may speak of processes by numbers that mean nobody here, and a share
without busy time would seem to be owed more.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from tessera.runtime.nvml import ProcessSample

LONGEST_PERIOD_US: Final = 1_000_000
"""Taken until two samples of one process tell. Source: NVML API reference, nvmlUtilization_t: 1/6 s to 1 s."""
SHORTEST_PERIOD_US: Final = 10_000
STEP_US: Final = 50_000
"""The wall clock was set when it went this much more or less than the monotonic one."""
_NS_PER_US: Final = 1000


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on the wall clock, which stamps the samples, and on the monotonic one, which paces."""

    wall_us: int
    monotonic_ns: int


@dataclass(frozen=True, slots=True)
class BusyTime:
    """Device time of a share's processes on one device since ``began``, in nanoseconds, until ``at_ns``.

    ``at_ns`` is of the monotonic clock. The rest is what the next look needs: when the last one was, the shortest
    period seen, whether a process of the share ever was, and the newest stamp of all and of each of its processes.
    """

    began: Moment
    looked: Moment
    at_ns: int
    busy_ns: int = 0
    period_us: int = LONGEST_PERIOD_US
    proven: bool = False
    newest_us: int = 0
    stamps: Mapping[int, int] = field(default_factory=dict)

    @property
    def after_us(self) -> int:
        """Ask the driver for samples newer than this."""
        return max(self.began.wall_us, self.looked.wall_us - 2 * LONGEST_PERIOD_US)

    @property
    def reading(self) -> tuple[int, int]:
        """Busy nanoseconds, and until when they were measured."""
        return self.busy_ns, self.at_ns


def begin_busy(now: Moment) -> BusyTime:
    """Nothing was measured yet."""
    return BusyTime(now, now, now.monotonic_ns)


def add_samples(
    before: BusyTime, samples: Iterable[ProcessSample], ours: Collection[int], now: Moment
) -> BusyTime:
    """What is known after a look: ``samples`` of any process of the device, ``ours`` the pids of the share.

    Samples that were counted before, or are stamped later than now, change nothing.
    """
    if _was_set(before.looked, now):
        return replace(before, began=now, looked=now, newest_us=0, stamps={})
    fresh = sorted((s for s in samples if before.after_us < s.stamp_us <= now.wall_us), key=_by_process)
    stamps, period, busy_us = dict(before.stamps), before.period_us, 0
    for (pid, stamp), rows in groupby((s for s in fresh if s.pid in ours), _by_process):
        last = stamps.get(pid, before.began.wall_us)
        if stamp <= last:
            continue
        if pid in stamps:
            period = max(SHORTEST_PERIOD_US, min(period, stamp - last))
        percent = min(100, sum(row.percent for row in rows))
        busy_us += _covered(stamp, last, before.looked.wall_us, period) * percent // 100
        stamps[pid] = stamp
    found = replace(
        before,
        looked=now,
        busy_ns=before.busy_ns + busy_us * _NS_PER_US,
        period_us=period,
        proven=before.proven or len(stamps) > 0,
        stamps={pid: stamp for pid, stamp in stamps.items() if stamp > now.wall_us - 3 * LONGEST_PERIOD_US},
    )
    newest_us = max((sample.stamp_us for sample in fresh), default=0)
    return _until(found, newest_us) if found.proven and newest_us > before.newest_us else found


def _until(busy: BusyTime, newest_us: int) -> BusyTime:
    """What is known reaches to this stamp."""
    at_ns = busy.looked.monotonic_ns - (busy.looked.wall_us - newest_us) * _NS_PER_US
    return replace(busy, newest_us=newest_us, at_ns=max(busy.at_ns, at_ns))


def _by_process(sample: ProcessSample) -> tuple[int, int]:
    return sample.pid, sample.stamp_us


def _was_set(then: Moment, now: Moment) -> bool:
    passed_us = (now.monotonic_ns - then.monotonic_ns) // _NS_PER_US
    return abs(now.wall_us - then.wall_us - passed_us) > STEP_US


def _covered(stamp: int, last: int, looked: int, period: int) -> int:
    """Microseconds that a sample speaks for.

    A process that was busy all along had a sample in the period before the last look, give or take half a period.
    """
    since_look = max(0, stamp - looked)
    if stamp - last <= since_look + period + period // 2:
        return stamp - last
    return (max(0, since_look - 1) // period + 1) * period
