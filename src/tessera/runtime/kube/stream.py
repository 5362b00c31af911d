"""Lines of a watch, cut by ourselves.

aiohttp's own line reader refuses lines over 512 KiB, and an object may reach 1.5 MB. Lines come in batches, one
per read, so that a busy stream costs one step of the loop for many events.
"""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from tessera.runtime.kube.port import ConnectionLostError

LONGEST: Final = 32 * 1024 * 1024
"""No object is that large (etcd holds 1.5 MB); a peer that goes on without a newline is broken."""


class Chunks(Protocol):
    """Where bytes come from; an empty answer is the end."""

    async def readany(self) -> bytes:
        """What has arrived."""
        ...


async def batches(chunks: Chunks) -> AsyncIterator[list[bytes]]:
    """Whole lines, without their newlines and without empty ones.

    Raises :class:`ConnectionLostError` where the stream ends in the middle of a line.
    """
    held: list[bytes] = []
    size = 0
    while chunk := await chunks.readany():
        if b"\n" not in chunk:  # a large object in many chunks: joined once
            held.append(chunk)
            size += len(chunk)
            if size > LONGEST:
                raise ConnectionLostError(f"an event of over {LONGEST} bytes")
            continue
        lines = (b"".join((*held, chunk)) if held else chunk).split(b"\n")
        rest = lines.pop()
        held, size = ([rest], len(rest)) if rest else ([], 0)
        if whole := [line for line in lines if line]:
            yield whole
    if held:
        raise ConnectionLostError("the stream ended in the middle of an event")
