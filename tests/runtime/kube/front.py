"""The API server in memory behind real HTTP, with the faults that only bytes can have. Pods only."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import PODS, ApiError, EventType, Select, WatchEvent


class Front:
    """``cut`` breaks open streams in the middle of an event; ``away`` breaks everything."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.away = False
        self.requests = 0
        self._streams: list[tuple[web.Request, web.StreamResponse]] = []

    async def cut(self) -> None:
        """Half an event, then a reset."""
        for request, response in list(self._streams):
            if response.prepared:
                await response.write(b'{"type":"ADDED","object":{"metadata":{"na')
            _abort(request)

    def leave(self) -> None:
        """Not reachable from here on, until ``away`` is false again."""
        self.away = True
        for request, _ in list(self._streams):
            _abort(request)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """The server's address."""
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._pods)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await self.cluster.close()
            await runner.cleanup()

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self.away:
            _abort(request)
            return web.Response()
        select = Select("", request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        try:
            if "watch" in request.query:
                return await self._watch(request, select)
            listed = await self.cluster.list(PODS, dict, select)
        except ApiError as error:
            return web.json_response(_status(error), status=error.code)
        return web.json_response(
            {"metadata": {"resourceVersion": listed.resource_version}, "items": list(listed.items)}
        )

    async def _watch(self, request: web.Request, select: Select) -> web.StreamResponse:
        events = self.cluster.watch(
            PODS,
            dict,
            select,
            resource_version=request.query.get("resourceVersion", ""),
            initial="sendInitialEvents" in request.query,
        )
        response = web.StreamResponse()
        self._streams.append((request, response))
        first = asyncio.ensure_future(anext(events))
        try:
            await asyncio.wait({first}, timeout=0.01)
            if first.done() and isinstance(first.exception(), ApiError):
                return web.json_response(_status(first.exception()), status=first.exception().code)
            await response.prepare(request)
            await response.write(_line(await first))
            async for event in events:
                await response.write(_line(event))
        except StopAsyncIteration:
            pass
        except ApiError as error:
            await response.write(json.dumps({"type": "ERROR", "object": _status(error)}).encode() + b"\n")
        finally:
            self._streams.remove((request, response))
            first.cancel()
            await asyncio.wait({first})
            await events.aclose()
        return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _line(event: WatchEvent[Any]) -> bytes:
    obj = event.object
    if event.type is EventType.BOOKMARK:
        ends = {"annotations": {"k8s.io/initial-events-end": "true"}} if event.initial_ends else {}
        # A bookmark of the real server has null where the type wants a list.
        obj = {
            "metadata": {"resourceVersion": event.resource_version, "creationTimestamp": None, **ends},
            "spec": {"containers": None},
        }
    return json.dumps({"type": event.type, "object": obj}, separators=(",", ":")).encode() + b"\n"


def _status(error: ApiError) -> dict[str, Any]:
    return {"kind": "Status", "code": error.code, "reason": error.reason, "message": str(error)}
