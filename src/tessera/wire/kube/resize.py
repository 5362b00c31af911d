"""The ``tessera.dev/resize`` annotation: what somebody wishes the share of a running container to be.

JSON, by container name: ``{"main": {"memory": "8Gi", "compute": "30%"}}``. Memory is a quantity of bytes (rounded
up to a MiB) or a part of the device, compute a part of the device; what is not said stays. It is a wish: who may
write pods may write it, and it changes nothing by itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import msgspec

from tessera.allocator.resize import resized
from tessera.core.request import Request
from tessera.core.share import MemoryAmount, MemoryFraction, MemoryMiB
from tessera.core.units import WHOLE, Milli
from tessera.wire.quantity import Malformed, parse_quantity, to_mib

_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d)?)\s*%", re.ASCII)
EXAMPLE: Final = '{"main": {"memory": "8Gi", "compute": "30%"}}'


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory: str | None = None
    compute: str | None = None


_decoder: Final = msgspec.json.Decoder(dict[str, _Wish])


@dataclass(frozen=True, slots=True)
class Wish:
    """For one container; ``None`` for what stays."""

    memory: MemoryAmount | None
    compute: Milli | None


def decode_wishes(text: str) -> Mapping[str, Wish]:
    """The wishes by container. Raises ``ValueError`` with what is wrong and how to write it."""
    try:
        found = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no wish ({error}); write {EXAMPLE}") from error
    return {name: Wish(_memory(name, wish.memory), _compute(name, wish.compute)) for name, wish in found.items()}


def encode_wish(container: str, memory: str | None, compute: str | None) -> str:
    """The annotation for one container. Raises ``ValueError`` as :func:`decode_wishes` would."""
    said = {key: value for key, value in (("memory", memory), ("compute", compute)) if value is not None}
    text = msgspec.json.encode({container: said}).decode()
    decode_wishes(text)
    return text


def _memory(name: str, text: str | None) -> MemoryAmount | None:
    if text is None:
        return None
    if (milli := _part(text)) is not None:
        return MemoryFraction(milli)
    value = parse_quantity(text)
    if isinstance(value, Malformed) or not value:
        raise ValueError(f"wishes memory {text!r} for {name}; write an amount (8Gi, 8192Mi) or a part (25%)")
    return MemoryMiB(to_mib(value))


def _compute(name: str, text: str | None) -> Milli | None:
    milli = None if text is None else _part(text)
    if text is not None and milli is None:
        raise ValueError(f"wishes compute {text!r} for {name}; write a part of the device, from 0.1% to 100%")
    return milli


def _part(text: str) -> Milli | None:
    """Thousandths, of a percentage between 0.1 and 100 with one digit behind the point at most."""
    found = _PERCENT.fullmatch(text.strip())
    milli = int(Fraction(found[1]) * 10) if found else 0
    return Milli(milli) if 0 < milli <= WHOLE else None


def wished(request: Request, wishes: Mapping[str, Wish]) -> Request:
    """The request with the shares that are wished for; a claim of several containers takes the wishes of each.

    Raises ``ValueError`` for containers that hold no share.
    """
    holders = {name for claim in request.claims for name in claim.containers}
    if strangers := sorted(wishes.keys() - holders):
        names = ", ".join(strangers)
        raise ValueError(
            f"is for containers without a share ({names}); those with one: {', '.join(sorted(holders))}"
        )
    claims = list(request.claims)
    for at, claim in enumerate(claims):
        share = claim.share
        for wish in (wishes[name] for name in claim.containers if name in wishes):
            share = resized(share, wish.memory, wish.compute)
        claims[at] = replace(claim, share=share)
    return replace(request, claims=tuple(claims))
