"""Measures the default policy on the public trace against what it has to reach; exits 1 where it does not.

Usage: ``python tools/quality.py [--traces default,...] [--seeds 42,...] [--policy pwr+] [-j N]``, and for studies
that take longer ``--study departures`` (a load of 0.90, pods moved for others or not) or ``--study sampling`` (500
nodes looked at of 5,000). The published FGD, from ``expected_summary.csv``, is what the policy is compared with.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Final

from openb import BOUND, BOUND_SLACK, SEEDS, TRACES, Job, at_once, expected, processors, runs_of, study_of
from tessera.core.device import Node
from tessera.runtime.kernel import compiled_looker
from tessera.simulator.engine import Rules
from tessera.simulator.one import simulated
from tessera.simulator.result import Run
from tessera.simulator.summary import many_accepted

GAIN: Final = 0.4
"""Percent of the cluster that the policy holds beyond FGD at 100 %, on every trace."""

LEAST: Final = {"gpuspec33": 93.8, "gpushare100": 88.1, "multigpu50": 97.5, "cpu250": 94.2}
COPIES: Final = 4
LARGE: Final = 5000


@dataclass(frozen=True, slots=True)
class Demand:
    """One thing to reach: what it is, what was measured, and the bound (``least`` or not)."""

    what: str
    measured: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"  {'ok  ' if self.met else 'MISS'} {self.what}: {self.measured:.2f} ({sign} {self.bound:.2f})"


def demands(trace: str, runs: Sequence[Run]) -> Iterator[Demand]:
    """What the runs of a trace have to reach."""
    held = [run.allocation["100"] for run in runs]
    fgd = fmean(expected()[trace, "fgd", run.seed]["100"] for run in runs)
    bound = BOUND[trace] + (0 if trace == "default" else BOUND_SLACK)
    yield Demand("never above the bound of any scheduler", max(held), bound, at_least=False)
    if trace != "default":
        yield Demand("held at 100 %, beside FGD", fmean(held), fgd + GAIN)
        if trace in LEAST:
            yield Demand("held at 100 %", fmean(held), LEAST[trace])
        return
    yield Demand("held at 100 %, mean", fmean(held), 96.10)
    yield Demand("held at 100 %, worst seed", min(held), 96.00)
    yield Demand("held at 100 %, deviation", stdev(held) if len(held) > 1 else 0.0, 0.10, at_least=False)
    yield Demand("held at 95 %", fmean(run.allocation["95"] for run in runs), 94.95)
    yield Demand("held at 130 %", fmean(run.allocation["130"] for run in runs), 96.20)
    yield Demand("first rejection, earliest seed", min(run.first_rejection or 130.0 for run in runs), 95.8)
    yield Demand("rejected before 100 %", fmean(run.early for run in runs), 275, at_least=False)
    yield Demand("multi-device pods placed before 100 %", fmean(many_accepted(run) or 0.0 for run in runs), 96.0)


def row(*cells: object) -> None:
    """Print a line of a table: the first cell to the left, numbers with two decimals."""
    first, *others = (f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"{first:<12}" + "".join(f"{cell:>15}" for cell in others), flush=True)


def table(options: argparse.Namespace) -> int:
    """The traces, one after another; a line each, and what it has to reach."""
    jobs: list[Job] = [(trace, seed, (options.policy,)) for trace in options.traces for seed in options.seeds]
    found: dict[str, list[Run]] = defaultdict(list)
    missed = 0
    row("trace", "held at 100 %", "+-", "worst", "FGD", "at 130 %", "first no", "rejected", "multi-device")
    for (trace, seed, _), runs in at_once(runs_of, jobs, options.j):
        found[trace] += runs
        if seed == options.seeds[-1]:
            _trace_row(trace, found[trace])
            for demand in demands(trace, found[trace]):
                missed += not demand.met
                print(demand, flush=True)
    return missed


def _trace_row(trace: str, runs: Sequence[Run]) -> None:
    held = [run.allocation["100"] for run in runs]
    fgd = fmean(expected()[trace, "fgd", run.seed]["100"] for run in runs)
    many = [percent for run in runs if (percent := many_accepted(run)) is not None]
    last, first = fmean(run.allocation["130"] for run in runs), min(run.first_rejection or 130.0 for run in runs)
    spread, early = stdev(held) if len(held) > 1 else 0.0, fmean(run.early for run in runs)
    row(trace, fmean(held), spread, min(held), fgd, last, first, early, fmean(many) if many else "-")


def departures(options: argparse.Namespace) -> int:
    """Pods come and leave, 90 % of the cluster asked for at a time: what is rejected without moves and with 8."""
    row("policy", "moves", "seed", "held over time", "rejected", "multi-device", "moves per 100")
    missed = 0
    for moves in (0, 8):
        churns = []
        for seed in options.seeds:
            study = replace(study_of("default"), sequence=None, load=0.9, drain=moves)
            rules = Rules(options.policy, seed, drain=moves)
            churn = simulated(study.parts(seed, compiled_looker()), rules, fragmentation=False).run.churn
            assert churn is not None
            churns.append(churn)
            rejected = (churn.rejected_demand, churn.rejected_many)
            row(options.policy, moves, seed, churn.allocation, *rejected, f"{churn.moves_per_100:.3f}")
        many, few = fmean(c.rejected_many for c in churns), fmean(c.moves_per_100 for c in churns)
        wanted = (
            Demand("multi-device pods rejected, percent", many, 0.05, at_least=False),
            Demand("moves per 100 placed pods", few, 0.1, at_least=False),
        )
        for demand in wanted if moves else ():
            missed += not demand.met
            print(demand)
    return missed


def sampling(options: argparse.Namespace) -> int:
    """The cluster's nodes repeated up to 5,000: all are looked at for each pod, and 500 as kube-scheduler does."""
    base = study_of("default")
    nodes = [_copy(node, n) for n in range(COPIES + 1) for node in base.nodes][:LARGE]
    row(
        "policy",
        "looked at",
        "seed",
        "held at 95 %",
        "at 100 %",
        "at 130 %",
        "first no",
        "looks a pod",
        "us a pod",
    )
    for sample in (None, 500):
        for seed in options.seeds:
            study = replace(base, nodes=tuple(nodes), sequence=None, arrivals=1.3)
            parts = study.parts(seed, compiled_looker())
            began = time.process_time()
            run = simulated(parts, Rules(options.policy, seed, sample), fragmentation=False).run
            each = (time.process_time() - began) / run.arrived * 1e6
            held = [run.allocation[at] for at in ("95", "100", "130")]
            first = run.first_rejection or 130.0
            row(options.policy, sample or "all", seed, *held, first, run.tries / run.arrived, f"{each:.0f}")
    return 0


def _copy(node: Node, n: int) -> Node:
    """The node once more, under names of its own."""
    devices = tuple(replace(device, uuid=f"{device.uuid}-{n}") for device in node.devices)
    return replace(node, name=f"{node.name}-{n}", devices=devices, labels={})


STUDIES: Final = {"table": table, "departures": departures, "sampling": sampling}


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=lambda text: text.split(","), default=list(TRACES))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=list(SEEDS))
    parser.add_argument("--policy", default="pwr+")
    parser.add_argument("--study", choices=STUDIES, default="table")
    parser.add_argument("-j", type=int, default=processors())
    options = parser.parse_args()
    began = time.monotonic()
    missed = STUDIES[options.study](options)
    print(f"{time.monotonic() - began:.0f} s: {'everything reached' if not missed else f'{missed} not reached'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
