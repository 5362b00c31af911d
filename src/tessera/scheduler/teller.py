"""What people hear: events on pods, off the hot path and at a bounded rate.

kube-scheduler tells of every try (``FailedScheduling``). Ours, ``NotPlaced``, comes once a pod has waited a
little, and adds the smallest change that would place it. Suggestions ask the allocator dozens of times, so they
look at no more than 200 of the candidates, the freest ones, and at one request a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tessera.allocator.suggest import Suggestion, suggest
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.request import Request
from tessera.runtime.clock import Clock
from tessera.runtime.kube.events import EventKind, Subject
from tessera.runtime.log import logger
from tessera.scheduler.asks import Ask
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.refusals import grouped
from tessera.scheduler.rollouts import Rollouts
from tessera.scheduler.state import UNADMITTED, Notice, State

FIRST_SECONDS: Final = 3.0
"""A pod that is placed sooner than that needs no explanation."""

AGAIN_SECONDS: Final = 300.0
TOLD_AT_ONCE: Final = 20
SUGGESTED_AT_ONCE: Final = 1
REMEMBERED: Final = 256
"""Waiting pods whose reasons are kept, and requests whose suggestions are."""

CANDIDATES: Final = 200
SUGGESTION_SECONDS: Final = 60.0
LISTED_REASONS: Final = 4
LISTED_CHANGES: Final = 2
STRAY_SECONDS: Final = 30.0
NOT_THE_REQUEST: Final = " The request is not the reason: it is placed once a node can take it."

_log: Final = logger("scheduler")


class Recorder(Protocol):
    """Where events go (:class:`tessera.runtime.kube.events.Recorder`)."""

    def record(self, subject: Subject, type_: EventKind, reason: str, note: str, action: str = "") -> None:
        """Have an event written; never waits."""
        ...


@dataclass(slots=True)
class _Refused:
    """A pod that waits: the reason of each candidate in its last try, and when it is to be told again."""

    ask: Ask
    reasons: Mapping[str, str]
    due: float


class Teller:
    """See the module."""

    def __init__(self, state: State, recorder: Recorder, clock: Clock) -> None:
        self._state, self._recorder, self._clock = state, recorder, clock
        self._refused: dict[str, _Refused] = {}
        self._due: dict[str, float] = {}
        self._suggested: dict[Request, tuple[float, str]] = {}
        self._rollouts = Rollouts(state)

    def refused(self, ask: Ask, reasons: Mapping[str, str]) -> None:
        """A pod found no room. Cheap: called for every try; the first one is logged."""
        uid = ask.facts.uid
        known = self._refused.get(uid)
        if known is not None:
            known.reasons = reasons
            return
        now = self._clock.monotonic()
        if len(self._refused) >= REMEMBERED and not self._make_room(now):
            return  # in a burst, until the first of them are told; this one comes again
        due = self._due.pop(uid, None)
        self._refused[uid] = _Refused(ask, reasons, now + FIRST_SECONDS if due is None else due)
        if due is None:
            groups = grouped(reasons.values())[:LISTED_REASONS]
            _log.info("refused", pod=ask.facts.key, uid=uid, reasons=dict(groups))

    def _make_room(self, now: float) -> bool:
        """Forget the reasons, not the date, of the pod that was told first; whether any was told."""
        told = next((uid for uid, waiting in self._refused.items() if waiting.due > now + FIRST_SECONDS), None)
        if told is None:
            return False
        self._due[told] = self._refused.pop(told).due
        return True

    def everywhere(self, facts: PodFacts, why: str) -> None:
        """A pod can be placed nowhere, for a reason of its own."""
        self._record(facts, "NotPlaced", f"refused on every node: {why}")

    def notices(self, notices: Sequence[Notice]) -> None:
        """Pods that are not as they should be."""
        for notice in notices:
            self._record(notice.facts, notice.kind.value, notice.text)

    def tell(self) -> None:
        """Write what is due: called about once a second."""
        now, told, looks = self._clock.monotonic(), 0, SUGGESTED_AT_ONCE
        self._due = {uid: due for uid, due in self._due.items() if uid in self._state.refused}
        for uid, waiting in list(self._refused.items()):
            if uid not in self._state.refused:
                del self._refused[uid]
                continue
            if waiting.due > now or told >= TOLD_AT_ONCE:
                continue
            looked, words = self._advice(waiting, now, fresh=looks > 0)
            looks -= looked
            if words is not None:
                told, waiting.due = told + 1, now + AGAIN_SECONDS
                self._record(waiting.ask.facts, "NotPlaced", note_of(grouped(waiting.reasons.values()), words))
        for facts in self._state.overdue_strays(now - STRAY_SECONDS):
            self._record(facts, "NotAdmitted", f"asks for devices of Tessera but {UNADMITTED}")

    def _advice(self, waiting: _Refused, now: float, *, fresh: bool) -> tuple[bool, str | None]:
        """Whether something long was done for it, and what to tell beside the reasons; ``None``: not this time."""
        change = self._suggestion(waiting, now, fresh=fresh)
        if change is None:
            return False, None
        rollout = self._rollouts.words(waiting.ask.facts, now, fresh=fresh and not change[0])
        if rollout is None:
            return change[0], None
        return change[0] or rollout[0], change[1] + rollout[1]

    def _suggestion(self, waiting: _Refused, now: float, *, fresh: bool) -> tuple[bool, str] | None:
        """The words of a suggestion, and whether they had to be found now; ``None``: not in this second.

        Nodes that are out for tickets are no question of size: where there are only such, nothing is suggested.
        """
        request, barred = waiting.ask.request, self._state.barred(waiting.ask.facts)
        names = [name for name in waiting.reasons if name not in barred]
        if not names:
            return False, NOT_THE_REQUEST
        known = self._suggested.get(request)
        if known is not None and now - known[0] < SUGGESTION_SECONDS:
            return False, known[1]
        if not fresh:
            return None
        snapshot = freest(self._state.view(), names)
        words = change_of(suggest(snapshot, waiting.ask.pod))
        self._suggested.pop(request, None)
        if len(self._suggested) >= REMEMBERED:
            del self._suggested[next(iter(self._suggested))]
        self._suggested[request] = (now, words)
        return True, words

    def _record(self, facts: PodFacts, reason: str, note: str) -> None:
        subject = Subject("Pod", facts.name, facts.uid, facts.namespace)
        self._recorder.record(subject, EventKind.WARNING, reason, note, "Scheduling")


def note_of(groups: Sequence[tuple[str, int]], change: str) -> str:
    """The note of an event: the commonest reasons with their counts, and what would help."""
    total = sum(count for _, count in groups)
    said = [f"{reason} ({count:,})" if total > 1 else reason for reason, count in groups[:LISTED_REASONS]]
    rest = len(groups) - LISTED_REASONS
    if rest > 0:
        said.append(f"{rest} further reasons")
    nodes = "the only candidate node cannot" if total == 1 else f"none of {total:,} candidate nodes can"
    return f"{nodes} take it: {'; '.join(said)}.{change}"


def change_of(suggestions: Sequence[Suggestion]) -> str:
    """The least drastic changes, as a sentence with a space before it."""
    if not suggestions:
        return " No single change to the request would place it now: it waits for room."
    return f" What would place it now: {' / '.join(s.text for s in suggestions[:LISTED_CHANGES])}."


def freest(snapshot: Snapshot, names: Sequence[str], most: int = CANDIDATES) -> Snapshot:
    """A snapshot of the ``most`` named nodes with the most free memory, as their own small fleet."""
    fleet, usage = snapshot.fleet, snapshot.usage
    rows = np.array([row for name in names if (row := fleet.node_row.get(name)) is not None], dtype=np.int64)
    free = (fleet.node_memory - usage.node_memory)[rows]
    kept = np.sort(rows[np.argsort(-free, kind="stable")[:most]])
    small = Fleet([fleet.nodes[row] for row in kept.tolist()])
    return Snapshot(small, usage.moved(fleet, small))
