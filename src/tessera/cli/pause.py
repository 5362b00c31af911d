"""``tessera pause``: hold the launches of a run."""

from typing import Final

import click

from tessera.cli.explain import RunName
from tessera.local.resize import pause_run

_EPILOG: Final = """\b
Examples:
  tessera pause train-1
"""


@click.command(epilog=_EPILOG)
@click.argument("name", type=RunName())
def command(name: str) -> None:
    """Hold every kernel that the run NAME (or its id) launches from now on, until it is resumed.

    What is on the device goes on; memory stays where it is, and the share stays taken.
    """
    run = pause_run(name, paused=True)
    click.echo(f"{run.name}: paused; 'tessera resume {run.name}' lets it go on")
