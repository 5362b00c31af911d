"""A copy of a set of objects that follows the API server: list, then watch, for as long as it runs.

What it promises, whatever the server and the network do:

- ``store`` ends equal to what the server has (what ``project`` keeps of it), and ``handlers`` were told every step
  on the way there as ``(old, new)``, one at a time, in order; ``None`` is "not there". The uid is who an object
  is: one that was deleted and made again under the same name is two steps, also when neither event was seen.
- A stream that ends, in silence or not, is resumed from the last version that was seen. Where the server no longer
  knows that version (410), everything is listed again and compared: deletions come first, then changes; what is
  the same says nothing.
- Events that were seen already, and older ones, are dropped. A list is always believed.
- Rounds that achieve nothing wait longer and longer, up to half a minute, with jitter. There is no busy loop.

A handler must not raise: it would end :meth:`Informer.run`, and the process with it.
"""

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from tessera.runtime.clock import Clock
from tessera.runtime.kube.port import (
    EVERYTHING,
    ApiError,
    ConnectionLostError,
    EventType,
    Kind,
    KubeClient,
    Select,
    WatchEvent,
)
from tessera.runtime.log import logger

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 30.0
LIVED_SECONDS: Final = 5.0
"""A watch that lived so long was worth opening, even if it brought nothing."""

MANY: Final = 1_000
"""Objects from which on the garbage collector is kept away from them."""

_log: Final = logger("informer")


class Named(Protocol):
    """Who an object is, and which version of it."""

    @property
    def uid(self) -> str:
        """Who."""
        ...

    @property
    def key(self) -> str:
        """``namespace/name``, or the name alone."""
        ...

    @property
    def resource_version(self) -> str:
        """Which version."""
        ...


class Watched(Protocol):
    """An object as an informer needs it (:class:`tessera.wire.kube.objects.Meta` is such metadata)."""

    @property
    def metadata(self) -> Named:
        """Its metadata."""
        ...


T = TypeVar("T", bound=Watched)
U = TypeVar("U")
Handler = Callable[[U | None, U | None], None]


class _Seen(msgspec.Struct, frozen=True, gc=False):
    """Who is stored under a key, and which version of it."""

    uid: str
    version: str


