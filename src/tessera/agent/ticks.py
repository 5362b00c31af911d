"""Telling limited shares how long they really were on their devices, five times a second while any of them runs.

Processes charge themselves what they measure; what neighbours do to that, only the host sees (ADR 13). While no
process of a limited share is on a device nothing is looked at and nothing wakes up. Where shares of a device go
before each other, or have memory beyond their request, they are told at the same tick (ADR 16).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tessera.agent.governor import Governor, contender, leftover, rule
from tessera.agent.grant import GrantedDevice
from tessera.agent.lending import Demand, Usage
from tessera.agent.running import Runner, Running, ShareKey
from tessera.agent.store import StoredShare
from tessera.core.errors import UnavailableError
from tessera.core.units import WHOLE
from tessera.runtime.busy import BusyTime, Moment, add_samples, begin_busy
from tessera.runtime.clock import Clock
from tessera.runtime.governing import Turn, govern, turns
from tessera.runtime.log import logger
from tessera.runtime.metrics import Unavailable, Value
from tessera.runtime.native import Calibration
from tessera.runtime.nvml import ProcessSample

TICK_SECONDS: Final = 0.2
"""Regions ask for 50 to 250 ms."""
ASKED_US: Final = 2_000_000
"""How far back samples are asked for; each is counted once."""

_log: Final = logger("agent.ticks")


class Sampler(Protocol):
    """Where samples come from."""

    def samples(self, uuid: str, after_us: int) -> tuple[ProcessSample, ...] | None:
        """Those newer than that, by PIDs of our namespace; ``None`` where the driver does not say."""
        ...


def present() -> Moment:
    """Now. Regions use ``CLOCK_MONOTONIC``; the agent's own clock goes on while the machine is suspended."""
    return Moment(time.time_ns() // 1000, time.monotonic_ns())


class Course:
    """What was measured of a share on one device; begun afresh where what is known does not add up any more."""

    def __init__(self, now: Moment) -> None:
        self._members: frozenset[tuple[int, int]] = frozenset()
        self.begin(now)

    def begin(self, now: Moment) -> None:
        """Forget what was measured."""
        self.busy: BusyTime = begin_busy(now)
        self.calibration = Calibration()

    def lacks(self, members: frozenset[tuple[int, int]]) -> bool:
        """Whether one who was registered at the last look is not any more; these are the ones of this look."""
        before, self._members = self._members, members
        return bool(before - members)


@dataclass(frozen=True, slots=True)
class _Seat:
    """One runner on one device: ``index`` in its region."""

    runner: Runner
    index: int
    usage: Usage
    course: Course
    device: GrantedDevice


class Ticker:
    """See the module. Call :meth:`learn` after ``running`` has learnt; :meth:`run` does the rest."""

    def __init__(self, sampler: Sampler, running: Running, governor: Governor | None = None) -> None:
        self._sampler, self._running = sampler, running
        self.governor = governor or Governor()
        self._courses: dict[tuple[Runner, str], Course] = {}
        self._usages: dict[tuple[ShareKey, str], Usage] = {}
        self._awake = asyncio.Event()
        self.blind: set[str] = set()
        self.ticks = 0

    @property
    def is_awake(self) -> bool:
        """Whether a share is on a device that is limited, or has to be told about others."""
        return self._awake.is_set()

    def learn(self) -> None:
        """Begin or end ticking, by who runs now."""
        runners = self._running.runners.values()
        if runners:
            self.governor.learn(self._running.stored())
        if not any(self._is_told(runner) for runner in runners):
            self._awake.clear()
        elif not self._awake.is_set():
            self._courses.clear()  # nobody looked: what was busy meanwhile is not known
            self._awake.set()
        self._courses = {of: course for of, course in self._courses.items() if of[0] in runners}
        if self._usages:
            known = self._running.known()
            self._usages = {of: usage for of, usage in self._usages.items() if of[0] in known}

    def _is_told(self, runner: Runner) -> bool:
        return runner.is_limited or any(self.governor.governs(d.uuid) for d in runner.share.grant.devices)

    def look(self, now: Moment) -> None:
        """One tick of every device that a share which is told anything is on."""
        told = (runner.share for runner in self._running.runners.values() if self._is_told(runner))
        for uuid in sorted({device.uuid for share in told for device in share.grant.devices}):
            self._look_at(uuid, now)
        for runner in self._running.runners.values():
            runner.region.let_pages_go()
        self.ticks += 1

    def _look_at(self, uuid: str, now: Moment) -> None:
        known = {runner.key for runner in self._running.runners.values()}
        for share in self.governor.starting(uuid, known, now.monotonic_ns):
            self._running.invite(share)
        samples = self._sampler.samples(uuid, now.wall_us - ASKED_US)
        if samples is None:
            self.blind.add(uuid)  # what is used is not known: nothing can be lent, and limits hold without us
            self._govern(uuid, self._seats(uuid, now), {}, now.monotonic_ns)
            return
        self.blind.discard(uuid)
        by_container: dict[str, list[ProcessSample]] = {}
        for sample in samples:
            by_container.setdefault(self._running.place(sample.pid), []).append(sample)
        self._running.meet(by_container.keys())
        newest = max(samples, key=_stamp, default=None)
        seats = self._seats(uuid, now)
        for id_, seat in seats.items():
            self._measure(seat, by_container.get(id_, []), newest, now)
        found = self._tick(seats, now.monotonic_ns)
        self._govern(uuid, seats, found, now.monotonic_ns)

    def _measure(
        self, seat: _Seat, own: Sequence[ProcessSample], newest: ProcessSample | None, now: Moment
    ) -> None:
        """Count a share's own samples; the newest of all of the device tells until when they are all."""
        course = seat.course
        ours = {sample.pid for sample in own}
        samples = own if newest is None or newest.pid in ours else (*own, newest)
        # Who ends takes its last sample along, or was never sampled, and what it did was charged: both sums begin
        # anew. The samples tell of one as soon as it is dead, the region of each once its slot was given back.
        sampled = all(self._running.lives(pid) for pid in course.busy.stamps if pid not in ours)
        if course.lacks(seat.runner.region.members()) or not sampled:
            course.begin(now)
        before = course.busy.busy_ns
        course.busy = add_samples(course.busy, samples, ours, now)
        seat.usage.busy_ns += course.busy.busy_ns - before
        seat.usage.note(now.monotonic_ns)

    def _seats(self, uuid: str, now: Moment) -> dict[str, _Seat]:
        """The runners on a device, by container."""
        found = {}
        for id_, runner in self._running.whole().items():
            for index, device in enumerate(runner.share.grant.devices):
                if device.uuid == uuid:
                    usage = self._usages.setdefault((runner.key, uuid), Usage())
                    course = self._courses.get((runner, uuid)) or Course(now)
                    self._courses[runner, uuid] = course
                    found[id_] = _Seat(runner, index, usage, course, device)
        return found

    def _tick(self, seats: Mapping[str, _Seat], now_ns: int) -> dict[str, Turn]:
        """Tick those who take turns; what each may have, by container."""
        demands = {id_: Demand(*seat.runner.region.demand(seat.index)) for id_, seat in seats.items()}
        rows = [
            contender(demands[id_], s.usage.used_milli, s.device, self.governor.activity(s.runner, now_ns), now_ns)
            for id_, s in seats.items()
        ]
        found = dict(zip(seats, turns(rows), strict=True))
        for id_, seat in seats.items():
            if not demands[id_].is_limited and found[id_].cap_milli == 0:
                continue
            runner, course = seat.runner, seat.course
            try:
                granted = found[id_].granted_milli
                runner.region.tick(seat.index, course.calibration, course.busy.reading, granted, now_ns)
            except UnavailableError as error:
                _log.warning("region not ticked", pod=runner.share.grant.key, error=str(error))
                self._running.leave(id_)
        return found

    def _govern(self, uuid: str, seats: Mapping[str, _Seat], found: Mapping[str, Turn], now_ns: int) -> None:
        """Tell the shares of a device who goes first, and what memory they may have."""
        governor, governs = self.governor, self.governor.governs(uuid)
        runners = {seat.runner.key: (seat.runner, seat.index) for seat in seats.values()}
        limits = governor.ceilings(uuid, runners, now_ns)
        for id_, seat in seats.items():
            runner = seat.runner
            if id_ not in self._running.runners or not (governs or leftover(runner.region, seat.index)):
                continue
            is_idle = governs and governor.is_idle(seat.device, governor.activity(runner, now_ns), now_ns)
            cap = found[id_].cap_milli if governs and id_ in found else 0
            try:
                told = rule(cap, limits.get(runner.key, 0), is_idle=is_idle)
                govern(runner.region, seat.index, told, now_ns)
            except UnavailableError as error:
                _log.warning("region not governed", pod=runner.share.grant.key, error=str(error))
                self._running.leave(id_)

    def busy_seconds(self, share: StoredShare, uuid: str) -> Value:
        """Device time of a share with a compute limit, since this agent runs."""
        if not any(d.uuid == uuid and 0 < d.compute_limit_milli < WHOLE for d in share.grant.devices):
            return Unavailable("no compute limit")
        if uuid in self.blind:
            return Unavailable("driver does not say")
        usage = self._usages.get(((share.grant.uid, share.grant.container), uuid))
        return usage.busy_ns / 1e9 if usage else 0.0

    async def run(self, clock: Clock, moment: Callable[[], Moment] = present) -> None:
        """Tick while a limited share runs, and sleep otherwise; until cancelled."""
        while True:
            await self._awake.wait()
            self.look(moment())
            await clock.sleep(TICK_SECONDS)


def _stamp(sample: ProcessSample) -> int:
    return sample.stamp_us
