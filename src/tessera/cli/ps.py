"""``tessera ps``: who holds which share, on this machine and on the simulated ones of the state directory."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec

from tessera.cli.columns import columns, command_text, gib, percent, span
from tessera.local.machine import known_machines
from tessera.local.view import RunView, State, mended_runs, run_view

_HEADER: Final = (
    "NAME", "STATE", "PID", "USER", "DEVICES", "USED", "LIMIT", "COMPUTE", "AGE", "MACHINE", "COMMAND",
)  # fmt: skip
_NUMBERS: Final = (2, 5, 6, 7, 8)
_EPILOG: Final = """\b
Examples:
  tessera ps
  tessera ps -o json | jq -r '.runs[].name'
"""


@click.command(epilog=_EPILOG)
@click.option("-o", "--output", "style", type=click.Choice(("table", "json")), default="table", show_default=True,
              help="What to print.")  # fmt: skip
def command(style: str) -> None:
    """List who holds or waits for which share of this machine and of the simulated ones.

    USED and LIMIT are memory, on all devices of a run together. A run whose supervisor was killed while its
    processes live on is unwatched: its share stays taken until they end.
    """
    runs = [run_view(machine, run) for machine in known_machines() for run in mended_runs(machine)]
    if style == "json":
        click.echo(msgspec.json.format(msgspec.json.encode({"runs": runs}), indent=2))
    elif runs:
        click.echo("\n".join(run_lines(runs)))
    else:
        click.echo("No runs. 'tessera run --memory 8Gi -- COMMAND' starts one.")


def run_lines(runs: Sequence[RunView]) -> Iterator[str]:
    """Runs as a table."""
    return columns(_HEADER, [row(run) for run in runs], _NUMBERS)


def row(run: RunView) -> tuple[str, ...]:
    """A run as cells."""
    held = run.state is not State.WAITING
    return (
        run.name,
        run.state,
        str(run.pid),
        run.user,
        devices_cell([share.index for share in run.devices]),
        gib(run.memory_used_mib) if held else "-",
        gib(run.memory_limit_mib) if held else "-",
        "whole" if any(share.exclusive for share in run.devices) else percent(run.compute_milli),
        span(run.age_seconds),
        f"{run.machine} (simulated)" if run.simulated else run.machine,
        command_text(run.command),
    )


def devices_cell(indices: Sequence[int]) -> str:
    """Device numbers; a dash for none."""
    return ",".join(map(str, indices)) or "-"
