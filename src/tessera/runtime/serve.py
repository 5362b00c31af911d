"""HTTP servers of a process: where they listen, how they end, and the health endpoints beside them.

Two roads lead to a handler:

* an ``aiohttp.web.Application``: routes, for everything that people and tools call;
* a *lean* handler, ``(method, path, body) -> Answer``, plain or async, on the server of
  :mod:`tessera.runtime.lean`: for what a scheduler or an API server calls a thousand times a second, and for
  processes that have to be small.

A server that ends goes on answering while it tells ``/readyz`` that it is not ready (``linger`` seconds, so that
load balancers notice), and closes each connection with its answer: a client that reuses one in the moment of its
closing cannot tell whether its request was read. Then it stops listening, and lets requests in flight finish.
"""

import asyncio
import socket
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard, cast

from tessera.core.errors import InputErrors, Problem, UnavailableError
from tessera.runtime.lean import KEEPALIVE_SECONDS, Answer, Lean, LeanServer
from tessera.runtime.log import logger
from tessera.runtime.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    from aiohttp import web

DRAIN_SECONDS: Final = 15.0
BACKLOG: Final = 1024

__all__ = ["Answer", "Bind", "Health", "Lean", "Server", "health_answers", "health_app", "parse_bind", "serve"]

_log: Final = logger("serve")


