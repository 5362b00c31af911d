"""``tessera top``: devices, shares and what is used of them, live."""

import sys
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from tessera.cli.devices import device_lines
from tessera.cli.exits import Exit
from tessera.cli.ps import run_lines
from tessera.local.machine import named_machine, open_driver
from tessera.local.view import MachineView, look_at

_EPILOG: Final = """\b
Examples:
  tessera top
  tessera top --simulate 1xA100-SXM4-80GB
  tessera top --once
"""


@click.command(epilog=_EPILOG)
@click.option("--simulate", metavar="MACHINE", help="A simulated machine: 1xA100-SXM4-80GB, 4xT4.")
@click.option("--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, metavar="SECONDS",
              help="Time between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one look and end; also what happens where there is no terminal.")
@click.option("-o", "--output", "style", type=click.Choice(("live", "json")), default="live", show_default=True,
              help="json prints one look as a document.")  # fmt: skip
def command(*, simulate: str | None, interval: float, once: bool, style: str) -> int:
    """Watch this machine's devices and the runs on them.

    Keys: n m l c d a sort the runs by name, memory used, memory limit, compute, device and age; q ends.
    """
    machine = named_machine(simulate)
    with open_driver(machine) as nvml:
        if style == "json":
            click.echo(msgspec.json.format(msgspec.json.encode(look_at(machine, nvml)), indent=2))
        elif once or not sys.stdout.isatty():
            click.echo("\n".join(frame(look_at(machine, nvml))))
        else:
            # The toolkit takes half a second to import: only the live view pays for it.
            from tessera.cli.live import TopApp  # noqa: PLC0415

            TopApp(lambda: look_at(machine, nvml), interval).run()
    return Exit.OK


def frame(view: MachineView) -> Iterator[str]:
    """One look as text: the devices, then the runs."""
    yield from device_lines(view)
    yield ""
    if view.runs:
        yield from run_lines(view.runs)
    else:
        yield "No runs."
