"""Time of `tessera plan` for 8,152 pods on 1,213 nodes, everything included: process start to last line.

The pods are those of the public openb trace where it lies (``TESSERA_OPENB``, or ``../shared/data/openb`` beside
the repository), else 8,152 pods drawn to its shape (shares by size, whole devices, some multi-device), which is
said. The same pods are planned as a CSV of the trace (where it is there), as a JSON List and as YAML documents.
"""

import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
RUNS = 3
TESSERA = str(Path(sys.executable).with_name("tessera"))


def trace() -> Path | None:
    """The folder of the public trace, if it is there."""
    folder = Path(os.environ.get("TESSERA_OPENB", ROOT.parent / "shared/data/openb"))
    return folder if (folder / "openb_pod_list_default.csv").is_file() else None


def rows(folder: Path | None) -> Iterator[tuple[str, int, int, int, int]]:
    """Name, CPU milli, memory MiB, devices and device milli of every pod."""
    if folder is not None:
        with (folder / "openb_pod_list_default.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield (row["name"], *(int(row[k]) for k in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")))
        return
    chance = random.Random(8152)
    shares = [810] * 35 + [470] * 24 + [320] * 11 + [650] * 8 + [230] * 5 + [460] * 4 + [190] * 3
    for n in range(8152):
        kind = chance.random()
        devices = 0 if kind < 0.133 else 1 if kind < 0.991 else chance.choice([2, 4, 8])
        milli = chance.choice(shares) if 0.133 <= kind < 0.511 else 1000
        yield f"pod-{n:04d}", 8000, 16384, devices, milli


def manifest(name: str, cpu: int, memory: int, devices: int, milli: int) -> dict[str, Any]:
    """One pod in the native dialect, as it is written by hand."""
    limits: dict[str, Any] = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    if devices:
        share = {"tessera.dev/compute": milli / 10, "tessera.dev/memory-percent": milli / 10}
        limits |= {"tessera.dev/gpu": devices, **(share if milli < 1000 else {})}
    container = {"name": "main", "image": "main", "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def timed(pods: Path, fleet: Path) -> tuple[float, str]:
    """Median seconds of a few runs, and the last line that was printed."""
    times, last = [], ""
    for _ in range(RUNS):
        start = time.perf_counter()
        command = [TESSERA, "plan", "-f", str(pods), "--fleet", str(fleet)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - start)
        if run.returncode not in (0, 1):
            raise SystemExit(run.stderr)
        last = run.stdout.strip().splitlines()[-1]
    return statistics.median(times), last


def main() -> None:
    """Print one line for each form of the pods."""
    folder = trace()
    fleet = folder / "openb_node_list_gpu_node.csv" if folder else ROOT / "examples/fleet-openb.yaml"
    print(f"plan of 8,152 pods on 1,213 nodes ({'the openb trace' if folder else 'drawn to the shape of openb'}):")
    with tempfile.TemporaryDirectory() as made:
        pods = [manifest(*row) for row in rows(folder)]
        as_json, as_yaml = Path(made, "pods.json"), Path(made, "pods.yaml")
        as_json.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}), encoding="utf-8")
        as_yaml.write_text(yaml.dump_all(pods, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
        csv_file = [("trace CSV", folder / "openb_pod_list_default.csv")] if folder else []
        for name, path in [*csv_file, ("JSON List", as_json), ("YAML documents", as_yaml)]:
            seconds, last = timed(path, fleet)
            print(f"  {name}: {seconds:.2f} s  ({last})")


if __name__ == "__main__":
    main()
