"""Who goes first on a device that several shares use: four levels, between shares and between processes of one."""

from enum import IntEnum
from typing import Final


class Priority(IntEnum):
    """Higher runs first; lower yields down to its floor. The numbers are those of the shared region."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def word(self) -> str:
        """As it is written: ``low``, ``medium``, ``high``, ``critical``."""
        return self.name.lower()


WORDS: Final = tuple(level.word for level in Priority)
"""All levels as they are written, the lowest first."""


def priority_of(word: str) -> Priority | None:
    """The level of a word, in any case; ``None`` for another word."""
    return Priority(WORDS.index(word.lower()) + 1) if word.lower() in WORDS else None
