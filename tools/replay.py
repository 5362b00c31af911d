"""Replays a simulation's placements on the trace's own files and says what is wrong with them; exits 1 where
anything is.

Usage: ``python tools/replay.py NODES.csv PODS.csv placements.csv``, for a simulation without departures. Nothing
of the product is used: this is a second reading of the same lines. Checked for every line, in order:

* a placed pod's node exists, has the CPU and the memory, the model is one that the pod may use, and each device,
  no two alike, has as much left as the pod takes of one
* a rejected pod fits on no node at that moment
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = Mapping[str, str]

ASKED = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
"""All that decides where a pod fits."""


@dataclass(slots=True)
class Host:
    """A node and what is left of it."""

    model: str
    cpu: int
    memory: int
    left: list[int]

    def fits(self, pod: Row) -> bool:
        """Whether the pod could be placed here."""
        count, milli = int(pod["num_gpu"]), int(pod["gpu_milli"])
        if self.cpu < int(pod["cpu_milli"]) or self.memory < int(pod["memory_mib"]):
            return False
        return not count or (self.may_use(pod) and sum(left >= milli for left in self.left) >= count)

    def may_use(self, pod: Row) -> bool:
        """Whether the pod may run on this model."""
        named = [name for name in (pod.get("gpu_spec") or "").split("|") if name]
        return not named or self.model in named


def rows(path: str) -> list[Row]:
    """The lines of a CSV file."""
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def faults(nodes: Sequence[Row], pods: Sequence[Row], placements: Sequence[Row]) -> Iterator[str]:
    """Everything that is wrong, each with its arrival."""
    hosts = {
        n["sn"]: Host(n["model"], int(n["cpu_milli"]), int(n["memory_mib"]), [1000] * int(n["gpu"])) for n in nodes
    }
    by_name = {pod["name"]: pod for pod in pods}
    nowhere = set[tuple[str | None, ...]]()  # what fitted on no node, and so never will: nothing departs
    for line in placements:
        pod, where = by_name[line["pod"]], f"arrival {line['arrival']}, pod {line['pod']}"
        if not line["node"]:
            asked = tuple(pod.get(column) for column in ASKED)
            if asked in nowhere:
                continue
            room = next((name for name, host in hosts.items() if host.fits(pod)), None)
            if room is None:
                nowhere.add(asked)
            else:
                yield f"{where}: rejected, and {room} has room"
            continue
        yield from (
            f"{where} on {line['node']}: {what}" for what in placed(hosts[line["node"]], pod, line["gpus"])
        )


def placed(host: Host, pod: Row, gpus: str) -> Iterator[str]:
    """Take what the pod takes; everything that is wrong with that."""
    count, milli = int(pod["num_gpu"]), int(pod["gpu_milli"])
    indices = [int(index) for index in gpus.split(";")] if gpus else []
    host.cpu -= int(pod["cpu_milli"])
    host.memory -= int(pod["memory_mib"])
    if host.cpu < 0 or host.memory < 0:
        yield "too little CPU or memory"
    if len(set(indices)) != count or len(indices) != count:
        yield f"devices {gpus or 'none'} where {count} are asked for"
    if count and not host.may_use(pod):
        yield f"may not use {host.model}"
    for index in indices:
        if index >= len(host.left):
            yield f"has no device {index}"
            continue
        host.left[index] -= milli
        if host.left[index] < 0:
            yield f"device {index} is over-committed by {-host.left[index]} milli"


def main(nodes: str, pods: str, placements: str) -> int:
    """Print what is wrong, and how many lines there were."""
    listed = rows(placements)
    count = 0
    for fault in faults(rows(nodes), rows(pods), listed):
        print(fault)
        count += 1
    print(
        f"{len(listed):,} arrivals, {sum(not line['node'] for line in listed):,} rejected: {count or 'no'} faults"
    )
    return 1 if count else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
