"""The client port over HTTPS: pools of kept-alive connections, typed answers, watches that say how they ended."""

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
    failure,
)
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.credentials import Credentials, Identity, tls_context
from tessera.runtime.kube.port import (
    EVERYTHING,
    ConnectionLostError,
    Kind,
    Select,
    WatchEvent,
)
from tessera.runtime.kube.poster import ANSWER_SECONDS, Poster
from tessera.runtime.kube.stream import batches
from tessera.runtime.kube.verbs import CLOSING_ROUNDS, JSON, PAGE, SLACK_SECONDS, Verbs

T = TypeVar("T")

LARGE: Final = 512 * 1024
"""Bodies from here on are sent in pieces."""

CALL: Final = aiohttp.ClientTimeout(total=30, sock_connect=5, sock_read=20)
KEEPALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))


class ApiClient(Verbs):
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
        super().__init__(Credentials(config, clock.wall), rng, clock, page)
        self.config = config
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._pair: tuple[bytes | None, bytes | None] = (None, None)
        self._authorization: tuple[str, Mapping[str, str]] = ("", {})

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
        seconds, params = self._watch_params(select, resource_version, initial=initial)
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
