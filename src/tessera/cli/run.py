"""``tessera run``: one command under a share of this machine's devices."""

import os
import re
from contextlib import suppress
from typing import Final

# Before anything imports numpy: its thread pools cost start-up time, and a process that forks is better off
# without threads. The command gets the environment as it was.
INHERITED: Final = dict(os.environ)
for _pool in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")

import click  # noqa: E402

from tessera.local.ask import Ask  # noqa: E402
from tessera.local.launch import CommandError  # noqa: E402
from tessera.local.session import Options, run_command  # noqa: E402

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_EPILOG: Final = """\b
Shares:
  nothing said           whole devices, with nobody else on them
  --memory 8Gi           8 GiB of each device (8192Mi, 8G or 25% as well); no compute is reserved
  --compute 30%          30% of each device's compute, and of its memory unless --memory says otherwise

\b
Examples:
  tessera run --memory 8Gi -- python train.py
  tessera run --memory 25% --compute 25% --name eval --wait --timeout 10m -- ./eval.sh
  tessera run --devices 2 --model A100 -- torchrun --nproc-per-node 2 train.py
  tessera run --simulate 4xT4 --memory 4Gi -- ./tenant

\b
Exit codes: the command's own (128 + n when signal n ended it); 1 no room, 2 invalid options,
126 the command cannot be executed, 127 there is no such command.
"""


class Duration(click.ParamType[float]):
    """A time span: ``90``, ``90s``, ``10m``, ``2h``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The span in seconds."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration; write 90s, 10m or 2h", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


@click.command(epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--memory", metavar="AMOUNT", help="Memory of each device: 8Gi, 8192Mi, 8G, 25%.")
@click.option("--compute", metavar="PERCENT", help="Compute of each device: 30%.")
@click.option("--memory-limit", metavar="AMOUNT", help="Up to so much while nobody requested it: 12Gi.")
@click.option("--spill", metavar="AMOUNT", help="So much may lie in host memory while the device is full: 4Gi.")
@click.option("--priority", metavar="LEVEL", help="Who goes first on a device: low, medium, high, critical.")
@click.option("--devices", type=int, default=1, show_default=True, metavar="N", help="How many devices.")
@click.option("--model", metavar="MODEL", help="Only devices of this model: A100, T4, a part of the name.")
@click.option("--name", metavar="NAME", help="Name of the run; the command's name and a number without it.")
@click.option("--wait", is_flag=True, help="Wait for a share instead of giving up; first come, first served.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="Give up waiting after this: 90s, 10m, 2h.")
@click.option("--simulate", metavar="MACHINE", help="A simulated machine instead: 1xA100-SXM4-80GB, 4xT4.")
@click.option("--allow-unlimited", is_flag=True, help="Only warn about programs that the limit cannot hold.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about a run that starts.")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...")
def command(  # noqa: PLR0913 -- one argument an option
    *,
    memory: str | None,
    compute: str | None,
    memory_limit: str | None,
    spill: str | None,
    priority: str | None,
    devices: int,
    model: str | None,
    name: str | None,
    wait: bool,
    timeout: float | None,
    simulate: str | None,
    allow_unlimited: bool,
    quiet: bool,
    words: tuple[str, ...],
) -> int:
    """Run COMMAND under a share of this machine's devices.

    The share is charged against the devices, so that what several runs ask for never exceeds what there is, and
    its limits hold for COMMAND and everything that it starts. It is given back when COMMAND is over.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long --wait waits; give both")
    options = Options(
        Ask(devices, memory, compute, model, memory_limit, spill, priority),
        words,
        name,
        wait,
        timeout,
        simulate,
        allow_unlimited,
        quiet,
    )
    try:
        return run_command(options, INHERITED, _say)
    except CommandError as error:
        _say(str(error))
        return error.code


def _say(line: str) -> None:
    # Nobody may listen any more (`2>&1 | head`); that is no reason to end the command.
    with suppress(OSError):
        click.echo(f"tessera: {line}", err=True)
