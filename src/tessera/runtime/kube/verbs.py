"""The verbs of the client port, and what is tried again: the same over any transport.

What is tried again, and what is not: a read that failed (lost connection, 5xx) and anything but a POST that the
server put off (429) are, a few times and never longer than a call may take. A POST is the caller's to repeat, who
alone knows whether twice is harmless.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, TypeVar

from tessera.runtime.clock import Clock
from tessera.runtime.kube.codec import (
    base_path,
    continuation,
    decode_object,
    decode_page,
    encode_body,
    object_path,
    selection,
)
from tessera.runtime.kube.credentials import Credentials
from tessera.runtime.kube.port import (
    EVERYTHING,
    ApiError,
    ConnectionLostError,
    Kind,
    Listed,
    PatchType,
    Select,
)
from tessera.runtime.kube.poster import Poster

T = TypeVar("T")

PAGE: Final = 500
"""Objects a page: about 4 ms of decoding, during which nothing else runs."""

LIST_STARTS: Final = 4
"""How often a list is begun that expires between its pages."""

TRIES: Final = 4
LONGEST_WAIT_SECONDS: Final = 5.0
"""However long a server asks us to wait, a call waits so long and tries again."""

WATCH_SECONDS: Final = 300
"""How long the server holds a watch, at least; each asks for up to half as long again, so that few end at once."""
SLACK_SECONDS: Final = 20
CLOSING_ROUNDS: Final = 10
"""Turns of the event loop in which closed connections say so."""

JSON: Final = "application/json"


class Verbs(ABC):
    """All of :class:`~tessera.runtime.kube.port.KubeClient` but watches, over one request at a time."""

    def __init__(self, credentials: Credentials, rng: random.Random | None, clock: Clock, page: int) -> None:
        self._credentials = credentials
        self._rng = rng or random.Random()  # noqa: S311 - spreads waits, guards nothing
        self._clock, self._page = clock, page
        self._poster: Poster | None = None

    @abstractmethod
    async def _ready(self) -> tuple[Any, Mapping[str, str]]:
        """The connections, and the headers that say who we are."""

    @abstractmethod
    async def _once(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str] | None, content_type: str
    ) -> bytes:
        """The body of a good answer. Raises :class:`ApiError` and :class:`ConnectionLostError`."""

    async def get(self, kind: Kind, name: str, as_: type[T], *, namespace: str = "") -> T:
        """One object."""
        return decode_object(await self._call("GET", object_path(kind, name, namespace)), as_)

    async def list(self, kind: Kind, as_: type[T], select: Select = EVERYTHING) -> Listed[T]:
        """All objects that are selected, at one version."""
        for start in range(LIST_STARTS):
            items: list[T] = []
            version = ""
            try:
                async for page in self.pages(kind, as_, select):
                    items.extend(page.items)
                    version = page.resource_version
                return Listed(tuple(items), version)
            except ApiError as error:
                if error.code != 410 or start == LIST_STARTS - 1:
                    raise
        raise AssertionError("every start returns or raises")

    async def pages(
        self, kind: Kind, as_: type[T], select: Select = EVERYTHING
    ) -> AsyncGenerator[Listed[T], None]:
        """The same, page by page. The server prepares the next page while this one is decoded and used."""
        path, params = base_path(kind, select.namespace), {"limit": str(self._page), **selection(select)}
        data: bytes | None = await self._call("GET", path, params=params)
        while data is not None:
            following = continuation(data)
            ahead: asyncio.Task[bytes] | None = None
            if following:
                ahead = asyncio.ensure_future(self._call("GET", path, params={**params, "continue": following}))
                await asyncio.sleep(0)  # it is under way before the decoding begins
            try:
                page = decode_page(data, as_)
                yield Listed(tuple(page.items or ()), page.metadata.resource_version)
                data = await ahead if ahead is not None else None
            finally:
                if ahead is not None and not ahead.cancel() and not ahead.cancelled():
                    ahead.exception()  # whoever stops reading does not want to know

    def _watch_params(self, select: Select, version: str, *, initial: bool) -> tuple[int, dict[str, str]]:
        """How many seconds a watch is asked for, and its parameters."""
        seconds = WATCH_SECONDS + self._rng.randrange(WATCH_SECONDS // 2)
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **selection(select),
        }
        if initial:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if version:
            params["resourceVersion"] = version
        return seconds, params

    async def create(
        self, kind: Kind, body: Any, as_: type[T], *, namespace: str = "", subresource: str = "", name: str = ""
    ) -> T:
        """A new object, or a POST to a subresource."""
        path = object_path(kind, name, namespace, subresource)
        return decode_object(await self._call("POST", path, encode_body(body)), as_)

    async def replace(
        self, kind: Kind, name: str, body: Any, as_: type[T], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """PUT."""
        path = object_path(kind, name, namespace, subresource)
        return decode_object(await self._call("PUT", path, encode_body(body)), as_)

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
        params = {"fieldManager": field_manager} | ({"force": "true"} if type_ is PatchType.APPLY else {})
        path = object_path(kind, name, namespace, subresource)
        data = await self._call("PATCH", path, encode_body(body), params=params, content_type=type_.value)
        return decode_object(data, as_)

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
        conditions = {k: v for k, v in {"uid": uid, "resourceVersion": resource_version}.items() if v}
        options: dict[str, Any] = {"preconditions": conditions} if conditions else {}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._call("DELETE", object_path(kind, name, namespace), encode_body(options) if options else None)

    async def post_raw(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of one POST, undecoded and never repeated: the shortest road, for bindings.

        Raises :class:`ConnectionLostError` where no answer came; the server may have acted all the same.
        """
        _, headers = await self._ready()
        assert self._poster is not None
        status, answer = await self._poster.post(path, body, headers)
        if status == 401:
            self._credentials.forget()
        return status, answer

    async def raw(self, path: str) -> bytes:
        """The body of any address (``/readyz``, ``/version``)."""
        return await self._call("GET", path)

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """The body of a good answer, after the tries that the module allows."""
        for left in reversed(range(TRIES)):
            try:
                return await self._once(method, path, body, params, content_type)
            except (ApiError, ConnectionLostError) as error:
                pause = self._pause(error, method, TRIES - left) if left else None
                if pause is None:
                    raise
                await self._clock.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _pause(self, error: ApiError | ConnectionLostError, method: str, tries: int) -> float | None:
        """Seconds to the next try; ``None`` where there is none."""
        jittered = 0.1 * 2**tries * (0.5 + self._rng.random())
        if isinstance(error, ConnectionLostError):
            return jittered if method == "GET" else None
        if error.code == 401 and self._credentials.forget() and tries == 1:
            return 0.0
        if error.reason == "Unreadable":
            return None
        if (error.code == 429 and method != "POST") or (error.code >= 500 and method == "GET"):
            return min(error.retry_after or jittered, LONGEST_WAIT_SECONDS)
        return None
