"""The client port without a general HTTP library: for processes that have to be small, such as a node's agent.

One suite runs on this and on :class:`~tessera.runtime.kube.client.ApiClient`; the verbs are the same code.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar
from urllib.parse import quote, urlencode

from tessera.core.errors import UnavailableError
from tessera.runtime.clock import SYSTEM, Clock
from tessera.runtime.kube.codec import (
    base_path,
    decode_event,
    failure,
)
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.credentials import Credentials, Identity, tls_context
from tessera.runtime.kube.exchange import Exchange, Limits, Stream
from tessera.runtime.kube.port import (
    EVERYTHING,
    ConnectionLostError,
    Kind,
    Select,
    WatchEvent,
)
from tessera.runtime.kube.poster import Poster
from tessera.runtime.kube.stream import batches
from tessera.runtime.kube.verbs import CLOSING_ROUNDS, JSON, PAGE, SLACK_SECONDS, Verbs

T = TypeVar("T")


class SlimClient(Verbs):
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
        super().__init__(Credentials(config, clock.wall), rng, clock, page)
        self.config, self._limits = config, limits or Limits()
        self._exchange: Exchange | None = None
        self._pair: tuple[bytes | None, bytes | None] = (None, None)

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

    async def close(self) -> None:
        """Close every connection; watches end."""
        if self._poster is not None:
            self._poster.close()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)

    async def _once(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str] | None, content_type: str
    ) -> bytes:
        target = _target(path, params or {})
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

    async def _ready(self) -> tuple[Exchange, Mapping[str, str]]:
        """The connections (new ones where our certificate changed) and the headers that say who we are."""
        try:
            identity = await self._credentials.current()
            if self._exchange is None or self._pair != (identity.certificate, identity.key):
                self._renew(identity)
        except UnavailableError as error:
            raise ConnectionLostError(str(error)) from None
        assert self._exchange is not None
        headers = {"Accept": JSON, "User-Agent": "tessera"}
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
