"""The client port without a general HTTP library: for processes that have to be small, such as a node's agent.

It does what :class:`~tessera.runtime.kube.client.ApiClient` does, in the same words: one suite runs on both. What
is tried again, and what is not, is said there.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from tessera.core.errors import UnavailableError
from tessera.runtime.clock import SYSTEM, Clock
from tessera.runtime.kube.codec import (
    base_path,
    decode_event,
    decode_object,
    decode_page,
    encode_body,
    failure,
    object_path,
    selection,
)
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.credentials import Credentials, Identity, tls_context
from tessera.runtime.kube.exchange import Exchange, Limits, Stream
from tessera.runtime.kube.port import (
    EVERYTHING,
    ApiError,
    ConnectionLostError,
    Kind,
    Listed,
    PatchType,
    Select,
    WatchEvent,
)
from tessera.runtime.kube.poster import Poster
from tessera.runtime.kube.stream import batches

T = TypeVar("T")

PAGE: Final = 500
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
_JSON: Final = "application/json"


class SlimClient:
    """Implements :class:`~tessera.runtime.kube.port.KubeClient`. Used and closed in one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        rng: random.Random | None = None,
        clock: Clock = SYSTEM,
        limits: Limits | None = None,
        page: int = PAGE,
    ) -> None:
        self.config = config
        self._rng = rng or random.Random()  # noqa: S311 - spreads waits, guards nothing
        self._clock, self._limits, self._page = clock, limits or Limits(), page
        self._credentials = Credentials(config, clock.wall)
        self._exchange: Exchange | None = None
        self._poster: Poster | None = None
        self._pair: tuple[bytes | None, bytes | None] = (None, None)

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
        """The same, page by page."""
        path, params = base_path(kind, select.namespace), {"limit": str(self._page), **selection(select)}
        while True:
            page = decode_page(await self._call("GET", path, params=params), as_)
            yield Listed(tuple(page.items or ()), page.metadata.resource_version)
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    async def watch(
        self,
        kind: Kind,
        as_: type[T],
        select: Select = EVERYTHING,
        *,
        resource_version: str,
        initial: bool = False,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Events until the server ends the stream."""
        seconds = WATCH_SECONDS + self._rng.randrange(WATCH_SECONDS // 2)
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **selection(select),
        }
        if initial:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        if resource_version:
            params["resourceVersion"] = resource_version
        exchange, headers = await self._ready()
        target = _target(base_path(kind, select.namespace), params)
        stream = await exchange.open(target, headers, seconds + SLACK_SECONDS)
        try:
            await self._refuse(stream)
            async for lines in batches(stream):
                for line in lines:
                    yield decode_event(line, as_)
        except TimeoutError:
            return  # the server should have ended it: as silent an end as its own
        finally:
            stream.close()

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
        """Status and body of one POST, undecoded and never repeated.

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

    async def close(self) -> None:
        """Close every connection; watches end."""
        if self._poster is not None:
            self._poster.close()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = _JSON,
    ) -> bytes:
        """The body of a good answer, after the tries that the module allows."""
        for left in reversed(range(TRIES)):
            try:
                return await self._once(method, _target(path, params or {}), body, content_type)
            except (ApiError, ConnectionLostError) as error:
                pause = self._pause(error, method, TRIES - left) if left else None
                if pause is None:
                    raise
                await self._clock.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _once(self, method: str, target: str, body: bytes | None, content_type: str) -> bytes:
        exchange, headers = await self._ready()
        if body is not None:
            headers = {**headers, "Content-Type": content_type}
        reply = await exchange.call(method, target, headers, body)
        if reply.status >= 300:
            raise failure(reply.status, reply.body, reply.retry_after)
        return reply.body

    async def _refuse(self, stream: Stream) -> None:
        """Raise :class:`ApiError` where the answer to a watch is a refusal."""
        if (await stream.begun(self._limits.silence)).status < 300:
            return
        reply = await stream.whole(self._limits.silence)
        if reply.status == 401:
            self._credentials.forget()
        raise failure(reply.status, reply.body, reply.retry_after)

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

    async def _ready(self) -> tuple[Exchange, Mapping[str, str]]:
        """The connections (new ones where our certificate changed) and the headers that say who we are."""
        try:
            identity = await self._credentials.current()
            if self._exchange is None or self._pair != (identity.certificate, identity.key):
                self._renew(identity)
        except UnavailableError as error:
            raise ConnectionLostError(str(error)) from None
        assert self._exchange is not None
        headers = {"Accept": _JSON, "User-Agent": "tessera"}
        if identity.token:
            if not identity.token.isprintable():
                raise ConnectionLostError(f"{self.config.source}: the token is no text of one line")
            headers["Authorization"] = f"Bearer {identity.token}"
        return self._exchange, headers

    def _renew(self, identity: Identity) -> None:
        context = tls_context(self.config, identity)
        if self._exchange is not None:
            self._exchange.retire()  # what is on the old connections may come to its end
        if self._poster is not None:
            self._poster.close()
        self._poster = Poster(self.config.server, context, self.config.server_name, self._limits.silence)
        self._exchange = Exchange(self.config.server, context, self.config.server_name, self._limits)
        self._pair = (identity.certificate, identity.key)


def _target(path: str, params: Mapping[str, str]) -> str:
    """An address with its query; paths are quoted already. Raises ``ValueError`` for one that is not."""
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"{path!r} is not quoted")
    return f"{path}?{urlencode(params, quote_via=quote)}" if params else path
