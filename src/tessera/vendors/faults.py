"""What a device's own error codes mean for whoever shares it."""

from dataclasses import dataclass
from enum import StrEnum


class FaultClass(StrEnum):
    """What follows from a fault."""

    APPLICATION = "application"
    """A program's own doing, over with that program, or nothing to act on: the device stays in use."""
    TRANSIENT = "transient"
    """The device takes no new shares until it has been quiet for a while."""
    FATAL = "fatal"
    """The device takes no new shares until it was reset or the machine restarted."""


@dataclass(frozen=True, slots=True)
class FaultCode:
    """A code that a driver reports: its class, what happened and what to do."""

    code: int
    kind: FaultClass
    what: str
    remedy: str
