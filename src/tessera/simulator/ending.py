"""How a run ended: what became of each kind of pod, what is idle and why, and the cluster as it was left."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tessera.core.fleet import PLENTY, Fleet, Ints
from tessera.core.units import WHOLE
from tessera.simulator.engine import Record
from tessera.simulator.fragmentation import NEVER, Workload, model_table
from tessera.simulator.result import Idle, Kind, KindCount
from tessera.simulator.stream import Floats
from tessera.simulator.tally import Tally
from tessera.simulator.trace import Trace

CLUSTER_COLUMNS: Final = ("node", "model", "cpu_milli", "cpu_used", "memory_mib", "memory_used", "devices")
_RESTS: Final = 12


def kind_counts(trace: Trace, pods: Ints, record: Record, early: int) -> tuple[KindCount, ...]:
    """What became of each kind; the first ``early`` arrivals came while not more was asked for than there is."""
    shape_of = np.array(trace.shape_of, dtype=np.int64)[pods]
    rejected = np.array(record.nodes, dtype=np.int64) < 0
    counts = []
    for kind in Kind:
        for constrained in (False, True):
            rows = [i for i, s in enumerate(trace.shapes) if s.kind is kind and s.constrained is constrained]
            mine = np.isin(shape_of, rows)
            if not mine.any():
                continue
            demand = np.array([shape.demand for shape in trace.shapes], dtype=np.int64)[shape_of]
            lost = mine & rejected
            counts.append(
                KindCount(
                    kind=kind,
                    constrained=constrained,
                    arrived=int(mine.sum()),
                    placed=int(mine.sum() - lost.sum()),
                    rejected=int(lost.sum()),
                    early=int(lost[:early].sum()),
                    arrived_early=int(mine[:early].sum()),
                    asked_milli=int(demand[mine].sum()),
                    rejected_milli=int(demand[lost].sum()),
                )
            )
    return tuple(counts)


def idle_parts(fleet: Fleet, workload: Workload, tally: Tally) -> tuple[Idle, ...]:
    """What is idle on each model, and which part of the target workload's device pods could use it."""
    width = int(np.diff(fleet.first).max(initial=0))
    if not width:
        return ()
    table = model_table(fleet)
    left = np.array([row + [0] * (width - len(row)) for row in tally.left], dtype=np.int64)
    real = np.arange(width) < np.diff(fleet.first)[:, None]
    wrong, small, host, usable = _reasons(fleet, workload, table, left, tally)
    found = []
    for row, name in enumerate(fleet.models):
        mine = real & (table == row)
        rests = left[mine]
        bins = np.where(rests == WHOLE, _RESTS - 1, np.where(rests == 0, 0, rests // 100 + 1))
        parts = [round(float((part * left)[mine].sum())) for part in (usable, small, host, wrong)]
        counts = tuple(np.bincount(bins, minlength=_RESTS).tolist())
        found.append(Idle(name, int(rests.sum()), parts[0], parts[1], parts[2], parts[3], counts))
    return tuple(found)


def _reasons(
    fleet: Fleet, workload: Workload, table: Ints, left: Ints, tally: Tally
) -> tuple[Floats, Floats, Floats, Floats]:
    """Which part of the device pods may not use each device, finds too little, lacks the host, and can use it."""
    devices = np.flatnonzero(workload.count > 0)
    weight = workload.weight[devices].astype(np.float64)
    weight = weight / max(weight.sum(), 1.0)
    cpu = fleet.cpu - np.array(tally.cpu, dtype=np.int64)
    parts = [np.zeros(left.shape) for _ in range(4)]
    for share, kind in zip(weight, devices, strict=True):
        needs = workload.needs[kind][table]
        barred = needs >= NEVER
        able = left >= needs
        runs = (able.sum(axis=1) >= workload.count[kind])[:, None]
        small = ~barred & ~(able & runs)
        starved = ~barred & ~small & (cpu < workload.cpu[kind])[:, None]
        for row, mask in enumerate((barred, small, starved, ~(barred | small | starved))):
            parts[row] += share * mask
    return parts[0], parts[1], parts[2], parts[3]


def cluster_rows(fleet: Fleet, tally: Tally) -> Iterator[Sequence[object]]:
    """The lines of ``cluster.csv``."""
    for row, node in enumerate(fleet.nodes):
        models = "|".join(dict.fromkeys(device.model for device in node.devices))
        cpu, memory = int(fleet.cpu[row]), int(fleet.host_memory[row])
        devices = ";".join(str(WHOLE - left) for left in tally.left[row])
        yield (
            node.name, models, "" if cpu == PLENTY else cpu, tally.cpu[row],
            "" if memory == PLENTY else memory, tally.host_memory[row], devices,
        )  # fmt: skip
