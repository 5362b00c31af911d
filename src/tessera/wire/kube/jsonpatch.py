"""JSON patches (RFC 6902) as values: the two operations that admission needs."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

_encoder: Final = msgspec.json.Encoder()


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """``add`` (which replaces what is there) or ``remove``."""

    op: str
    path: str
    value: Any = msgspec.UNSET


def add(path: str, value: object) -> Operation:
    """Put ``value`` at ``path``, whose parent must exist."""
    return Operation("add", path, value)


def remove(path: str) -> Operation:
    """Take away what is at ``path``, which must exist."""
    return Operation("remove", path)


@lru_cache(maxsize=4096)
def pointer(*parts: str | int) -> str:
    """JSON pointer (RFC 6901) of these keys and indices; the same few are asked for again and again."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def encode_patch(operations: Sequence[Operation]) -> bytes | None:
    """The patch as JSON; ``None`` where there is nothing to do."""
    return _encoder.encode(operations) if operations else None
