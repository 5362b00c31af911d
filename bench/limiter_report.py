"""All figures of the limiter, each beside its goal, and a page with plots: ``make bench-limiter``.

Runs the programs of limiter/bench over the simulated driver (about ten minutes), and those that can run on a
device on the first one that this machine's driver has; where there is none, table and page say so.

    python bench/limiter_report.py [--page FILE.html] [--kills N] [--starts N] [--device-seconds N]
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from limiter_figures import (
    Figure,
    audit_figures,
    call_figures,
    compute_figures,
    device_figures,
    kill_figure,
    launch_figures,
    parse_floors,
    parse_runs,
    refusal_figures,
    render_figures,
    render_runs,
    start_figures,
)
from limiter_page import render_page

ROOT: Final = Path(__file__).resolve().parent.parent
PROBE: Final = """
import ctypes, re
cuda = ctypes.CDLL("libcuda.so.1")
name, uuid, device = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16), ctypes.c_int()
for code in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuDeviceGetName(name, 128, device),
             cuda.cuDeviceGetUuid_v2(uuid, device)):
    if code:
        raise SystemExit(f"the driver answers {code}")
text = uuid.raw.hex()
print(re.search(r"(/\\S+)/libcuda\\.so", open("/proc/self/maps").read()).group(1))
print(name.value.decode())
print("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
"""
"""Asks this machine's driver for its first device, in another process: the driver's folder, a name, a UUID."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device of this machine, or why there is none to measure on."""

    text: str
    environment: Mapping[str, str] | None = None


def find_hardware() -> Hardware:
    """The first device of this machine's own driver."""
    own = {name: value for name, value in os.environ.items() if name not in ("TESSERA_SIM_MACHINE", "LD_PRELOAD")}
    run = subprocess.run([sys.executable, "-c", PROBE], env=own, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        why = (run.stderr.strip().splitlines() or ["no answer"])[-1].removeprefix("OSError: ")
        return Hardware(f"Nothing was measured on a device: this machine has none that a driver shows ({why}).")
    folder, name, uuid = run.stdout.splitlines()
    return Hardware(f"Measured on {name} ({uuid}) too.", {"LD_LIBRARY_PATH": folder, "TESSERA_BENCH_UUID": uuid})


def run_target(target: str, *settings: str, environment: Mapping[str, str] | None = None) -> str:
    """What a target of limiter/Makefile prints; its own failure is told and is an empty text."""
    print(f"running {target} ...", file=sys.stderr, flush=True)
    command = ["make", "--no-print-directory", "-C", str(ROOT / "limiter"), target, *settings]
    run = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if run.returncode != 0:
        print(f"{target} FAILED with status {run.returncode}", file=sys.stderr)
        return ""
    return run.stdout


def measured_or_not(target: str, figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """The figures, or one that says that there are none."""
    return tuple(figures) or (Figure(target, "figures", "FAILED: it printed none", is_met=False),)


def call_and_refusal_figures(environment: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """What runs on any driver: refusals, calls, launches."""
    return (
        *measured_or_not("bench-refusal", refusal_figures(run_target("bench-refusal", environment=environment))),
        *measured_or_not("bench-compute", launch_figures(run_target("bench-compute", environment=environment))),
        *measured_or_not("bench-overhead", call_figures(run_target("bench-overhead", environment=environment))),
    )


def hardware_figures(hardware: Hardware, seconds: int) -> tuple[Figure, ...]:
    """The same and the accuracy of a limit on a real device; one line that says why not where there is none."""
    if hardware.environment is None:
        return (
            Figure(
                "on a device: calls, refusals, limits", "as above; limits within 5 points", hardware.text, None
            ),
        )
    text = run_target("bench-device", f"DEVICE_SECONDS={seconds}", environment=hardware.environment)
    found = (
        *call_and_refusal_figures(hardware.environment),
        *measured_or_not("bench-device", device_figures(text)),
    )
    return tuple(Figure(f"on a device: {f.what}", f.goal, f.measured, f.is_met) for f in found)


def machine() -> str:
    """One line about where this was measured."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())
    return f"{cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}, {platform.platform()}"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, default=ROOT / "build/limiter-report.html")
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--device-seconds", type=int, default=60)
    return parser.parse_args()


def main() -> int:
    """Run everything, print, write the page; 1 where a goal is missed."""
    wanted = options()
    hardware = find_hardware()
    runs = parse_runs(run_target("bench-accuracy"))
    floors = parse_floors(run_target("bench-floor"))
    audit = run_target("bench-audit")
    figures = (
        *call_and_refusal_figures(),
        *measured_or_not("bench-accuracy", compute_figures(runs, floors) if runs else ()),
        *measured_or_not("bench-kill", kill_figure(run_target("bench-kill", f"KILLS={wanted.kills}"))),
        *measured_or_not("bench-start", start_figures(run_target("bench-start", f"STARTS={wanted.starts}"))),
        *measured_or_not("bench-audit", audit_figures(audit)),
        *hardware_figures(hardware, wanted.device_seconds),
    )
    print(render_runs(runs), "", render_figures(figures), "", sep="\n")
    wanted.page.parent.mkdir(parents=True, exist_ok=True)
    wanted.page.write_text(render_page(figures, runs, floors, machine(), hardware.text), encoding="utf-8")
    print(f"{machine()}\n{hardware.text}\nwritten: {wanted.page}")
    return int(any(figure.is_met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
