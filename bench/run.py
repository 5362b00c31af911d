"""All figures, one after another: ``make bench``. Prints; asserts nothing.

Reference figures with machine and method are kept in bench/RESULTS.md.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESSERA = str(Path(sys.executable).with_name("tessera"))


def machine() -> str:
    """One line about where this was measured."""
    info = Path("/proc/cpuinfo")
    cpu = next((x.split(":")[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")), "?")
    return f"{cpu}, {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}"


def help_time(runs: int = 15) -> float:
    """Median milliseconds of ``tessera --help``."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([TESSERA, "--help"], capture_output=True, check=True)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def section(title: str, *command: str) -> None:
    """Run one benchmark and let it print."""
    print(f"\n-- {title}", flush=True)
    subprocess.run(command, cwd=ROOT, check=False)


def main() -> None:
    """Print every figure."""
    print(machine())
    print(f"\n-- tessera --help\nmedian {help_time():.0f} ms (goal 150)", flush=True)
    section("tessera run, overhead before COMMAND (goal 250 ms)", sys.executable, "bench/run_overhead.py")
    section("tessera plan (goal 5 s)", sys.executable, "bench/plan.py")
    section("one decision with its commit (goal p99 3 ms at 5000 x 8)", sys.executable, "bench/decide.py")
    make = ("make", "--no-print-directory", "-C", "limiter")
    section("limiter, overhead of a call (goal 60 ns, no system call)", *make, "bench")
    section("8 processes x 10,000 pairs, one killed, 200 rounds (goal: exact, recovery 1 s)", *make, "stress")


if __name__ == "__main__":
    main()
