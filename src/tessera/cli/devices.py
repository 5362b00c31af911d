"""``tessera devices``: this machine's devices and what is free on them."""

from collections.abc import Iterator
from typing import Final

import click
import msgspec

from tessera.cli.columns import columns, gib, percent
from tessera.local.machine import named_machine, open_driver
from tessera.local.view import DeviceView, MachineView, look_at

_HEADER: Final = (
    "DEVICE", "MODEL", "MEMORY", "ALLOCATED", "FREE", "IN USE", "COMPUTE", "SHARES", "NUMA", "HEALTH", "ISOLATION",
    "UUID",
)  # fmt: skip
_NUMBERS: Final = (0, 2, 3, 4, 5, 6, 7, 8)
_EPILOG: Final = """\b
Examples:
  tessera devices
  tessera devices --simulate 4xT4
  tessera devices -o json | jq '.devices[].memory_free_mib'
"""


@click.command(epilog=_EPILOG)
@click.option("--simulate", metavar="MACHINE", help="A simulated machine: 1xA100-SXM4-80GB, 4xT4.")
@click.option("-o", "--output", "style", type=click.Choice(("table", "json")), default="table", show_default=True,
              help="What to print.")  # fmt: skip
def command(simulate: str | None, style: str) -> None:
    """List this machine's devices and what is allocated and free on each.

    ALLOCATED and FREE are what runs reserved and what is left to reserve; IN USE is what the driver counts, by
    whomever. COMPUTE is the part that is reserved.
    """
    machine = named_machine(simulate)
    with open_driver(machine) as nvml:
        view = look_at(machine, nvml)
    if style == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(view), indent=2))
    else:
        click.echo("\n".join(device_lines(view)))


def device_lines(view: MachineView) -> Iterator[str]:
    """The machine as a table, with what was set aside."""
    simulated = " (simulated)" if view.simulated else ""
    driver = f", driver {view.driver}" if view.driver else ""
    count = "no devices" if not view.devices else f"{len(view.devices)} device{'s' * (len(view.devices) > 1)}"
    yield f"{click.style(view.machine, bold=True)}{simulated}: {count}{driver}"
    if view.devices:
        yield ""
        yield from columns(_HEADER, [_row(device) for device in view.devices], _NUMBERS)
    for fault in view.set_aside:
        yield f"{click.style('set aside:', fg='yellow')} device {fault.index}: {fault.why}"


def _row(device: DeviceView) -> tuple[str, ...]:
    return (
        str(device.index),
        device.model,
        gib(device.memory_mib),
        "whole" if device.exclusive else gib(device.memory_allocated_mib),
        gib(device.memory_free_mib),
        "-" if device.memory_used_mib is None else gib(device.memory_used_mib),
        percent(device.compute_allocated_milli),
        str(device.shares),
        "-" if device.numa is None else str(device.numa),
        "healthy" if device.healthy else "unhealthy",
        device.isolation,
        device.uuid,
    )
