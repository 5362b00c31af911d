"""What is struck, when and for how long: a pure function of the seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DOWN_SECONDS: Final = (0.1, 4.0)
STALL_SECONDS: Final = (1.0, 6.0)
SPARED_SECONDS: Final = 6.0
"""A program that is back is left alone for so long: one that never gets ready would prove nothing."""

STALL_EVERY: Final = 5
"""One stall (SIGSTOP) after so many kills on average."""


@dataclass(frozen=True, slots=True)
class Strike:
    """``victim`` is killed (stopped, where ``stall``) ``at`` seconds after the begin, back ``seconds`` later."""

    at: float
    victim: str
    seconds: float
    stall: bool = False

    @property
    def end(self) -> float:
        """When it is started, or goes on, again."""
        return self.at + self.seconds

    def __str__(self) -> str:
        what = "stalled" if self.stall else "killed"
        return f"{self.at:7.1f} s: {self.victim} {what} for {self.seconds:.1f} s"


def plan(seed: int, kills: int, victims: Sequence[str], pace: float) -> tuple[Strike, ...]:
    """Strikes in order of time, ``kills`` of them kills, ``pace`` seconds apart on average.

    No victim is struck while it is down or has just come back. Where all are, time passes.
    """
    rng = random.Random(f"{seed}/strikes")
    free_at = dict.fromkeys(victims, 0.0)
    strikes: list[Strike] = []
    at, killed = 0.0, 0
    while killed < kills:
        at += rng.uniform(0, 2 * pace)
        able = [victim for victim in victims if free_at[victim] <= at]
        if not able:
            at = min(free_at.values())
            continue
        stall = rng.randrange(STALL_EVERY + 1) == 0
        strike = Strike(at, rng.choice(able), rng.uniform(*(STALL_SECONDS if stall else DOWN_SECONDS)), stall)
        free_at[strike.victim] = strike.end + SPARED_SECONDS
        killed += not stall
        strikes.append(strike)
    return tuple(strikes)
