"""A run and its summary: ``PYTHONPATH=tests python -m cluster.chaos --seed N [--kills K]``; 1 on a violation."""

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from cluster.chaos.run import Settings, run
from cluster.engine import binaries
from cluster.engine.node import missing_node_reason


@click.command()
@click.option("--seed", type=int, help="Decides strikes and load; drawn and printed where it is not given.")
@click.option("--kills", type=int, default=200, show_default=True)
@click.option("--nodes", type=int, default=20, show_default=True, help="Simulated nodes of four devices.")
@click.option("--pods", type=int, default=120, show_default=True, help="Pods at once, about.")
@click.option("--pace", type=float, default=2.0, show_default=True, help="Seconds between strikes.")
@click.option("--real-node/--no-real-node", default=None, help="Default: where the machine can (root, kubelet).")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the logs of every program.")
def main(seed: int | None, real_node: bool | None, keep: Path | None, **sizes: Any) -> None:
    """Kill programs of a whole cluster at seeded moments, and judge what etcd remembers."""
    missing = binaries.missing_reason(*binaries.CONTROL_PLANE)
    if missing:
        sys.exit(missing)
    if real_node is None and missing_node_reason():
        click.echo(f"without a real node: {missing_node_reason()}")
    real = not missing_node_reason() if real_node is None else real_node
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    click.echo(f"seed {seed}")
    begin = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - begin:6.1f}] {text}")

    with tempfile.TemporaryDirectory(prefix="tessera-chaos-") as folder:
        where = keep or Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        report = run(Settings(seed, real=real, **sizes), where, say)
    click.echo(report.text())
    sys.exit(bool(report.violations))


if __name__ == "__main__":
    main()
