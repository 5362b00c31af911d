"""What was granted to one container: a record on disk, so that the gate needs no API server to judge a start."""

from typing import Final

import msgspec

from tessera.core.placement import Grant
from tessera.core.priority import Priority
from tessera.core.units import BYTES_PER_MIB

VERSION: Final = 1


class GrantedDevice(msgspec.Struct, frozen=True, rename="camel"):
    """One device: MiB and milli-devices, as request and limit."""

    uuid: str
    index: int
    memory_limit_mib: int
    memory_request_mib: int
    compute_limit_milli: int
    compute_request_milli: int
    priority: int = int(Priority.MEDIUM)
    spill_mib: int = 0

    @property
    def memory_limit(self) -> int:
        """In bytes."""
        return self.memory_limit_mib * BYTES_PER_MIB


class ContainerGrant(msgspec.Struct, frozen=True, rename="camel"):
    """A container's share. ``library`` is the digest of the limiter that it was given."""

    v: int
    uid: str
    namespace: str
    pod: str
    container: str
    ticket: int
    devices: tuple[GrantedDevice, ...]
    library: str

    @property
    def key(self) -> str:
        """``namespace/pod``."""
        return f"{self.namespace}/{self.pod}"

    @property
    def title(self) -> str:
        """The container as messages name it."""
        return f"container {self.container} of pod {self.key}"


_decoder: Final = msgspec.json.Decoder(ContainerGrant)
_encoder: Final = msgspec.json.Encoder(order="deterministic")


def encode_grant(grant: ContainerGrant) -> bytes:
    """The record's file."""
    return _encoder.encode(grant)


def decode_grant(data: bytes) -> ContainerGrant:
    """The record of a file. Raises ``ValueError``."""
    try:
        grant = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"is no record of a grant: {error}") from error
    if grant.v != VERSION:
        raise ValueError(f"is a record of version {grant.v}; version {VERSION} is read")
    return grant


def granted_devices(grants: tuple[Grant, ...]) -> tuple[GrantedDevice, ...]:
    """The devices of an allocation, as they are recorded, in the order of the allocation."""
    return tuple(
        GrantedDevice(
            uuid=grant.uuid,
            index=grant.index,
            memory_limit_mib=grant.share.memory_limit,
            memory_request_mib=grant.share.memory_request,
            compute_limit_milli=grant.share.compute_limit,
            compute_request_milli=grant.share.compute_request,
            priority=int(grant.share.priority),
            spill_mib=grant.share.spill,
        )
        for grant in grants
    )
