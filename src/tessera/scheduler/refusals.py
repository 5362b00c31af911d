"""Why not, in a few words per node: what kube-scheduler counts together in its ``FailedScheduling`` event.

All candidates are explained in one pass (5 ms on a fleet of 40,000 devices), which is remembered: a pod that
finds no room is asked for again and again, by the hundred, and the fleet changes all the time. What is remembered
is used for a second, or for as long as nothing changed; the *decision* is never from memory, only its words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tessera.allocator.explain import reject, sentence
from tessera.allocator.ledger import Ledger
from tessera.core.placement import Reason, ReasonGroup, Shortfall
from tessera.core.request import Pod, Request
from tessera.core.units import render_mib, render_percent
from tessera.scheduler.offers import NO_TICKETS, withheld
from tessera.scheduler.state import Nowhere

REMEMBERED: Final = 64
REMEMBERED_SECONDS: Final = 1.0
MOST_REASONS: Final = 3

NO_DEVICE: Final = "no GPU on this node"
NO_AGENT: Final = "no GPU known on this node (no agent of Tessera reports from it)"
CHANGED: Final = "taken by another pod in this moment"
COMBINED: Final = "GPUs: each container fits alone, not all together"
_WITHHELD: Final = withheld("")
_ROOM: Final = frozenset({CHANGED, COMBINED})
"""What is said of a node that no single check rules out."""

_NEVER: Final = frozenset({NO_DEVICE, NO_AGENT})
"""What is said of a node without devices. Tickets make no difference there, and it is told last."""

_LAST: Final = tuple(_NEVER)


@dataclass(slots=True)
class _Memory:
    """The words for every node of a ledger, as of a moment of it and of the clock."""

    ledger: Ledger
    moment: int
    made: float
    words: dict[str, str]


class Refusals:
    """Words for pods that found no room."""

    def __init__(self) -> None:
        self._known: dict[tuple[Request, tuple[object, ...]], _Memory] = {}
        self.passes = 0
        """How often the whole fleet was explained."""

    def reasons(self, verdict: Nowhere, names: Sequence[str], ledger: Ledger, now: float) -> dict[str, str]:
        """The reason of each node."""
        ask = verdict.ask
        memory = self._memory(ask.request, ask.pod.containers, ledger, now)
        words = memory.words
        missing = [name for name in names if name not in words]
        if missing:
            self.passes += 1
            words.update(_explained(ask.pod, missing, ledger))
        found = {name: words[name] for name in names}
        found.update((name, _barred(found[name], why)) for name, why in verdict.barred.items() if name in found)
        return found

    def _memory(self, request: Request, containers: tuple[object, ...], ledger: Ledger, now: float) -> _Memory:
        key = (request, containers)
        memory = self._known.get(key)
        if memory is not None and memory.ledger is ledger:
            if memory.moment == ledger.moment:
                memory.made = now  # as true as if it were said now
            if 0 <= now - memory.made < REMEMBERED_SECONDS:
                return memory
        self._known.pop(key, None)
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        fresh = self._known[key] = _Memory(ledger, ledger.moment, now, {})
        return fresh


def _barred(said: str, why: str) -> str:
    """What to say of a node by its devices, ``said``, that is out for its tickets too."""
    if said == NO_DEVICE and why.startswith(_WITHHELD):
        return f"{NO_DEVICE}: {why.removeprefix(_WITHHELD)}"
    none_there = why == NO_TICKETS or why.startswith(_WITHHELD)
    return why if said in _ROOM or (none_there and said not in _NEVER) else said


def _explained(pod: Pod, names: Sequence[str], ledger: Ledger) -> dict[str, str]:
    """The reasons of these nodes, in one pass."""
    fleet = ledger.fleet
    found = dict.fromkeys(names, NO_AGENT)
    rows = [row for name in names if (row := fleet.node_row.get(name)) is not None]
    if not rows:
        return found
    among = np.zeros(len(fleet.nodes), dtype=np.bool_)
    among[rows] = True
    alone = pod.request is not None and len(pod.request.claims) == 1
    for group in reject(ledger.view(), pod, among).groups:
        together = [s.reason for s in group.shortfalls] == [Reason.COMBINATION]
        found.update(dict.fromkeys(group.nodes, CHANGED if together and alone else reason_of(group)))
    return found


def reason_of(group: ReasonGroup) -> str:
    """A group's reasons in a few words: the decisive ones first, without counts that differ from try to try."""
    said = dict.fromkeys(_words(shortfall) for shortfall in group.shortfalls)
    listed = list(said)[:MOST_REASONS]
    return "; ".join(listed) + (" and more" if len(said) > MOST_REASONS else "")


def _words(shortfall: Shortfall) -> str:
    words = _SHORT.get(shortfall.reason)
    return sentence(shortfall) if words is None else words(shortfall)


_SHORT: Final[Mapping[Reason, Callable[[Shortfall], str]]] = {
    Reason.MEMORY: lambda s: (
        f"GPU {s.detail}"
        if s.detail
        else f"GPU memory: asked {render_mib(s.asked or 0)}, largest free {render_mib(max(0, s.best or 0))}"
    ),
    Reason.COMPUTE: lambda s: (
        f"GPU compute: asked {render_percent(s.asked or 0)}, most free {render_percent(max(0, s.best or 0))}"
    ),
    Reason.COUNT: lambda s: f"GPUs: asked {s.asked}, at most {s.best or 0} fit on one node",
    Reason.SLOTS: lambda s: f"GPU slots: all {s.detail} taken",
    Reason.COMPUTE_EXHAUSTED: lambda _: "GPU compute: nothing left to share",
    Reason.NO_DEVICE: lambda _: NO_DEVICE,
    Reason.VENDOR: lambda _: "GPU of another vendor",
    Reason.MODE: lambda _: "GPU in another partitioning mode",
    Reason.MODEL: lambda s: f"GPU model not allowed ({s.detail})",
    Reason.UUID: lambda _: "GPU ruled out by uuid",
    Reason.INDEX: lambda _: "GPU ruled out by index",
    Reason.UNHEALTHY: lambda _: "GPU unhealthy",
    Reason.CORDONED: lambda _: "GPU held by another device plugin",
    Reason.TFLOPS_UNKNOWN: lambda s: f"GPU whose TFLOPS are not known ({s.detail})",
    Reason.HELD_EXCLUSIVELY: lambda _: "GPU held exclusively by another pod",
    Reason.NOT_IDLE: lambda _: "GPU in use, a whole one was asked for",
    Reason.NUMA: lambda _: "GPUs: not enough of them on one NUMA node",
    Reason.COMBINATION: lambda _: COMBINED,
}


def grouped(reasons: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Reasons with how many nodes have each, the commonest first; last those of nodes without devices."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (item[0].startswith(_LAST), -item[1], item[0])))
