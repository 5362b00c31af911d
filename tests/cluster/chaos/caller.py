"""An API client for a server that is killed all the time: answers, or nothing."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from cluster.engine.api import MERGE, tls_context
from cluster.engine.plane import ControlPlane

CALL_SECONDS: Final = 15.0
LOST: Final = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)


class Caller:
    """Calls as the administrator. ``answers`` counts what came back, by status; 0 is nothing."""

    def __init__(self, http: aiohttp.ClientSession, server: str) -> None:
        self.http, self.server = http, server
        self.answers: Counter[int] = Counter()

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """Status and object; status 0 where no answer came."""
        media = MERGE if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": media}
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        try:
            async with self.http.request(
                method, self.server + path, data=data, headers=headers, timeout=timeout
            ) as answer:
                payload = await answer.read()
                status = answer.status
        except LOST:
            status, payload = 0, b""
        self.answers[status] += 1
        try:
            return status, json.loads(payload or b"{}")
        except ValueError:
            return status, {"message": payload.decode("utf-8", "replace")}


@asynccontextmanager
async def open_caller(plane: ControlPlane) -> AsyncIterator[Caller]:
    """A client of this plane."""
    connector = aiohttp.TCPConnector(ssl=tls_context(plane.authority.certificate, plane.admin), limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield Caller(http, plane.server)
