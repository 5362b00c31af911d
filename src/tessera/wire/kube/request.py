"""The ``tessera.dev/request`` annotation: a request as canonical, versioned JSON, keyed by container *names*.

Equal requests have equal text, so that readers may remember what a text means. An unknown version or field is an
error: a request that is only half understood would be placed wrongly.
"""

from typing import Final

import msgspec

from tessera.core.priority import Priority
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference, Request
from tessera.core.share import (
    ComputeAmount,
    ComputeMilli,
    ComputeTflops,
    MemoryAmount,
    MemoryFraction,
    MemoryMiB,
    ShareSpec,
)
from tessera.core.units import MiB, Milli

VERSION: Final = 1


class _Amount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of: ``mib``, ``milli`` (thousandths of the device), ``milliTflops``."""

    mib: int | None = None
    milli: int | None = None
    milliTflops: int | None = None  # noqa: N815 - the name on the wire


class _Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    memory: _Amount
    compute: _Amount
    memoryLimit: _Amount | None = None  # noqa: N815
    computeLimit: _Amount | None = None  # noqa: N815
    exclusive: bool = False
    priority: int = int(Priority.MEDIUM)
    spill: int = 0


class _Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    containers: tuple[str, ...]
    count: int
    share: _Share
    vendor: str | None = None


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pattern: str
    exact: bool = False


class _Constraints(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    vendor: str | None = None
    models_allowed: tuple[_Model, ...] = ()
    models_denied: tuple[_Model, ...] = ()
    uuids_allowed: tuple[str, ...] = ()
    uuids_denied: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    one_numa: bool = False
    idle_device: bool = False
    distinct_devices: bool = False
    same_device: tuple[tuple[str, ...], ...] = ()


class _Preference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    node: str | None = None
    device: str | None = None


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    v: int
    claims: tuple[_Claim, ...]
    dialect: str = "native"
    constraints: _Constraints | None = None
    preference: _Preference | None = None


_decoder: Final = msgspec.json.Decoder(_Record)
_encoder: Final = msgspec.json.Encoder(order="deterministic")


def encode_request(request: Request, dialect: Dialect) -> str:
    """``request`` as the annotation's text. Deterministic: sets are sorted."""
    c, p = request.constraints, request.preference
    record = _Record(
        v=VERSION,
        dialect=dialect.value,
        claims=tuple(_Claim(x.containers, x.count, _share(x.share), x.vendor) for x in request.claims),
        constraints=None if c == Constraints() else _constraints(c),
        preference=None if p == Preference() else _Preference(p.node, p.device),
    )
    return _encoder.encode(record).decode()


def decode_request(text: str) -> tuple[Request, Dialect]:
    """The request of an annotation. Raises ``ValueError`` with what is wrong with the text."""
    try:
        record = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no request: {error}") from error
    if record.v != VERSION:
        raise ValueError(f"is a request of version {record.v}; version {VERSION} is read")
    c = record.constraints or _Constraints()
    constraints = Constraints(
        vendor=c.vendor,
        models_allowed=tuple(ModelRule(m.pattern, m.exact) for m in c.models_allowed),
        models_denied=tuple(ModelRule(m.pattern, m.exact) for m in c.models_denied),
        uuids_allowed=frozenset(c.uuids_allowed),
        uuids_denied=frozenset(c.uuids_denied),
        indices=frozenset(c.indices),
        modes=frozenset(c.modes),
        one_numa=c.one_numa,
        idle_device=c.idle_device,
        distinct_devices=c.distinct_devices,
        same_device=c.same_device,
    )
    claims = tuple(Claim(x.containers, _count(x.count), _read_share(x.share), x.vendor) for x in record.claims)
    if not claims:
        raise ValueError("is a request without a claim")
    p = record.preference or _Preference()
    return Request(claims, constraints, Preference(p.node, p.device)), Dialect(record.dialect)


def _constraints(c: Constraints) -> _Constraints:
    return _Constraints(
        vendor=c.vendor,
        models_allowed=tuple(_Model(m.pattern, m.exact) for m in c.models_allowed),
        models_denied=tuple(_Model(m.pattern, m.exact) for m in c.models_denied),
        uuids_allowed=tuple(sorted(c.uuids_allowed)),
        uuids_denied=tuple(sorted(c.uuids_denied)),
        indices=tuple(sorted(c.indices)),
        modes=tuple(sorted(c.modes)),
        one_numa=c.one_numa,
        idle_device=c.idle_device,
        distinct_devices=c.distinct_devices,
        same_device=c.same_device,
    )


def _count(count: int) -> int:
    if count < 1:
        raise ValueError(f"asks for {count} devices")
    return count


def _share(share: ShareSpec) -> _Share:
    """A limit that equals its request is not written."""
    return _Share(
        memory=_amount(share.memory_request),
        compute=_amount(share.compute_request),
        memoryLimit=None if share.memory_limit == share.memory_request else _amount(share.memory_limit),
        computeLimit=None if share.compute_limit == share.compute_request else _amount(share.compute_limit),
        exclusive=share.exclusive,
        priority=int(share.priority),
        spill=share.spill,
    )


def _amount(amount: MemoryAmount | ComputeAmount) -> _Amount:
    match amount:
        case MemoryMiB(mib):
            return _Amount(mib=mib)
        case MemoryFraction(milli) | ComputeMilli(milli):
            return _Amount(milli=milli)
        case ComputeTflops(milli_tflops):
            return _Amount(milliTflops=milli_tflops)


def _read_share(share: _Share) -> ShareSpec:
    memory, compute = _memory(share.memory), _compute(share.compute)
    return ShareSpec(
        memory_request=memory,
        memory_limit=memory if share.memoryLimit is None else _memory(share.memoryLimit),
        compute_request=compute,
        compute_limit=compute if share.computeLimit is None else _compute(share.computeLimit),
        exclusive=share.exclusive,
        priority=Priority(share.priority),
        spill=MiB(share.spill),
    )


def _memory(amount: _Amount) -> MemoryAmount:
    match amount:
        case _Amount(mib=int(mib), milli=None, milliTflops=None) if mib >= 0:
            return MemoryMiB(MiB(mib))
        case _Amount(mib=None, milli=int(milli), milliTflops=None) if milli >= 0:
            return MemoryFraction(Milli(milli))
    raise ValueError("has an amount of memory that is not one of mib and milli")


def _compute(amount: _Amount) -> ComputeAmount:
    match amount:
        case _Amount(mib=None, milli=int(milli), milliTflops=None) if milli >= 0:
            return ComputeMilli(Milli(milli))
        case _Amount(mib=None, milli=None, milliTflops=int(tflops)) if tflops >= 0:
            return ComputeTflops(tflops)
    raise ValueError("has an amount of compute that is not one of milli and milliTflops")
