"""An API server in memory behind the client port, with the rules that somebody here relies on, and faults.

::

    server = MemoryCluster()
    await server.create(PODS, {"metadata": {"name": "a", "namespace": "n"}, "spec": {}}, KubePod, namespace="n")
    server.fail(Fault("create", error=ApiError(500, "InternalError", "disk")))   # the next create fails
    server.end_streams()                                                         # every watch ends in silence

What it keeps: versions, uids, generations, optimistic locking, status as a subresource, finalizers and graceful
deletion, bindings that carry annotations and labels, evictions, selectors, watches with history and bookmarks,
expiry (410). What it does not know: admission, defaults, validation of contents, authorization, owners of fields.
The contract suite in ``tests/ports`` runs on it and on a real server.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from tessera.core.errors import TesseraError
from tessera.runtime.clock import SYSTEM
from tessera.runtime.kube.codec import decode_object, encode_body
from tessera.runtime.kube.history import Bookmark, Change, End, History, Object, Watcher
from tessera.runtime.kube.patch import PatchFailed, apply_patch, json_patch, merge_patch
from tessera.runtime.kube.port import (
    CRDS,
    EVENTS,
    EVERYTHING,
    GPU_NODES,
    GPUS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    ApiError,
    ConnectionLostError,
    EventType,
    Kind,
    Listed,
    PatchType,
    Select,
    WatchEvent,
)
from tessera.runtime.kube.selectors import matcher

T = TypeVar("T")

PAGE: Final = 500
_STATUS_APART: Final = frozenset({PODS, NODES, CRDS, GPU_NODES, GPUS})
_NO_GENERATION: Final = frozenset({NODES, LEASES, SECRETS, EVENTS})
_DELETION: Final = ("deletionTimestamp", "deletionGracePeriodSeconds")
_CUSTOM: Final = frozenset({GPU_NODES, GPUS})


@dataclass(slots=True)
class Fault:
    """What happens to calls of a verb (``get list watch create replace patch delete``; empty: any) and a kind.

    The first ``after`` calls pass, the next ``times`` meet the fault. ``gate`` holds a call until it is set; then
    ``error`` is raised, before the write, or after it where ``late`` (the answer is lost, the write is not).
    """

    verb: str = ""
    kind: Kind | None = None
    error: TesseraError | None = None
    after: int = 0
    times: int = 1
    late: bool = False
    gate: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was made, for tests that count."""

    verb: str
    kind: Kind
    name: str = ""
    subresource: str = ""


@dataclass(slots=True)
class _Applied:
    """What each manager applied last, by kind and key."""

    by_manager: dict[tuple[Kind, str, str, str], Any] = field(default_factory=dict)


