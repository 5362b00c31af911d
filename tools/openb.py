"""The public openb trace as studies, for the tools that compare with published figures.

The files lie where ``TESSERA_OPENB`` says, else in ``../shared/data/openb`` beside this checkout: node list, pod
lists and sequences (``seq_<trace>.npz``), and ``expected_summary.csv``, the allocations that the published
simulator printed. Nodes and pods are of the Alibaba cluster-trace-gpu-v2023; docs/simulate.md says where it is to
be had.
"""

import csv
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final

from tessera.runtime.files import load_fleet
from tessera.runtime.kernel import compiled_looker
from tessera.simulator.engine import Rules
from tessera.simulator.one import simulated
from tessera.simulator.result import Run
from tessera.simulator.sequences import read_sequence
from tessera.simulator.study import Study
from tessera.simulator.trace import trace_of
from tessera.wire.openb import read_pods

TRACES: Final = (
    "default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80", "gpushare100",
    "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40", "multigpu50",
)  # fmt: skip
SEEDS: Final = tuple(range(42, 52))
NAMES: Final[Mapping[str, str]] = {
    "fgd": "06-FGD",
    "best-fit": "05-BestFit",
    "gpu-packing": "04-GpuPacking",
    "gpu-clustering": "03-GpuClustering",
    "dot-product": "02-DotProd",
    "random": "01-Random",
}
"""Our names of the published policies, and those of ``expected_summary.csv``."""

# Percent that any scheduler can hold when 100 % has arrived: a configuration LP per node type, whole devices, CPU
# rounded to the scheduler's favour. Means of 3 seeds (default: the greatest of 10), which differ by 0.05 at most.
BOUND: Final[Mapping[str, float]] = {
    "default": 96.91, "cpu050": 96.90, "cpu100": 96.89, "cpu200": 96.89, "cpu250": 96.91, "gpushare40": 95.62,
    "gpushare60": 93.36, "gpushare80": 91.34, "gpushare100": 89.15, "gpuspec10": 96.85, "gpuspec20": 96.90,
    "gpuspec25": 96.87, "gpuspec33": 96.35, "multigpu20": 97.32, "multigpu30": 97.67, "multigpu40": 98.00,
    "multigpu50": 98.33,
}  # fmt: skip
BOUND_SLACK: Final = 0.15

Job = tuple[str, int, tuple[str, ...]]


def folder() -> Path:
    """Where the data lies. Ends the program, saying how to mend that, where it does not."""
    named = os.environ.get("TESSERA_OPENB")
    found = Path(named) if named else Path(__file__).resolve().parents[2] / "shared/data/openb"
    if not (found / "expected_summary.csv").is_file():
        sys.exit(f"no openb data in {found}: set TESSERA_OPENB to its folder (docs/simulate.md says what it is)")
    return found


@lru_cache(maxsize=2)
def study_of(trace: str) -> Study:
    """The published protocol on a trace: its nodes, pods and recorded sequences."""
    data = folder()
    fleet = load_fleet(str(data / "openb_node_list_gpu_node.csv"))
    source = data / f"openb_pod_list_{trace}.csv"
    listed = read_pods(str(source), source.read_text())
    sequence = read_sequence(data / f"seq_{trace}.npz")
    assert not listed.problems, listed.problems[0]
    assert isinstance(sequence, dict), sequence
    pods = trace_of([one.pod for one in listed.pods], fleet.nodes, [one.stays for one in listed.pods])
    return Study(fleet.nodes, pods, tuple(NAMES), SEEDS, sequence).by_name()


@lru_cache(maxsize=1)
def expected() -> dict[tuple[str, str, int], dict[str, float]]:
    """The published percentages by trace, policy (our name) and seed, each by arrived percent."""
    ours = {theirs: name for name, theirs in NAMES.items()}
    with (folder() / "expected_summary.csv").open() as file:
        return {
            (row["trace"], ours[row["sc_policy"]], int(row["seed"])): {
                at: float(value) for at, value in row.items() if at.isdigit()
            }
            for row in csv.DictReader(file)
        }


def runs_of(job: Job) -> list[Run]:
    """The runs of some policies on one seed of a trace."""
    trace, seed, policies = job
    parts = study_of(trace).parts(seed, compiled_looker())
    return [simulated(parts, Rules(policy, seed), fragmentation=False).run for policy in policies]


def at_once(
    work: Callable[[Job], list[Run]], jobs: Sequence[Job], processes: int
) -> Iterator[tuple[Job, list[Run]]]:
    """The outcome of every job, in order, from so many processes."""
    if processes == 1:
        yield from zip(jobs, map(work, jobs), strict=True)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from zip(jobs, pool.map(work, jobs), strict=True)


def processors() -> int:
    """How many processes can compute at once."""
    return len(os.sched_getaffinity(0))
