"""Events on objects, as ``kubectl describe`` shows them. Recording one never waits and never fails.

What repeats becomes one event with a count (a series), written at most every :data:`SERIES_PAUSE` seconds. An
object that draws too many different ones is cut off for a while, a queue that is full loses its oldest: both are
counted.

Source: the API's rules for events.k8s.io/v1 (pkg/apis/core/validation/events.go of Kubernetes 1.37): a note of at
most 1,024 bytes that never changes, a namespace equal to the object's or ``default``, a controller, an instance.
"""

import asyncio
import datetime as dt
import random
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from tessera.runtime.clock import SYSTEM, Clock
from tessera.runtime.kube.port import EVENTS, ApiError, ConnectionLostError, Kind, KubeClient
from tessera.runtime.log import logger
from tessera.wire.kube.names import GROUP
from tessera.wire.kube.objects import Meta

NOTE_BYTES: Final = 1024
QUEUE: Final = 1000
SERIES_PAUSE: Final = 60.0
SERIES_END: Final = 360.0
"""After so many seconds without a repetition the next one is a new event, as in client-go."""
BURST: Final = 12
REFILL_SECONDS: Final = 30.0
"""Per object: so many different events at once, then one in so many seconds."""
TRIES: Final = 6

_log: Final = logger("events")