@dataclass(frozen=True, slots=True)
class Bind:
    """Where a server listens: ``host`` (empty: all) and ``port`` (0: any free one), or a unix ``path``."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Check = Callable[[], str | None]
"""A reason why not, or ``None`` while all is well; it looks at what is known and never waits."""


def parse_bind(text: str, flag: str = "--bind") -> Bind:
    """The address in ``ADDRESS:PORT``, ``[V6]:PORT``, ``:PORT`` or ``unix:/path``. Raises :class:`InputErrors`."""
    if text.startswith("unix:/"):
        return Bind(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not bracketed):
        remedy = "write ADDRESS:PORT, [IPV6]:PORT, :PORT or unix:/PATH"
        raise InputErrors([Problem(flag, "", "", text, "is no address to listen on", remedy)])
    return Bind(host[1:-1] if bracketed else host, int(port))


class _Half(Protocol):
    """A listener of either kind, and how it ends."""

    def leave(self) -> None:
        """Go on answering, but let no client stay."""
        ...

    async def drain(self) -> None:
        """Stop listening, and return once requests in flight are answered."""
        ...


class Server:
    """A server that listens. ``bind`` is where it really does, with the port that the system chose for 0."""

    def __init__(self, name: str, half: _Half, bind: Bind, linger: float) -> None:
        self.name = name
        self.bind = bind
        self.linger = linger
        self._half = half

    async def close(self) -> None:
        """Linger, stop listening, let requests in flight finish (:data:`DRAIN_SECONDS` at most)."""
        self._half.leave()
        await asyncio.sleep(self.linger)
        await self._half.drain()
        if self.bind.path:
            Path(self.bind.path).unlink(missing_ok=True)


async def serve(
    handler: "web.Application | Lean",
    bind: Bind,
    *,
    name: str,
    tls: ssl.SSLContext | None = None,
    linger: float = 0.0,
) -> Server:
    """Listen, and say so in a log line ``listening`` with the field ``address``.

    Raises :class:`UnavailableError` where the address cannot be had.
    """
    try:
        listener = _listen(bind)
    except OSError as error:
        raise UnavailableError(
            f"the {name} server cannot listen on {bind}: {error.strerror}",
            "choose another address, or end the process that has it",
        ) from error
    half: _Half
    if _is_routed(handler):
        half = await _Routed.start(handler, listener, tls)
    else:
        half = await _Leaned.start(cast("Lean", handler), listener, tls)
    server = Server(name, half, _bound(bind, listener), linger)
    _log.info("listening", server=name, address=str(server.bind), tls=tls is not None)
    return server


def _is_routed(handler: "web.Application | Lean") -> "TypeGuard[web.Application]":
    """Told apart without aiohttp: a process that serves lean handlers alone does without its memory."""
    return hasattr(handler, "router")


class _Routed:
    """An application of aiohttp."""

    def __init__(self, runner: "web.AppRunner") -> None:
        self._runner = runner

    @classmethod
    async def start(cls, app: "web.Application", listener: socket.socket, tls: ssl.SSLContext | None) -> "_Routed":
        from aiohttp import web  # noqa: PLC0415 - see _is_routed

        runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=KEEPALIVE_SECONDS, shutdown_timeout=DRAIN_SECONDS
        )
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=tls, backlog=BACKLOG).start()
        return cls(runner)

    def leave(self) -> None:
        pass

    async def drain(self) -> None:
        await self._runner.cleanup()


class _Leaned:
    """A lean handler."""

    def __init__(self, lean: LeanServer, listening: asyncio.Server) -> None:
        self._lean, self._listening = lean, listening

    @classmethod
    async def start(cls, handler: Lean, listener: socket.socket, tls: ssl.SSLContext | None) -> "_Leaned":
        lean = LeanServer(handler)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lean.connection, sock=listener, ssl=tls, backlog=BACKLOG)
        return cls(lean, listening)

    def leave(self) -> None:
        self._lean.leaving = True

    async def drain(self) -> None:
        self._listening.close()
        await self._lean.drain(DRAIN_SECONDS)


def _listen(bind: Bind) -> socket.socket:
    if not bind.path:
        everywhere = not bind.host
        family = (
            socket.AF_INET6 if ":" in bind.host or (everywhere and socket.has_dualstack_ipv6()) else socket.AF_INET
        )
        return socket.create_server(
            (bind.host, bind.port), family=family, dualstack_ipv6=everywhere and family == socket.AF_INET6
        )
    path = Path(bind.path)
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()  # of a predecessor that was killed; a living one is replaced, as kubelet plugins do
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(bind.path)
    return listener


def _bound(bind: Bind, listener: socket.socket) -> Bind:
    return bind if bind.path else Bind(bind.host, int(listener.getsockname()[1]))


@dataclass(slots=True)
class Health:
    """Named checks: a ``live`` one that fails has the process restarted, a ``ready`` one has it passed by."""

    live: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)


def health_app(health: Health, metrics: Metrics, *routes: "web.RouteDef") -> "web.Application":
    """``/healthz``, ``/readyz`` and ``/metrics``, with further ``routes`` such as debug endpoints."""
    from aiohttp import web  # noqa: PLC0415 - see _is_routed

    lean = health_answers(health, metrics)

    async def answer(request: web.Request) -> web.Response:
        given = lean(request.method, request.path, b"")
        assert isinstance(given, Answer)
        return web.Response(body=given.body, status=given.status, headers={"Content-Type": given.content_type})

    app = web.Application()
    app.add_routes([*(web.get(path, answer) for path in ("/healthz", "/readyz", "/metrics")), *routes])
    return app


def health_answers(health: Health, metrics: Metrics) -> Lean:
    """The same three as a lean handler."""

    def answer(method: str, target: str, body: bytes) -> Answer:  # noqa: ARG001 - a lean handler's signature
        path = target.partition("?")[0]
        if path not in ("/healthz", "/readyz", "/metrics"):
            return Answer(b"not found\n", 404, "text/plain")
        if method not in ("GET", "HEAD"):
            return Answer(b"only GET is answered here\n", 405, "text/plain")
        if path == "/metrics":
            return Answer(metrics.render(), content_type=CONTENT_TYPE)
        return _verdict(health.live if path == "/healthz" else {**health.live, **health.ready})

    return answer


def _verdict(checks: dict[str, Check]) -> Answer:
    """One line a check, the failing ones with the reason; 503 where one fails."""
    found = {name: check() for name, check in checks.items()}
    lines = [f"[+] {name}: ok" if why is None else f"[-] {name}: {why}" for name, why in sorted(found.items())]
    well = all(why is None for why in found.values())
    text = "\n".join([*lines, "ok" if well else "not ok", ""])
    return Answer(text.encode(), 200 if well else 503, "text/plain; charset=utf-8")
