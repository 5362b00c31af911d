"""The one write of a placement: a Binding that carries the allocation, and what its answer means."""

import asyncio
from typing import Final, Protocol
from urllib.parse import quote

import msgspec

from tessera.core.errors import TesseraError
from tessera.runtime.kube.port import ConnectionLostError, UnreachableError
from tessera.scheduler.state import Outcome
from tessera.wire.kube.extender import BindArgs, encode_binding
from tessera.wire.kube.names import ALLOCATION

BIND_SECONDS: Final = 4.0
"""Shorter than what is left of a lease that is trusted for 10 s of its 15 s: a late answer is no late binding."""

_CREATED: Final = (200, 201, 202)
_UNDONE: Final = frozenset({400, 401, 403, 404, 409, 410, 413, 415, 422, 429})
"""Answers after which the pod is not bound by this call: it was refused before anything was stored."""


class Poster(Protocol):
    """The shortest road for a POST."""

    async def post_raw(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body. Raises :class:`ConnectionLostError` where no answer came."""
        ...


class _Status(msgspec.Struct):
    message: str = ""


async def bind(client: Poster, args: BindArgs, text: str) -> tuple[Outcome, str]:
    """What became of the Binding, and the API server's words where it was not done."""
    path = f"/api/v1/namespaces/{quote(args.namespace)}/pods/{quote(args.name)}/binding"
    try:
        async with asyncio.timeout(BIND_SECONDS):
            status, body = await client.post_raw(path, encode_binding(args, {ALLOCATION: text}))
    except TimeoutError:
        return Outcome.DOUBTFUL, f"the API server did not answer within {BIND_SECONDS:g} s"
    except UnreachableError as error:
        return Outcome.FAILED, str(error)
    except ConnectionLostError as error:
        return Outcome.DOUBTFUL, str(error)
    except TesseraError as error:
        return Outcome.FAILED, str(error)
    if status in _CREATED:
        return Outcome.DONE, ""
    return (Outcome.FAILED if status in _UNDONE else Outcome.DOUBTFUL), f"{status}: {_message(body)}"


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Status).message
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace")
