"""Free ports on the loopback interface.

They are picked below the kernel's range for outgoing connections, so that no client takes one between the look and
the use. Test runs stand beside each other: each process has shares of the range to itself, held by locks that end
with it, and is given no port twice.
"""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RANGE: Final = range(20_000, 32_000)
SHARE: Final = 200
_ours: list[int] = []


def free_port() -> int:
    """A port that nobody listens on now."""
    while True:
        if not _ours:
            _ours.extend(_claim_share())
        port = _ours.pop()
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


def _claim_share() -> list[int]:
    """Ports that no other process of this user picks from until this one ends. Raises :class:`OSError`."""
    folder = Path(tempfile.gettempdir()) / f"tessera-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in RANGE[::SHARE]:
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        share = range(first, first + SHARE)
        return random.SystemRandom().sample(share, len(share))
    raise OSError(f"every port between {RANGE.start} and {RANGE.stop} is another test run's (see {folder})")