class Informer(Generic[T, U]):
    """See the module. ``project`` says what is kept of an object, ``None`` for nothing; without it, all of it.

    With a projection, handlers hear of a change only where what is kept has changed. ``streaming`` asks for the
    list as a stream (less memory on both sides), and lists in pages where the server cannot.
    """

    def __init__(  # noqa: PLR0913 - what, from where, how much of it, and time
        self,
        client: KubeClient,
        kind: Kind,
        as_: type[T],
        select: Select = EVERYTHING,
        *,
        clock: Clock,
        rng: random.Random,
        project: Callable[[T], U | None] | None = None,
        streaming: bool = False,
    ) -> None:
        self.handlers: list[Handler[U]] = []
        self.synced = asyncio.Event()
        self.resource_version = ""
        self.error = ""
        """Why the last round failed; empty again with the next event."""
        self._client, self._kind, self._as, self._select = client, kind, as_, select
        self._clock, self._rng = clock, rng
        self._project: Callable[[T], Any] = project or (lambda obj: obj)
        self._projects = project is not None
        self._streaming = streaming
        self._store: dict[str, U] = {}
        self._seen: dict[str, _Seen] = {}
        self._revision = 0
        self._stale = True
        self._waiting: list[asyncio.Future[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._fruitless = 0
        self._contact = clock.monotonic()

    @property
    def store(self) -> Mapping[str, U]:
        """What is kept of every object, by ``namespace/name`` (or name). Live: copy it to keep it."""
        return self._store

    def age(self) -> float:
        """Seconds since the server was last heard: an event, a bookmark (about one a minute), a page of a list."""
        return self._clock.monotonic() - self._contact

    async def refresh(self) -> None:
        """Return once the store is at least as new as the server was at this call: everything is listed again."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._fruitless = 0
        if self._watching is not None:
            self._watching.cancel()
        await waiting

    async def run(self) -> None:
        """Follows the server until it is cancelled."""
        while True:
            began = self._clock.monotonic()
            seconds = 0.0
            try:
                await self._round()
                self.error = ""
            except (ApiError, ConnectionLostError) as error:
                seconds = self._note(error)
            if self._clock.monotonic() - began >= LIVED_SECONDS and not self.error:
                self._fruitless = 0
            await self._clock.sleep(max(seconds, self._pause()))

    async def _round(self) -> None:
        """One list, where one is due, and one watch. What is achieved resets the count of fruitless rounds."""
        self._fruitless += 1
        waiting = tuple(self._waiting)  # whoever comes later wants a later list
        if waiting or self._stale:
            self._stale = True
            if self._streaming:
                await self._interruptible(self._stream(waiting))
                return
            await self._list()
            self._release(waiting)
        if not self._waiting:
            await self._interruptible(self._follow())

    async def _interruptible(self, watching: Coroutine[Any, Any, None]) -> None:
        """Watches until the stream ends or :meth:`refresh` cuts in, which ends it in silence."""
        task = self._watching = asyncio.ensure_future(watching)
        try:
            await asyncio.wait({task})
        finally:
            self._watching = None
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    def _note(self, error: ApiError | ConnectionLostError) -> float:
        """What the next round has to know of a failure: for how many seconds the server wants to be left alone."""
        gone = isinstance(error, ApiError) and error.code == 410
        if isinstance(error, ApiError) and error.code in (400, 410, 504):
            # Too old; or of another history (a restored server), which the server words as a timeout.
            self._stale = True
        if not self.error and not gone:
            _log.warning("watch lost", kind=self._kind.plural, error=str(error))
        self.error = "" if gone else str(error)
        return min(error.retry_after, LONGEST_PAUSE_SECONDS) if isinstance(error, ApiError) else 0.0

    def _pause(self) -> float:
        if not self._fruitless:
            return 0.0
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._fruitless - 1, 16))
        return longest * (0.5 + self._rng.random() / 2)

    def _heard(self) -> None:
        self._contact = self._clock.monotonic()

    # Listing

    async def _list(self) -> None:
        """All objects in pages, compared with what is stored."""
        comparison = _Comparison(self)
        with _collector_away():
            async with aclosing(self._client.pages(self._kind, self._as, self._select)) as pages:
                async for page in pages:
                    self._heard()
                    comparison.add(page.items)
                    version = page.resource_version
            comparison.finish()
        self._listed(version)

    async def _stream(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        """The same as a stream that goes on as a watch; pages where the server cannot stream."""
        comparison: _Comparison[T, U] | None = _Comparison(self)
        try:
            watch = self._client.watch(self._kind, self._as, self._select, resource_version="", initial=True)
            async with aclosing(watch) as events:
                async for event in events:
                    if comparison is None:
                        self._take(event)
                    elif event.initial_ends:
                        comparison.finish()
                        comparison = None
                        self._listed(event.resource_version)
                        self._release(waiting)
                    elif event.object is not None:
                        self._heard()
                        comparison.add((event.object,))
        except ApiError as error:
            if comparison is None or error.code not in (400, 422):
                raise
            self._streaming = False

    def _release(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        """Tells those who asked for a refresh before the list that there was one."""
        for future in waiting:
            self._waiting.remove(future)
            if not future.done():
                future.set_result(None)

    def _listed(self, version: str) -> None:
        """The store is as the server was at this version."""
        self._stale = False
        self.resource_version, self._revision = version, _number(version)
        self._heard()
        if not self.synced.is_set():
            if len(self._store) >= MANY:
                gc.collect()
                gc.freeze()  # what was listed stays for long: no later collection looks at it
            self.synced.set()

    # Watching

    async def _follow(self) -> None:
        """One watch from the last version."""
        watch = self._client.watch(self._kind, self._as, self._select, resource_version=self.resource_version)
        async with aclosing(watch) as events:
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent[T]) -> None:
        """One event: nothing where it was seen, or something newer was."""
        self._heard()
        revision = _number(event.resource_version)
        if revision and revision <= self._revision:
            return
        self._fruitless = 0
        self.error = ""
        if event.object is None:
            pass
        elif event.type is EventType.DELETED:
            self._gone(event.object.metadata.key)
        else:
            self._present(event.object)
        if revision:
            self.resource_version, self._revision = event.resource_version, revision

    # Changing

    def _present(self, obj: T) -> None:
        """An object as it is now."""
        metadata = obj.metadata
        key = metadata.key
        seen = self._seen.get(key)
        if seen is not None and seen.uid != metadata.uid:
            self._gone(key)
        kept: U | None = self._project(obj)
        if kept is None:
            self._gone(key)
            return
        old = self._store.get(key)
        self._seen[key] = _Seen(metadata.uid, metadata.resource_version)
        if self._projects and old == kept:
            return
        self._store[key] = kept
        self._tell(old, kept)

    def _gone(self, key: str) -> None:
        """An object that is there no longer, if it was kept."""
        if self._seen.pop(key, None) is not None:
            self._tell(self._store.pop(key), None)

    def _tell(self, old: U | None, new: U | None) -> None:
        for handler in self.handlers:
            handler(old, new)


class _Comparison(Generic[T, U]):
    """A list against what is stored. What is the same is let go of at once, so a second copy never exists.

    A first list has nothing to delete and is stored as it comes.
    """

    def __init__(self, informer: Informer[T, U]) -> None:
        self._informer = informer
        self._first = not informer._seen
        self._listed: set[str] = set()
        self._changed: list[T] = []

    def add(self, items: tuple[T, ...]) -> None:
        """Some objects of the list."""
        for obj in items:
            metadata = obj.metadata
            if self._first:
                self._informer._present(obj)
                continue
            self._listed.add(metadata.key)
            seen = self._informer._seen.get(metadata.key)
            if seen is None or (seen.uid, seen.version) != (metadata.uid, metadata.resource_version):
                self._changed.append(obj)

    def finish(self) -> None:
        """The list is complete: deletions, then changes."""
        informer = self._informer
        if not self._first:
            for key in [key for key in informer._seen if key not in self._listed]:
                informer._gone(key)
        for obj in self._changed:
            informer._present(obj)


_kept_away = 0


@contextlib.contextmanager
def _collector_away() -> Iterator[None]:
    """No garbage collection while many objects are made that all stay; lists may overlap."""
    global _kept_away  # noqa: PLW0603 - the collector is one a process
    was_on = gc.isenabled() or _kept_away > 0
    gc.disable()
    _kept_away += 1
    try:
        yield
    finally:
        _kept_away -= 1
        if was_on and not _kept_away:
            gc.enable()


def _number(version: str) -> int:
    """A version as the number that it is; 0 where there is none. Source: KEP-5504, versions are comparable."""
    return int(version) if version.isdecimal() else 0
