"""Free ports on the loopback interface.

They are picked below the kernel's range for outgoing connections, so that no client takes one between the look and
the use, and never twice by one process.
"""

import random
import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"
RANGE: Final = range(20_000, 32_000)
_taken: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now."""
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        if port in _taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        _taken.add(port)
        return port
    raise OSError(f"no port between {RANGE.start} and {RANGE.stop} is free on {LOOPBACK}")
