"""How long `tessera run` takes until COMMAND starts: median and worst of warm runs, in milliseconds.

From just before the exec of `tessera run` to what `date` reports as its first act, on the simulated driver (a
real one adds its own nvmlInit). The simulated machine, the ledger and the byte code exist before the first run
that counts.

    python bench/run_overhead.py [RUNS]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MACHINE = "4xA100-SXM4-80GB"
BUDGET_MS = 250
TESSERA = (sys.executable, "-c", "from tessera.cli.main import main; main()")


def one_start(environment: dict[str, str]) -> float:
    """Milliseconds from exec to COMMAND."""
    command = [*TESSERA, "run", "-q", "--simulate", MACHINE, "--memory", "8Gi", "--", "date", "+%s%N"]
    before = time.time_ns()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return (int(done.stdout) - before) / 1e6


def bare_start() -> float:
    """The same for COMMAND alone: what `date` itself costs."""
    before = time.time_ns()
    done = subprocess.run(["date", "+%s%N"], check=True, capture_output=True, text=True)
    return (int(done.stdout) - before) / 1e6


def main(runs: int) -> int:
    """Print the figures; 1 where the median is over the budget."""
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as state:
        caches = {"PYTHONPYCACHEPREFIX": str(Path(state, "bytecode"))}
        environment = {**os.environ, "TESSERA_STATE_DIR": state, **caches}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(3):
            one_start(environment)
        times = [one_start(environment) for _ in range(runs)]
    bare = statistics.median(bare_start() for _ in range(runs))
    median = statistics.median(times)
    print(f"tessera run until COMMAND starts: median {median:.0f} ms, best {min(times):.0f} ms, "
          f"worst {max(times):.0f} ms of {runs} (date alone: {bare:.1f} ms; budget {BUDGET_MS} ms)")  # fmt: skip
    return int(median > BUDGET_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
