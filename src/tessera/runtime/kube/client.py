"""The client port over HTTPS: pools of kept-alive connections, typed answers, watches that say how they ended.

What is tried again, and what is not: a read that failed (lost connection, 5xx) and anything but a POST that the
server put off (429) are, a few times and never longer than a call may take. A POST is the caller's to repeat, who
alone knows whether twice is harmless.
"""

import asyncio
import contextlib
import io
import random
import socket
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, TypeVar

import aiohttp
from yarl import URL

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
from tessera.runtime.kube.poster import ANSWER_SECONDS, Poster
from tessera.runtime.kube.stream import batches

T = TypeVar("T")

PAGE: Final = 500
"""Objects a page: about 4 ms of decoding, during which nothing else runs."""

LIST_STARTS: Final = 4
"""How often a list is begun that expires between its pages."""

LARGE: Final = 512 * 1024
"""Bodies from here on are sent in pieces."""

TRIES: Final = 4
LONGEST_WAIT_SECONDS: Final = 5.0
"""However long a server asks us to wait, a call waits so long and tries again."""

CALL: Final = aiohttp.ClientTimeout(total=30, sock_connect=5, sock_read=20)
WATCH_SECONDS: Final = 300
"""How long the server holds a watch, at least; each asks for up to half as long again, so that few end at once."""
SLACK_SECONDS: Final = 20
KEEPALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
CLOSING_ROUNDS: Final = 10
"""Turns of the event loop in which closed connections say so."""

JSON: Final = "application/json"


class ApiClient:
    """Implements :class:`~tessera.runtime.kube.port.KubeClient`. Used and closed in one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        rng: random.Random | None = None,
        clock: Clock = SYSTEM,
        timeout: aiohttp.ClientTimeout = CALL,
        page: int = PAGE,
    ) -> None:
        self.config = config
        self._rng = rng or random.Random()  # noqa: S311 - spreads waits, guards nothing
        self._timeout = timeout
        self._page = page
        self._clock = clock
        self._credentials = Credentials(config, clock.wall)
        self._session: aiohttp.ClientSession | None = None
        self._poster: Poster | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._pair: tuple[bytes | None, bytes | None] = (None, None)
        self._authorization: tuple[str, Mapping[str, str]] = ("", {})

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
        timeout = aiohttp.ClientTimeout(total=seconds + SLACK_SECONDS, sock_connect=self._timeout.sock_connect)
        response = await self._open(base_path(kind, select.namespace), params, timeout)
        try:
            async for lines in batches(response.content):
                for line in lines:
                    yield decode_event(line, as_)
        except TimeoutError:
            return  # the server should have ended it: as silent an end as its own
        except aiohttp.ClientError as error:
            raise _lost(error) from None
        finally:
            _cut(response)

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

    async def close(self) -> None:
        """Close every connection; watches end."""
        if self._poster is not None:
            self._poster.close()
        if self._session is not None:
            await self._session.close()
            self._session = None
            await self._end_farewells()

    async def _end_farewells(self) -> None:
        """Ends connections that still wait for the server's TLS farewell, which nobody else can reach any more."""
        for opened in list(self._sockets):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)

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

    async def _once(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str] | None, content_type: str
    ) -> bytes:
        session, headers = await self._ready()
        if body is not None and content_type != JSON:
            headers = {**headers, "Content-Type": content_type}
        data: Any = io.BytesIO(body) if body is not None and len(body) > LARGE else body
        try:
            async with session.request(
                method,
                self._url(path),
                data=data,
                params=params,
                headers=headers,
                timeout=self._timeout,
                server_hostname=self.config.server_name or None,
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(error) from None
        if response.status >= 300:
            raise failure(response.status, answer, response.headers.get("Retry-After", ""))
        return answer

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

    async def _open(
        self, path: str, params: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """The answer to a watch, whose body is still to come. The first byte has a limit of its own."""
        session, headers = await self._ready()
        try:
            async with asyncio.timeout(self._timeout.sock_read):
                response = await session.get(
                    self._url(path),
                    params=params,
                    headers=headers,
                    timeout=timeout,
                    server_hostname=self.config.server_name or None,
                )
            if response.status >= 300:
                async with response, asyncio.timeout(self._timeout.sock_read):
                    data = await response.read()
                if response.status == 401:
                    self._credentials.forget()
                raise failure(response.status, data, response.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(error) from None
        return response

    async def _ready(self) -> tuple[aiohttp.ClientSession, Mapping[str, str]]:
        """The session (made anew when our certificate changed) and the headers that say who we are."""
        try:
            identity = await self._credentials.current()
            if self._session is None or self._session.closed or self._pair != (identity.certificate, identity.key):
                await self._renew(identity)
        except UnavailableError as error:
            raise ConnectionLostError(str(error)) from None
        if identity.token != self._authorization[0]:
            headers = {"Authorization": f"Bearer {identity.token}"} if identity.token else {}
            self._authorization = (identity.token, headers)
        assert self._session is not None
        return self._session, self._authorization[1]

    async def _renew(self, identity: Identity) -> None:
        context = tls_context(self.config, identity)
        await self.close()
        seconds = self._timeout.sock_read or ANSWER_SECONDS
        self._poster = Poster(self.config.server, context, self.config.server_name, seconds)
        connector = aiohttp.TCPConnector(
            limit=0,  # watches hold their connections; callers bound their own concurrency
            ssl=context if context is not None else True,
            keepalive_timeout=60,
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={
                "Accept": JSON,
                "Accept-Encoding": "identity",  # within a cluster the wire is cheaper than either side's zlib
                "Content-Type": JSON,
                "User-Agent": "tessera",
            },
            read_bufsize=256 * 1024,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._pair = (identity.certificate, identity.key)

    def _open_socket(self, address: Any) -> socket.socket:
        """A socket whose silent death is noticed in half a minute: a watch may have nothing to say for minutes."""
        family, kind, protocol = address[:3]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            with contextlib.suppress(OSError, AttributeError):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._sockets.add(made)
        return made

    def _url(self, path: str) -> URL:
        """The address as yarl has it; our paths are quoted already."""
        return URL(self.config.server + path, encoded=True)


def _cut(response: aiohttp.ClientResponse) -> None:
    """Ends an answer that goes on. Without TLS's farewell: the server may be slow to answer that, or gone."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def _lost(error: Exception) -> ConnectionLostError:
    return ConnectionLostError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
