"""The objects of an API server in memory with their history: one revision a write, watchers that miss nothing.

Objects are never changed in place: a write stores a new one, so what a watcher was given stays as it was.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import TesseraError
from tessera.runtime.kube.port import EventType, Kind
from tessera.runtime.kube.selectors import Test

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One write: what was there before, and what after; ``None`` for nothing."""

    revision: int
    kind: Kind
    before: Object | None
    after: Object | None

    def seen_by(self, test: Test) -> tuple[EventType, Object] | None:
        """The event of a watch that selects by ``test``: what stops to match is deleted for it."""
        was = self.before is not None and test(self.before)
        if self.after is not None and test(self.after):
            return (EventType.MODIFIED if was else EventType.ADDED), self.after
        if was and self.before is not None:
            return EventType.DELETED, versioned(self.before, self.revision)
        return None


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing happened up to this revision that the watcher was not told."""

    revision: int
    initial_ends: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The stream ends: in silence, or with an error."""

    error: TesseraError | None = None


class Watcher:
    """One open watch: what it was told and has not taken yet."""

    def __init__(self, kind: Kind, test: Test) -> None:
        self.kind = kind
        self.test = test
        self._told: deque[Change | Bookmark | End] = deque()
        self._news = asyncio.Event()

    def tell(self, item: Change | Bookmark | End) -> None:
        """Adds to what the watcher will see; a change of another kind is not for it."""
        if isinstance(item, Change) and item.kind != self.kind:
            return
        self._told.append(item)
        self._news.set()

    async def take(self) -> Change | Bookmark | End:
        """What comes next, once it is there."""
        while not self._told:
            self._news.clear()
            await self._news.wait()
        return self._told.popleft()


class History:
    """All objects by kind and key, and all changes since the last compaction."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.watchers: set[Watcher] = set()
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = {}
        self._changes: list[Change] = []

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The present object."""
        return self._objects.get(kind, {}).get((namespace, name))

    def select(self, kind: Kind, test: Callable[[Object], bool]) -> Iterator[Object]:
        """Present objects in order of namespace and name, as the server lists them."""
        table = self._objects.get(kind, {})
        return (table[key] for key in sorted(table) if test(table[key]))

    def put(self, kind: Kind, key: tuple[str, str], after: Object | None) -> Object:
        """Writes an object (``None`` removes it): what is now there, or what was removed, with its new version."""
        self.revision += 1
        table = self._objects.setdefault(kind, {})
        before = table.get(key)
        if after is None:
            del table[key]
        else:
            after = table[key] = versioned(after, self.revision)
        change = Change(self.revision, kind, before, after)
        self._changes.append(change)
        for watcher in self.watchers:
            watcher.tell(change)
        return after if after is not None else versioned(before or {}, self.revision)

    def since(self, revision: int) -> Iterator[Change]:
        """Changes after a revision that was not compacted."""
        return (change for change in self._changes if change.revision > revision)

    def compact(self) -> None:
        """Forgets all changes: watches from before now are too old. Open watches keep what they were told."""
        self.revision += 1  # as etcd's revision moves on with other kinds' writes
        self.compacted = self.revision
        self._changes.clear()


def versioned(obj: Object, revision: int) -> Object:
    """The object with this version."""
    return {**obj, "metadata": {**obj.get("metadata", {}), "resourceVersion": str(revision)}}