class MemoryCluster:
    """Implements :class:`~tessera.runtime.kube.port.KubeClient`; any number of users share one.

    ``wall`` is the time of day for timestamps (seconds since 1970). Kinds in ``answers`` are never stored: a
    create is answered by the function (token and access reviews). :attr:`away` makes the server unreachable.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = SYSTEM.wall,
        answers: Mapping[Kind, Callable[[Object], Object]] | None = None,
        page: int = PAGE,
    ) -> None:
        self.history = History()
        self.calls: list[Call] = []
        self.replay = 0
        """So many versions earlier than it was asked to does a watch begin, as behind a server that lags."""
        self._wall = wall
        self._page = page
        self._answers = dict(answers or {})
        self._faults: list[Fault] = []
        self._applied = _Applied()
        self._serial = 0
        self._away = False

    # Faults

    @property
    def away(self) -> bool:
        """Whether the server cannot be reached."""
        return self._away

    @away.setter
    def away(self, value: bool) -> None:
        self._away = value
        if value:
            self.end_streams(ConnectionLostError("the server went away"))

    def fail(self, fault: Fault) -> None:
        """Lets calls meet a fault."""
        self._faults.append(fault)

    def mend(self) -> None:
        """No faults from here on."""
        self._faults.clear()
        self.replay = 0
        self.away = False

    def end_streams(self, error: TesseraError | None = None, kind: Kind | None = None) -> None:
        """Ends open watches after what they were told already: in silence, or with this error."""
        for watcher in [w for w in self.history.watchers if kind in (None, w.kind)]:
            watcher.tell(End(error))
            self.history.watchers.discard(watcher)

    def expire_streams(self, kind: Kind | None = None) -> None:
        """Ends open watches with a 410, as an event in the stream; a new watch from the old version works."""
        self.end_streams(ApiError(410, "Expired", "The resourceVersion for the provided watch is too old."), kind)

    def bookmark(self, kind: Kind | None = None) -> None:
        """Sends a bookmark to open watches."""
        for watcher in self.history.watchers:
            if kind in (None, watcher.kind):
                watcher.tell(Bookmark(self.history.revision))

    def compact(self) -> None:
        """Forgets the history: a watch from any version before now gets a 410 as status."""
        self.history.compact()

    # The port

    async def get(self, kind: Kind, name: str, as_: type[T], *, namespace: str = "") -> T:
        """One object."""
        fault = await self._enter("get", kind, name)
        return _answer(self._present(kind, namespace, name), as_, fault)

    async def list(self, kind: Kind, as_: type[T], select: Select = EVERYTHING) -> Listed[T]:
        """All objects that are selected."""
        items: list[T] = []
        version = ""
        async for page in self.pages(kind, as_, select):
            items.extend(page.items)
            version = page.resource_version
        return Listed(tuple(items), version)

    async def pages(
        self, kind: Kind, as_: type[T], select: Select = EVERYTHING
    ) -> AsyncGenerator[Listed[T], None]:
        """The same, page by page, all at the version of the first."""
        fault = await self._enter("list", kind)
        found = list(self.history.select(kind, matcher(kind, select)))
        version = self.history.revision
        _raise_late(fault)
        for start in range(0, max(1, len(found)), self._page):
            if start:
                await self._enter("list", kind)
                if version < self.history.compacted:
                    raise ApiError(410, "Expired", "The provided continue parameter is too old.")
            yield Listed(tuple(_typed(obj, as_) for obj in found[start : start + self._page]), str(version))

    async def watch(
        self,
        kind: Kind,
        as_: type[T],
        select: Select = EVERYTHING,
        *,
        resource_version: str,
        initial: bool = False,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Events until the stream ends."""
        await self._enter("watch", kind)
        watcher = self._open(kind, select, resource_version, initial=initial)
        try:
            while True:
                item = await watcher.take()
                if isinstance(item, End):
                    if item.error is not None:
                        raise item.error
                    return
                if isinstance(item, Bookmark):
                    yield WatchEvent(EventType.BOOKMARK, None, str(item.revision), item.initial_ends)
                elif seen := item.seen_by(watcher.test):
                    type_, obj = seen
                    yield WatchEvent(type_, _typed(obj, as_), str(item.revision))
        finally:
            self.history.watchers.discard(watcher)

    async def create(
        self, kind: Kind, body: Any, as_: type[T], *, namespace: str = "", subresource: str = "", name: str = ""
    ) -> T:
        """A new object, a binding or an eviction."""
        fault = await self._enter("create", kind, name, subresource)
        obj = _plain(body)
        if kind in self._answers:
            return _answer(self._answers[kind](obj), as_, fault)
        if subresource:
            return _answer(self._post(kind, namespace, name, subresource, obj), as_, fault)
        return _answer(self._insert(kind, obj, namespace), as_, fault)

    async def replace(
        self, kind: Kind, name: str, body: Any, as_: type[T], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """PUT."""
        fault = await self._enter("replace", kind, name, subresource)
        present, after = self._present(kind, namespace, name), _plain(body)
        if kind in _CUSTOM and not after.get("metadata", {}).get("resourceVersion"):
            raise ApiError(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        return _answer(self._update(kind, present, after, subresource), as_, fault)

    async def patch(  # noqa: PLR0913 - as many as the API has
        self,
        kind: Kind,
        name: str,
        body: Any,
        as_: type[T],
        *,
        type_: PatchType = PatchType.MERGE,
        namespace: str = "",
        subresource: str = "",
        field_manager: str = "tessera",
    ) -> T:
        """PATCH."""
        fault = await self._enter("patch", kind, name, subresource)
        change = _plain(body)
        if type_ is PatchType.APPLY:
            obj = self._apply(kind, (namespace, name), change, subresource, field_manager)
            return _answer(obj, as_, fault)
        present = self._present(kind, namespace, name)
        try:
            after = merge_patch(present, change) if type_ is PatchType.MERGE else json_patch(present, change)
        except PatchFailed as error:
            raise ApiError(422, "Invalid", str(error)) from None
        return _answer(self._update(kind, present, after, subresource), as_, fault)

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """DELETE."""
        fault = await self._enter("delete", kind, name)
        present = self._present(kind, namespace, name)
        _check(kind, present, uid, resource_version)
        self._remove(kind, present, grace_seconds)
        _raise_late(fault)

    async def close(self) -> None:
        """End all watches."""
        self.end_streams()

    # Rules

    async def _enter(self, verb: str, kind: Kind, name: str = "", subresource: str = "") -> Fault | None:
        """Counts the call and lets it meet its fault: a ``late`` one is returned, any other is raised."""
        self.calls.append(Call(verb, kind, name, subresource))
        await asyncio.sleep(0)  # as any call over a network, it lets others go first
        fault = next(
            (f for f in self._faults if f.verb in ("", verb) and f.kind in (None, kind) and _due(f)), None
        )
        if fault is not None and fault.times <= 0:
            self._faults.remove(fault)
        if fault is not None and fault.gate is not None:
            await fault.gate.wait()
        if self._away:
            raise ConnectionLostError("the server cannot be reached")
        if fault is not None and fault.error is not None and not fault.late:
            raise fault.error
        return fault

    def _open(self, kind: Kind, select: Select, version: str, *, initial: bool) -> Watcher:
        watcher = Watcher(kind, matcher(kind, select))
        if initial or version in ("", "0"):
            for obj in self.history.select(kind, watcher.test):
                watcher.tell(Change(int(obj["metadata"]["resourceVersion"]), kind, None, obj))
            if initial:
                watcher.tell(Bookmark(self.history.revision, initial_ends=True))
        else:
            revision = _revision(version)
            if revision < self.history.compacted:
                raise ApiError(410, "Expired", f"too old resource version: {revision} ({self.history.compacted})")
            for change in self.history.since(revision - self.replay):
                watcher.tell(change)
        self.history.watchers.add(watcher)
        return watcher

    def _present(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.history.find(kind, namespace if kind.namespaced else "", name)
        if found is None:
            raise ApiError(404, "NotFound", f'{kind.plural} "{name}" not found')
        return found

    def _insert(self, kind: Kind, obj: Object, namespace: str) -> Object:
        metadata = dict(obj.get("metadata") or {})
        self._serial += 1
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{self._serial:05d}"
        key = _new_key(kind, metadata, namespace)
        if self.history.find(kind, *key) is not None:
            raise ApiError(409, "AlreadyExists", f'{kind.plural} "{key[1]}" already exists')
        metadata |= {
            "uid": f"00000000-0000-4000-8000-{self._serial:012d}",
            "creationTimestamp": self._timestamp(),
        }
        if kind.namespaced:
            metadata["namespace"] = namespace
        if kind not in _NO_GENERATION:
            metadata["generation"] = 1
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **obj, "metadata": metadata}
        if kind == PODS:
            made["spec"] = {"schedulerName": "default-scheduler", **(made.get("spec") or {})}
            made["status"] = {"phase": "Pending"}
        elif kind in _STATUS_APART and kind != NODES:  # a kubelet registers with its status
            made.pop("status", None)
        return self.history.put(kind, key, made)

    def _update(self, kind: Kind, present: Object, after: Object, subresource: str) -> Object:
        before, wanted = present["metadata"], dict(after.get("metadata") or {})
        _check(kind, present, str(wanted.get("uid") or ""), str(wanted.get("resourceVersion") or ""))
        fixed = ("name", "namespace", "uid", "creationTimestamp", "generation", *_DELETION)
        metadata = {k: v for k, v in wanted.items() if k not in fixed} | {
            k: before[k] for k in fixed if k in before
        }
        metadata["resourceVersion"] = before["resourceVersion"]
        made = {**after, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        if subresource == "status":
            kept = before if kind in _CUSTOM else {**metadata, **_owned(before)}
            made = {**present, "status": after.get("status", {}), "metadata": dict(kept)}
        elif kind in _STATUS_APART:
            made.pop("status", None)
            made |= {"status": present["status"]} if "status" in present else {}
        if made == present:
            return present  # nothing changed: no new version, no event
        if kind not in _NO_GENERATION and _wanted(made) != _wanted(present):
            metadata["generation"] = before.get("generation", 0) + 1
        if "deletionTimestamp" in metadata and not (
            metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        ):
            return self.history.put(kind, _key(present), None)
        return self.history.put(kind, _key(present), made)

    def _apply(self, kind: Kind, key: tuple[str, str], applied: Object, subresource: str, manager: str) -> Object:
        namespace, name = key if kind.namespaced else ("", key[1])
        present = self.history.find(kind, namespace, name)
        memory = (kind, namespace, name, f"{manager}/{subresource}")
        if present is None and subresource:
            raise ApiError(404, "NotFound", f'{kind.plural} "{name}" not found')
        if present is None:
            made = self._insert(kind, apply_patch({}, applied, None), namespace)
        else:
            before = self._applied.by_manager.get(memory)
            made = self._update(kind, present, apply_patch(present, applied, before), subresource)
        self._applied.by_manager[memory] = applied
        return made

    def _post(self, kind: Kind, namespace: str, name: str, subresource: str, obj: Object) -> Object:
        present = self._present(kind, namespace, name)
        metadata = obj.get("metadata") or {}
        if (kind, subresource) == (PODS, "binding"):
            _check(kind, present, metadata.get("uid") or "", metadata.get("resourceVersion") or "")
            self._bind(present, metadata, str((obj.get("target") or {}).get("name", "")))
        elif (kind, subresource) == (PODS, "eviction"):
            options = obj.get("deleteOptions") or {}
            conditions = options.get("preconditions") or {}
            _check(kind, present, conditions.get("uid") or "", conditions.get("resourceVersion") or "")
            self._remove(kind, present, options.get("gracePeriodSeconds"))
        else:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return {"apiVersion": "v1", "kind": "Status", "status": "Success", "code": 201, "metadata": {}}

    def _bind(self, pod: Object, metadata: Mapping[str, Any], node: str) -> None:
        name = pod["metadata"]["name"]
        if not node:
            raise ApiError(422, "Invalid", "target.name: Required value")
        if pod["spec"].get("nodeName"):
            bound = pod["spec"]["nodeName"]
            raise ApiError(409, "Conflict", f'pod {name} is already assigned to node "{bound}"')
        if pod["metadata"].get("deletionTimestamp"):
            raise ApiError(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host")
        carried = {
            part: {**(pod["metadata"].get(part) or {}), **metadata[part]}
            for part in ("annotations", "labels")
            if metadata.get(part)
        }
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._timestamp()}
        conditions = [c for c in pod["status"].get("conditions", []) if c["type"] != "PodScheduled"]
        bound = {
            **pod,
            "metadata": {**pod["metadata"], **carried},
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**pod["status"], "conditions": [*conditions, scheduled]},
        }
        self.history.put(PODS, _key(pod), bound)

    def _remove(self, kind: Kind, present: Object, grace: int | None) -> None:
        """Marks what has to wait (and every pod, as the server does: two events), removes what has not."""
        waits = kind == PODS and grace != 0 and present["spec"].get("nodeName") and not _ended(present)
        seconds = (30 if grace is None else grace) if waits else 0
        held = bool(waits or present["metadata"].get("finalizers"))
        if held or kind == PODS:
            present = self._marked(kind, present, seconds)
        if not held:
            self.history.put(kind, _key(present), None)

    def _marked(self, kind: Kind, present: Object, seconds: int) -> Object:
        """The object that will be gone in so many seconds; a mark is only ever brought forward."""
        metadata = present["metadata"]
        if metadata.get("deletionTimestamp") and metadata["deletionGracePeriodSeconds"] <= seconds:
            return present
        marked = {"deletionTimestamp": self._timestamp(seconds), "deletionGracePeriodSeconds": seconds}
        if "generation" in metadata:
            marked["generation"] = metadata["generation"] + 1
        return self.history.put(kind, _key(present), {**present, "metadata": {**metadata, **marked}})

    def _timestamp(self, ahead: int = 0) -> str:
        moment = datetime.fromtimestamp(self._wall() + ahead, UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _due(fault: Fault) -> bool:
    if fault.after > 0:
        fault.after -= 1
        return False
    fault.times -= 1
    return True


def _plain(body: Any) -> Any:
    """A body as the server reads it: JSON, whatever it was made of."""
    return msgspec.json.decode(encode_body(body))


def _typed(obj: Object, as_: type[T]) -> T:
    return decode_object(msgspec.json.encode(obj), as_)


def _answer(obj: Object, as_: type[T], fault: Fault | None) -> T:
    _raise_late(fault)
    return _typed(obj, as_)


def _raise_late(fault: Fault | None) -> None:
    if fault is not None and fault.error is not None:
        raise fault.error


def _check(kind: Kind, present: Object, uid: str, version: str) -> None:
    """Preconditions: 409 where the object is another one, or newer."""
    metadata = present["metadata"]
    if uid and uid != metadata["uid"]:
        raise ApiError(
            409, "Conflict", f"Precondition failed: UID in precondition: {uid}, in object: {metadata['uid']}"
        )
    if version and version != metadata["resourceVersion"]:
        raise ApiError(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {kind.plural} "{metadata["name"]}": the object has been modified',
        )


def _new_key(kind: Kind, metadata: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Namespace and name of an object that is to be made."""
    key = (namespace if kind.namespaced else "", str(metadata.get("name", "")))
    if not key[1] or (kind.namespaced and not namespace):
        raise ApiError(422, "Invalid", "name or generateName, and a namespace, are required")
    if metadata.get("resourceVersion"):
        raise ApiError(500, "InternalError", "resourceVersion should not be set on objects to be created")
    if metadata.get("namespace") not in (None, "", key[0]):
        raise ApiError(400, "BadRequest", "the namespace of the object does not match the request")
    return key


def _key(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _owned(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a write to a status leaves alone."""
    return {name: metadata[name] for name in ("finalizers", "ownerReferences") if name in metadata}


def _wanted(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _revision(version: str) -> int:
    try:
        return int(version)
    except ValueError:
        raise ApiError(400, "BadRequest", f"invalid resource version {version!r}") from None
