"""Which cgroup was fenced for a share, on disk: written before the fence is put up, so that whatever happens to
the agent, the next one knows what to look at and what to undo.
"""

from pathlib import Path
from typing import Final

import msgspec

from tessera.agent.store import write_whole

VERSION: Final = 1
NAME: Final = "fence"


class FenceRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A container's fence. ``group`` is the cgroup's path below the tree's root, ``inode`` tells it from a later
    one.

    ``wanted`` and ``held`` are bytes by device: what was granted, and what was read back; a device that is only in
    ``wanted`` was about to be limited.
    """

    v: int
    container_id: str
    group: str
    inode: int
    wanted: dict[str, int]
    held: dict[str, int]

    @property
    def is_whole(self) -> bool:
        """Whether every device that was to be limited is."""
        return self.held.keys() == self.wanted.keys()


_decoder: Final = msgspec.json.Decoder(FenceRecord)
_encoder: Final = msgspec.json.Encoder(order="deterministic")


def read_record(directory: Path) -> FenceRecord | None:
    """The record of a share's directory; ``None`` where there is none that can be read."""
    try:
        record = _decoder.decode((directory / NAME).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return record if record.v == VERSION else None


def write_record(directory: Path, record: FenceRecord) -> None:
    """Let a share's directory hold the record. Raises ``OSError``."""
    write_whole(directory / NAME, _encoder.encode(record))


def remove_record(directory: Path) -> None:
    """Take the record away."""
    (directory / NAME).unlink(missing_ok=True)
