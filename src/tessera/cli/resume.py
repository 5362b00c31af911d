"""``tessera resume``: let a paused run go on."""

from typing import Final

import click

from tessera.cli.explain import RunName
from tessera.local.resize import pause_run

_EPILOG: Final = """\b
Examples:
  tessera resume train-1
"""


@click.command(epilog=_EPILOG)
@click.argument("name", type=RunName())
def command(name: str) -> None:
    """Let the run NAME (or its id) launch kernels again."""
    run = pause_run(name, paused=False)
    click.echo(f"{run.name}: goes on")
