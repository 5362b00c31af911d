"""The ``tessera.dev/allocation`` annotation: a placement, written once, in the same write as the binding.

It is the ledger's log. It carries the pod's uid and node, so that a copy on another pod, or on the next pod of
that name, means nothing: a reader believes only what the bound pod could have got from us.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.core.placement import Charge, Grant, Placement
from tessera.core.priority import Priority
from tessera.core.share import Share
from tessera.core.units import MiB, Milli

VERSION: Final = 1


class _Grant(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    uuid: str
    index: int
    model: str
    memory: tuple[int, int]
    compute: tuple[int, int]
    exclusive: bool = False
    priority: int = int(Priority.MEDIUM)
    spill: int = 0


class _Charge(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    uuid: str
    memory: int
    compute: int
    slots: int = 1
    exclusive: bool = False


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """``memory`` and ``compute`` of a grant are (request, limit), in MiB and milli-devices; ``spill`` in MiB."""

    v: int
    pod: str
    node: str
    containers: dict[str, tuple[_Grant, ...]]
    charges: tuple[_Charge, ...]
    tickets: dict[str, int] = {}


_decoder: Final = msgspec.json.Decoder(_Record)
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Allocation:
    """A placement and the tickets (container name to number) under which the kubelet will ask for it."""

    placement: Placement
    tickets: Mapping[str, int]


def encode_allocation(placement: Placement, tickets: Mapping[str, int]) -> str:
    """The annotation's text."""
    record = _Record(
        v=VERSION,
        pod=placement.pod_uid,
        node=placement.node,
        containers={name: tuple(map(_grant, grants)) for name, grants in placement.grants.items()},
        charges=tuple(
            _Charge(c.uuid, c.memory_mib, c.compute_milli, c.slots, c.exclusive) for c in placement.charges
        ),
        tickets=dict(tickets),
    )
    return _encoder.encode(record).decode()


def decode_allocation(text: str, *, uid: str, key: str, node: str) -> Allocation:
    """The allocation of the pod with this ``uid`` on ``node``; ``key`` is its ``namespace/name``.

    Raises ``ValueError`` with what is wrong: no allocation, one of another version, pod or node, or one that
    does not add up.
    """
    try:
        record = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no allocation: {error}") from error
    if record.v != VERSION:
        raise ValueError(f"is an allocation of version {record.v}; version {VERSION} is read")
    if record.pod != uid:
        raise ValueError(f"belongs to the pod with uid {record.pod}, not to {uid}")
    if record.node != node:
        raise ValueError(f"is for node {record.node}, not {node}")
    granted = {grant.uuid for grants in record.containers.values() for grant in grants}
    if not granted or granted != {charge.uuid for charge in record.charges}:
        raise ValueError("charges other devices than it grants")
    if any(c.memory < 0 or c.compute < 0 or c.slots < 1 for c in record.charges):
        raise ValueError("charges less than nothing")
    placement = Placement(
        pod_uid=record.pod,
        pod_key=key,
        node=record.node,
        grants={name: tuple(map(_read_grant, grants)) for name, grants in record.containers.items()},
        charges=tuple(Charge(c.uuid, c.memory, c.compute, c.slots, c.exclusive) for c in record.charges),
    )
    return Allocation(placement, record.tickets)


def _grant(grant: Grant) -> _Grant:
    s = grant.share
    return _Grant(
        uuid=grant.uuid,
        index=grant.index,
        model=grant.model,
        memory=(s.memory_request, s.memory_limit),
        compute=(s.compute_request, s.compute_limit),
        exclusive=s.exclusive,
        priority=int(s.priority),
        spill=s.spill,
    )


def _read_grant(grant: _Grant) -> Grant:
    share = Share(
        memory_request=MiB(grant.memory[0]),
        memory_limit=MiB(grant.memory[1]),
        compute_request=Milli(grant.compute[0]),
        compute_limit=Milli(grant.compute[1]),
        exclusive=grant.exclusive,
        priority=Priority(grant.priority),
        spill=MiB(grant.spill),
    )
    return Grant(grant.uuid, grant.index, grant.model, share)
