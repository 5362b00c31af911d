"""Memory that a share uses and its region does not count, by the driver's word: that much less can be allocated.

The library counts what programs ask for and measures its own process; what escapes both (a program without it,
graphics, memory that only a descriptor keeps) is seen from outside alone (ADR 12). The driver's figure and the
region's are of two moments, and what is allocated or freed between them looks like a difference: only what every
one of the last looks saw is believed, and nothing where the driver does not tell a process's memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tessera.agent.running import Runner, Running
from tessera.core.errors import UnavailableError
from tessera.runtime.governing import spilled_bytes
from tessera.runtime.log import logger
from tessera.runtime.nvml import DeviceProcess

LOOKS: Final = 5
"""Looks that must agree: ten seconds at the patrol's pace."""

_log: Final = logger("agent.unseen")


def beyond(used: Iterable[int | None], before: int, after: int) -> int | None:
    """Bytes in use beyond what was counted right before and right after; ``None`` where they are not all known."""
    known = tuple(used)
    amounts = [amount for amount in known if amount is not None]
    return max(0, sum(amounts) - max(before, after)) if len(amounts) == len(known) else None


class UnseenMemory:
    """See the module. Look as often as the patrol does, after ``running`` has learnt."""

    def __init__(self, running: Running, processes: Callable[[], Sequence[DeviceProcess]]) -> None:
        self._running, self._processes = running, processes
        self._seen: dict[tuple[Runner, str], deque[int]] = {}
        running.on_leave(_clear)

    def look(self) -> None:
        """Measure once, and tell the regions of those for whom it is certain by now."""
        runners = self._running.whole()
        before = {id_: _on_device(runner) for id_, runner in runners.items()}
        used: dict[tuple[str, str], list[int | None]] = {}
        for process in self._processes() if runners else ():
            used.setdefault((self._running.place(process.pid), process.uuid), []).append(process.used_bytes)
        for id_, runner in tuple(self._running.whole().items()):
            after = _on_device(runner)
            for index, device in enumerate(runner.share.grant.devices):
                amount = beyond(used.get((id_, device.uuid), ()), before[id_][index], after[index])
                self._believe(runner, index, device.uuid, amount)
        runners = self._running.runners
        for runner in runners.values():
            runner.region.let_pages_go()
        self._seen = {of: looks for of, looks in self._seen.items() if of[0] in runners.values()}

    def _believe(self, runner: Runner, index: int, uuid: str, amount: int | None) -> None:
        looks = self._seen.setdefault((runner, uuid), deque(maxlen=LOOKS))
        if amount is None:
            looks.clear()
            return
        looks.append(amount)
        if len(looks) == LOOKS:
            _tell(runner, index, min(looks))


def _on_device(runner: Runner) -> tuple[int, ...]:
    """Bytes that its region counts on each device, without what lies in host memory."""
    region = runner.region
    return tuple(used - spilled_bytes(region, index) for index, used in enumerate(region.used_bytes()))


def _clear(runner: Runner) -> None:
    """Nobody is on a device: nothing is used."""
    if runner.is_whole:
        for index in range(len(runner.share.grant.devices)):
            _tell(runner, index, 0)


def _tell(runner: Runner, index: int, amount: int) -> None:
    """Have the region leave that much less, where it does not yet."""
    try:
        if runner.region.unseen_bytes(index) != amount:
            runner.region.set_unseen(index, amount)
    except UnavailableError as error:
        _log.warning("unseen memory not told", pod=runner.share.grant.key, error=str(error))
