"""``tessera resize``: another share for a run while it runs."""

from collections.abc import Iterator
from typing import Final

import click

from tessera.allocator.resize import Short, most
from tessera.cli.exits import Exit
from tessera.cli.explain import RunName
from tessera.core.placement import Reason
from tessera.core.units import render_mib, render_percent
from tessera.local.ask import ask_text
from tessera.local.book import Run, grants_of
from tessera.local.resize import InUse, NoRoom, Resized, Wish, resize_run
from tessera.local.words import run_text

_EPILOG: Final = """\b
Examples:
  tessera resize train-1 --memory 12Gi
  tessera resize train-1 --memory 25% --compute 30%

\b
Exit codes: 0 in force; 1 no room, or more is in use; 2 invalid options.
"""


@click.command(epilog=_EPILOG)
@click.argument("name", type=RunName())
@click.option("--memory", metavar="AMOUNT", help="Memory of each device from now on: 8Gi, 8192Mi, 8G, 25%.")
@click.option("--compute", metavar="PERCENT", help="Compute of each device from now on: 30%.")
def command(*, name: str, memory: str | None, compute: str | None) -> int:
    """Change the share of the run NAME (or its id) while it runs; what is not said stays as it is.

    A larger share needs room on the devices that the run has. A smaller one is refused where more is in use.
    """
    outcome = resize_run(name, Wish(memory, compute))
    match outcome:
        case Resized(run):
            click.echo(f"{run.name}: {run_text(run)}")
            return Exit.OK
        case NoRoom():
            lines = no_room_lines(outcome)
        case InUse():
            lines = in_use_lines(outcome)
    for line in lines:
        click.echo(f"tessera: {line}", err=True)
    return Exit.NO


def no_room_lines(outcome: NoRoom) -> Iterator[str]:
    """A growth that does not fit, with what would."""
    yield f"{outcome.run.name} keeps its share: asked for {ask_text(outcome.ask)}"
    for short in outcome.shorts:
        yield f"  why: {_short_text(short, outcome.run)}"
    if outcome.ahead:
        names = ", ".join(run.name for run in outcome.ahead)
        yield f"  why: others wait for that device since before: {names}"
    memory, compute = most(outcome.shorts, Reason.MEMORY), most(outcome.shorts, Reason.COMPUTE)
    fits = [f"--memory {memory}Mi"] * bool(memory) + [f"--compute {render_percent(compute or 0)}"] * bool(compute)
    if fits and not outcome.ahead:
        yield f"  would fit: {' '.join(fits)}"


def _short_text(short: Short, run: Run) -> str:
    index = next(grant.index for grant in grants_of(run) if grant.uuid == short.uuid)
    render = render_mib if short.reason is Reason.MEMORY else render_percent
    what = "memory" if short.reason is Reason.MEMORY else "compute"
    room = render(max(0, short.room))
    return f"device {index} has {room} of {what} for it, what others hold taken off; {render(short.asked)} is more"


def in_use_lines(outcome: InUse) -> Iterator[str]:
    """A shrink below what is in use, with the figures."""
    yield f"{outcome.run.name} keeps its share: it uses more than that"
    for held in outcome.held:
        used, limit = render_mib(held.used_mib), render_mib(held.limit_mib)
        yield f"  why: {used} of device {held.index} are in use, and {limit} would be allowed"
    most_used = max(held.used_mib for held in outcome.held)
    yield f"  would fit: --memory {most_used}Mi; or let the command free memory first"
