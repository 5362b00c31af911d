"""Bytes of the API server to typed objects: lists, watch events, failures; addresses of resources.

A watch event is decoded once, straight into the caller's type, because the server writes ``type`` first: only
bookmarks and errors, whose objects are not what they say they are (a bookmark's pod has null for containers), take
the road over the raw object.
"""

from functools import lru_cache
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from tessera.runtime.kube.port import ApiError, EventType, Kind, Select, WatchEvent

T = TypeVar("T")

INITIAL_ENDS: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends a streamed list. Source: KEP-3157."""


class ListMeta(msgspec.Struct, rename="camel", gc=False):
    """A list's version, and where its next page begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[T] | None = None


class _PageEnd(msgspec.Struct):
    """A page without its objects."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: int = 0


class Status(msgspec.Struct, rename="camel"):
    """A failure as Kubernetes words it."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class _Event(msgspec.Struct, Generic[T]):
    type: EventType
    object: T


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Marked(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Versioned(msgspec.Struct, gc=False):
    metadata: _Marked = msgspec.field(default_factory=_Marked)


_DIRECT: Final = (b'{"type":"ADDED"', b'{"type":"MODIFIED"', b'{"type":"DELETED"')
_raw_event: Final = msgspec.json.Decoder(_RawEvent)
_versioned: Final = msgspec.json.Decoder(_Versioned)
_status: Final = msgspec.json.Decoder(Status)
_encoder: Final = msgspec.json.Encoder()


_page_ends: Final = msgspec.json.Decoder(_PageEnd)


_objects: Final[dict[object, msgspec.json.Decoder[Any]]] = {}
_pages: Final[dict[object, msgspec.json.Decoder[Any]]] = {}
_events: Final[dict[object, msgspec.json.Decoder[Any]]] = {}


def object_decoder(as_: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of one object; made once a type."""
    return _objects.get(as_) or _objects.setdefault(as_, msgspec.json.Decoder(as_))


def page_decoder(as_: type[T]) -> msgspec.json.Decoder[Page[T]]:
    """The decoder of a page of such objects."""
    return _pages.get(as_) or _pages.setdefault(as_, msgspec.json.Decoder(Page[as_]))  # type: ignore[valid-type]


def _event_decoder(as_: type[T]) -> msgspec.json.Decoder[_Event[T]]:
    return _events.get(as_) or _events.setdefault(as_, msgspec.json.Decoder(_Event[as_]))  # type: ignore[valid-type]


def decode_object(data: bytes, as_: type[T]) -> T:
    """One object. Raises :class:`ApiError` where it is none."""
    try:
        return object_decoder(as_).decode(data)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from None


def decode_page(data: bytes, as_: type[T]) -> Page[T]:
    """One page. Raises :class:`ApiError` where it is none."""
    try:
        return page_decoder(as_).decode(data)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from None


def continuation(data: bytes) -> str:
    """Where the page after this one begins, empty where there is none; raises as :func:`decode_page` does."""
    try:
        return _page_ends.decode(data).metadata.continue_
    except msgspec.MsgspecError as error:
        raise unreadable(error) from None


def decode_event(line: bytes, as_: type[T]) -> WatchEvent[T]:
    """One line of a watch. Raises :class:`ApiError` for an error event and for what is no event."""
    try:
        if line.startswith(_DIRECT):
            event = _event_decoder(as_).decode(line)
            return WatchEvent(event.type, event.object, version_of(event.object))
        return _decode_rare(line, as_)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from None


def _decode_rare(line: bytes, as_: type[T]) -> WatchEvent[T]:
    raw = _raw_event.decode(line)
    if raw.type == "ERROR":
        raise failure(0, bytes(raw.object))
    marked = _versioned.decode(raw.object).metadata
    if raw.type == "BOOKMARK":
        ends = (marked.annotations or {}).get(INITIAL_ENDS) == "true"
        return WatchEvent(EventType.BOOKMARK, None, marked.resource_version, ends)
    try:
        type_ = EventType(raw.type)
    except ValueError:
        raise ApiError(500, "Unreadable", f"a watch event of type {raw.type!r}") from None
    return WatchEvent(type_, object_decoder(as_).decode(raw.object), marked.resource_version)


def failure(code: int, body: bytes, retry_after: str = "") -> ApiError:
    """The error that an answer says; bodies that are no Status (proxies, early start) are quoted in short."""
    try:
        status = _status.decode(body)
    except msgspec.MsgspecError:
        status = Status(message=body[:300].decode("utf-8", "replace").strip())
    error = ApiError(code or status.code or 500, status.reason or "Unknown", status.message or "no message")
    seconds = status.details.retry_after_seconds if status.details else 0
    error.retry_after = float(retry_after) if retry_after.isdigit() else float(seconds)
    return error


def unreadable(error: msgspec.MsgspecError) -> ApiError:
    """What the server sent is not what it should be."""
    return ApiError(500, "Unreadable", str(error))


def encode_body(body: Any) -> bytes:
    """A body as JSON; bytes are JSON already."""
    return body if isinstance(body, bytes) else _encoder.encode(body)


def version_of(obj: Any) -> str:
    """An object's resourceVersion, of a struct with ``metadata`` or a plain mapping."""
    if isinstance(obj, dict):
        return str(obj.get("metadata", {}).get("resourceVersion", ""))
    return str(obj.metadata.resource_version)


@lru_cache(4096)
def base_path(kind: Kind, namespace: str = "") -> str:
    """The address of a collection."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced and namespace else ""
    return f"{root}{scope}/{kind.plural}"


def object_path(kind: Kind, name: str, namespace: str = "", subresource: str = "") -> str:
    """The address of one object or of its subresource; an empty name is the collection."""
    path = base_path(kind, namespace)
    if name:
        path = f"{path}/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path


def selection(select: Select) -> dict[str, str]:
    """The parameters of a selection."""
    chosen = {"labelSelector": select.labels, "fieldSelector": select.fields}
    return {name: text for name, text in chosen.items() if text}
