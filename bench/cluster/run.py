"""All figures of a cluster, one after another: ``make bench-cluster``. Prints; asserts nothing.

Reference figures with machine and method are kept in bench/RESULTS.md.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
PROGRAMS: Final = (
    ("pods/s with our extender over without it (goal 0.90)", HERE / "throughput.py"),
    ("5,000 nodes, 40,000 shares: restart, Filter, memory", HERE / "large.py"),
    ("Filter and Bind in one process, without a network", HERE.parent / "extender.py"),
    ("one decision of the index", HERE.parent / "index.py"),
    ("webhook: added to a create, reviews a second (goal 1 ms, 4,000/s)", HERE.parent / "webhook.py"),
    ("agent with 8 devices and 60 shares (goal 45 MB; gate p99 15 ms)", HERE.parent / "node_agent.py"),
    ("informer with 100,000 pods (goal 350 MB, pause 10 ms)", HERE.parent / "informer.py"),
    ("client: one small POST", HERE.parent / "client.py"),
    ("servers: one small request", HERE.parent / "serve.py"),
)


def main() -> None:
    """Print every figure."""
    for title, program in PROGRAMS:
        print(f"\n-- {title}", flush=True)
        subprocess.run([sys.executable, str(program)], check=False)


if __name__ == "__main__":
    main()
