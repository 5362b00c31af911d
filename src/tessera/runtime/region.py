"""The region of a share as it is now, read from its file.

A tenant may cut its region's file off at any moment. Who touches a page of a mapping that its file has no more is
ended by the kernel, so what is only looked at is never mapped: a read comes back shorter instead.
"""

import os
from pathlib import Path

from tessera.wire.shm import SLOTS_AT, Region, bytes_in_use, check_header, parse_region


def load_region(path: Path) -> Region:
    """The region of a file. Only what was ever used of it is read: 16 KiB, and 1,152 bytes a process.

    Raises ``OSError`` and :class:`~tessera.wire.shm.RegionError`.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = os.pread(file.fileno(), SLOTS_AT, 0)
        check_header(head, size)
        slots = os.pread(file.fileno(), bytes_in_use(head) - SLOTS_AT, SLOTS_AT)
    return parse_region(head + slots, size)
