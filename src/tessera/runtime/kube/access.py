"""Who may read our debug endpoints: whoever Kubernetes says may.

A caller shows a bearer token. The API server tells whose it is (TokenReview) and whether that user may use the
verb on the path (SubjectAccessReview, non-resource attributes), so that access is granted by a ClusterRole with
``nonResourceURLs``. Answers are remembered for :data:`REMEMBER_SECONDS`, tokens by their digest only.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from tessera.runtime.clock import SYSTEM, Clock
from tessera.runtime.kube.port import (
    ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    ApiError,
    ConnectionLostError,
    Kind,
    KubeClient,
)

REMEMBER_SECONDS: Final = 10.0
REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True)
class Granted:
    """The caller may; ``user`` is who they are."""

    user: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The caller may not, with an HTTP status (401, 403 or 503) and what to do about it."""

    status: int
    message: str


Verdict = Granted | Denied


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User | None = None
    error: str = ""


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Access:
    """See the module."""

    def __init__(self, client: KubeClient, *, clock: Clock = SYSTEM) -> None:
        self._client, self._clock = client, clock
        self._known: OrderedDict[tuple[bytes, str, str], tuple[float, Verdict]] = OrderedDict()

    async def judge(self, authorization: str, verb: str, path: str) -> Verdict:
        """Whether the bearer of this Authorization header may ``verb`` (``get``, ``post``) ``path``."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return Denied(401, "no bearer token: send one, as from kubectl create token SERVICE_ACCOUNT")
        key = (hashlib.sha256(token.encode()).digest(), verb, path)
        found = self._known.get(key)
        if found and self._clock.monotonic() < found[0]:
            return found[1]
        verdict = await self._ask(token, verb, path)
        if not (isinstance(verdict, Denied) and verdict.status == 503):
            self._known[key] = (self._clock.monotonic() + REMEMBER_SECONDS, verdict)
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return verdict

    async def _ask(self, token: str, verb: str, path: str) -> Verdict:
        try:
            user = await self._authenticate(token)
            return user if isinstance(user, Denied) else await self._authorize(user, verb, path)
        except (ApiError, ConnectionLostError) as error:
            return Denied(503, f"the API server could not be asked who you are and what you may: {error}")

    async def _authenticate(self, token: str) -> _User | Denied:
        body = _body(TOKEN_REVIEWS, {"token": token})
        status = (await self._client.create(TOKEN_REVIEWS, body, _TokenReview)).status
        if status.authenticated and status.user and status.user.username:
            return status.user
        return Denied(401, "the API server does not know this token: it may have expired")

    async def _authorize(self, user: _User, verb: str, path: str) -> Verdict:
        spec: dict[str, Any] = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        body = _body(ACCESS_REVIEWS, spec)
        status = (await self._client.create(ACCESS_REVIEWS, body, _AccessReview)).status
        if status.allowed and not status.denied:
            return Granted(user.username)
        remedy = f"bind a ClusterRole with nonResourceURLs [{path}] and verbs [{verb}] to that user"
        return Denied(403, f"{user.username} may not {verb} {path}; {remedy}")


def guarded(
    access: Access, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """``handler``, for those whom ``access`` lets through; the others get the reason as plain text."""

    async def guard(request: web.Request) -> web.StreamResponse:
        verdict = await access.judge(
            request.headers.get("Authorization", ""), request.method.lower(), request.path
        )
        if isinstance(verdict, Granted):
            return await handler(request)
        headers = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else None
        return web.Response(status=verdict.status, text=f"{verdict.message}\n", headers=headers)

    return guard


def _body(kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}
