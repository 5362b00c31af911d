"""Compares the published policies with what the published simulator printed, point by point; exits 1 where they
differ.

Usage: ``python tools/parity.py [--traces default,...] [--seeds 42,...] [--policies fgd,...] [-j N]``. Every point
of every run is within 0.02 percent of the cluster; ``random``, which draws other numbers, within 0.7 in the mean
of its seeds. No run is above the bound that holds for any scheduler.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from openb import BOUND, BOUND_SLACK, NAMES, SEEDS, TRACES, Job, at_once, expected, processors, runs_of
from tessera.simulator.result import Run

WITHIN: Final = 0.02
RANDOM_WITHIN: Final = 0.7
_EPSILON: Final = 1e-9


def off(trace: str, run: Run) -> float:
    """The greatest difference of a run's points from the published ones; infinite where one is missing."""
    points = expected()[trace, run.policy, run.seed]
    if not points.keys() <= run.allocation.keys():
        return float("inf")
    return max(abs(run.allocation[at] - value) for at, value in points.items())


def verdicts(trace: str, policy: str, runs: Sequence[Run]) -> tuple[str, bool]:
    """A line of the table, and whether it is as it should be."""
    held = [run.allocation["100"] for run in runs]
    theirs = [expected()[trace, policy, run.seed]["100"] for run in runs]
    mean, published = sum(held) / len(held), sum(theirs) / len(theirs)
    worst = abs(mean - published) if policy == "random" else max(off(trace, run) for run in runs)
    bound = BOUND[trace] + (0 if trace == "default" else BOUND_SLACK)
    good = worst <= (RANDOM_WITHIN if policy == "random" else WITHIN) + _EPSILON and max(held) <= bound
    line = f"{trace:<12} {policy:<15} {len(runs):>5} {mean:>9.2f} {published:>9.2f} {worst:>8.2f}"
    return f"{line}  {'' if good else 'NOT AS PUBLISHED'}".rstrip(), good


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--policies", default=",".join(NAMES))
    parser.add_argument("-j", type=int, default=processors())
    options = parser.parse_args()
    policies = tuple(options.policies.split(","))
    seeds = [int(seed) for seed in options.seeds.split(",")]
    jobs: list[Job] = [(trace, seed, policies) for trace in options.traces.split(",") for seed in seeds]
    began = time.monotonic()
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    good = True
    print("trace        policy           runs   ours@100 published  off by", flush=True)
    for (trace, seed, _), runs in at_once(runs_of, jobs, options.j):
        for run in runs:
            found[trace, run.policy].append(run)
        if seed == seeds[-1]:
            for policy in policies:
                line, as_published = verdicts(trace, policy, found[trace, policy])
                good &= as_published
                print(line, flush=True)
    count = len(jobs) * len(policies)
    print(f"{count:,} runs in {time.monotonic() - began:.0f} s: {'as published' if good else 'NOT as published'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