class EventKind(StrEnum):
    """What the API knows: nothing to do, or something to look at."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an event is about."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class _Key:
    """What makes two events the same: all that the API does not let change."""

    subject: Subject
    type: EventKind
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Series:
    """An event that was written: under which name, how often it was counted and when it was last written."""

    name: str
    count: int
    seen: float
    written: float
    owed: int = 0


@dataclass(slots=True)
class Counts:
    """For metrics: events written (first ones and counts), and those lost, by why."""

    written: int = 0
    overflowed: int = 0
    limited: int = 0
    failed: int = 0


class _Event(msgspec.Struct, frozen=True):
    metadata: Meta


class Recorder:
    """See the module. ``controller`` is a part of ours, ``instance`` the pod or host that it runs in."""

    def __init__(
        self,
        client: KubeClient,
        controller: str,
        instance: str,
        *,
        clock: Clock = SYSTEM,
        chance: random.Random | None = None,
    ) -> None:
        self._client, self._clock = client, clock
        self._controller, self._instance = f"{GROUP}/{controller}", instance[:128]
        self._chance = chance or random.Random()  # noqa: S311 - names and pauses, guards nothing
        self._pending: OrderedDict[_Key, int] = OrderedDict()
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.counts = Counts()

    def record(self, subject: Subject, type_: EventKind, reason: str, note: str, action: str = "") -> None:
        """Have an event written. ``reason`` is one CamelCase word for machines, ``note`` a sentence for people;
        ``action`` is what we did or tried, by default the reason.
        """
        key = _Key(subject, type_, reason[:128], (action or reason)[:128], cut(note))
        if key in self._pending:
            self._pending[key] += 1
            return
        if key not in self._series and not self._is_allowed(subject.uid):
            self.counts.limited += 1
            return
        if len(self._pending) >= QUEUE:
            self._pending.popitem(last=False)
            self.counts.overflowed += 1
        self._pending[key] = 1
        self._idle.clear()
        self._changed.set()

    async def run(self) -> None:
        """Write what is recorded until cancelled."""
        while True:
            while self._pending:
                key, times = self._pending.popitem(last=False)
                await self._persist(key, times)
            self._idle.set()
            self._changed.clear()
            await self._wait(self._next_debt())
            await self._pay_debts()

    async def flush(self) -> None:
        """Return once everything that was recorded is written or given up; :meth:`run` must be running."""
        await self._idle.wait()

    async def _wait(self, seconds: float | None) -> None:
        """Until something is recorded, or for ``seconds``."""
        alarm = None if seconds is None else asyncio.ensure_future(self._clock.sleep(seconds))
        changed = asyncio.ensure_future(self._changed.wait())
        waiting = {changed, alarm} if alarm else {changed}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _persist(self, key: _Key, times: int) -> None:
        """Count or write, however often the server has to be asked; give up on what it refuses."""
        now = self._clock.monotonic()
        known = self._series.get(key)
        if known is not None:
            known.seen, known.owed = now, known.owed + times
            if known.count > 1 and now - known.written < SERIES_PAUSE:
                return
        await self._write(key, times)

    async def _write(self, key: _Key, times: int) -> None:
        for attempt in range(TRIES):
            known = self._series.get(key)
            try:
                await (self._create(key, times) if known is None else self._repeat(key, known))
            except (ApiError, ConnectionLostError) as error:
                if isinstance(error, ApiError) and error.code < 500 and error.code not in (408, 409, 429):
                    break
                await self._clock.sleep(0.5 * (1 << attempt) * self._chance.uniform(0.5, 1.0))
            else:
                return
        self.counts.failed += times
        _log.warning("event not written", object=f"{key.subject.namespace}/{key.subject.name}", reason=key.reason)

    async def _create(self, key: _Key, times: int) -> None:
        body = self._body(key, times)
        await self._client.create(EVENTS, body, _Event, namespace=_namespace(key.subject))
        now = self._clock.monotonic()
        self._series[key] = _Series(body["metadata"]["name"], times, now, now)
        self._series.move_to_end(key)
        if len(self._series) > QUEUE:
            self._series.popitem(last=False)
        self.counts.written += 1

    async def _repeat(self, key: _Key, known: _Series) -> None:
        """Write a count that grew; an event that the server has forgotten is made again."""
        owed = known.owed
        series = {"count": known.count + owed, "lastObservedTime": self._stamp()}
        namespace = _namespace(key.subject)
        try:
            await self._client.patch(EVENTS, known.name, {"series": series}, _Event, namespace=namespace)
        except ApiError as error:
            if error.code != 404:
                raise
            del self._series[key]
            await self._create(key, owed)
            return
        known.count, known.owed, known.written = known.count + owed, known.owed - owed, self._clock.monotonic()
        self.counts.written += 1

    def _next_debt(self) -> float | None:
        """In how many seconds a count is due to be written; ``None`` where none is owed."""
        due = [series.written + SERIES_PAUSE for series in self._series.values() if series.owed]
        return max(0.0, min(due) - self._clock.monotonic()) if due else None

    async def _pay_debts(self) -> None:
        now = self._clock.monotonic()
        for key, series in list(self._series.items()):
            if series.owed and now - series.written >= SERIES_PAUSE:
                await self._write(key, 0)
            elif now - series.seen > SERIES_END:
                del self._series[key]

    def _is_allowed(self, uid: str) -> bool:
        """Take a token of this object, where one is left."""
        now = self._clock.monotonic()
        left, at = self._tokens.pop(uid, (float(BURST), now))
        left = min(float(BURST), left + (now - at) / REFILL_SECONDS)
        allowed = left >= 1
        self._tokens[uid] = (left - 1 if allowed else left, now)
        if len(self._tokens) > 10 * QUEUE:
            self._tokens.popitem(last=False)
        return allowed

    def _body(self, key: _Key, times: int) -> dict[str, Any]:
        subject, stamp = key.subject, self._stamp()
        name = f"{subject.name[:230]}.{self._chance.getrandbits(64):016x}"
        regarding = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            "uid": subject.uid,
            **({"namespace": subject.namespace} if subject.namespace else {}),
        }
        series = {"series": {"count": times, "lastObservedTime": stamp}} if times > 1 else {}
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": _namespace(subject)},
            "eventTime": stamp,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "regarding": regarding,
            "type": key.type.value,
            "reason": key.reason,
            "action": key.action,
            "note": key.note,
            **series,
        }

    def _stamp(self) -> str:
        return dt.datetime.fromtimestamp(self._clock.wall(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def subject_of(kind: Kind, meta: Meta) -> Subject:
    """The subject that an object is."""
    return Subject(kind.kind, meta.name, meta.uid, meta.namespace, kind.api_version)


def cut(note: str, limit: int = NOTE_BYTES) -> str:
    """``note`` in at most ``limit`` bytes, cut between words, with an ellipsis where it was cut."""
    encoded = note.encode()
    if len(encoded) <= limit:
        return note
    head = encoded[: limit - len("…".encode())].decode(errors="ignore")
    whole = head if note[len(head)].isspace() else head.rpartition(" ")[0]
    return f"{(whole or head).rstrip()}…"


def _namespace(subject: Subject) -> str:
    return subject.namespace or "default"
