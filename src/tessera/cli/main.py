"""``tessera``: the table of verbs. A verb's module is imported only when that verb is called.

``tessera --help`` must stay fast and must work on a machine without a driver, so this module imports nothing
of Tessera but the table below and the exit codes. A verb is a module ``tessera.cli.<verb>`` with a click
command named ``command``, whose callback returns an exit code or ``None``.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tessera import __version__
from tessera.cli.exits import exit_code, quiet_pipe


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives and what the list of verbs says about it."""

    module: str
    summary: str


VERBS: Final[Mapping[str, Verb]] = {
    "plan": Verb("tessera.cli.plan", "Place manifests on a fleet and explain every yes and every no."),
    "devices": Verb("tessera.cli.devices", "List this machine's devices and what is free on them."),
    "run": Verb("tessera.cli.run", "Run one command under a share of this machine's devices."),
    "ps": Verb("tessera.cli.ps", "List who holds which share of this machine."),
    "top": Verb("tessera.cli.top", "Watch devices, shares and processes live."),
    "explain": Verb("tessera.cli.explain", "Explain one run: what it asked for and what it has."),
    "resize": Verb("tessera.cli.resize", "Change the share of a run while it runs."),
    "pause": Verb("tessera.cli.pause", "Hold the launches of a run."),
    "resume": Verb("tessera.cli.resume", "Let a paused run go on."),
    "kubectl": Verb("tessera.cli.kubectl", "Look at a cluster; the same as `kubectl tessera`."),
    "webhook": Verb("tessera.cli.webhook", "Admit pods of every dialect (a process of a cluster)."),
    "scheduler": Verb("tessera.cli.scheduler", "Place pods beside kube-scheduler (a process of a cluster)."),
    "agent": Verb("tessera.cli.agent", "Hand out and watch a node's devices (a process of a cluster)."),
    "completion": Verb("tessera.cli.completion", "Print the completion script of a shell."),
}

_EPILOG: Final = """\b
Examples:
  tessera plan -f manifests/ --fleet 4x8xA100-SXM4-80GB
  tessera plan -f pod.yaml --fleet fleet.yaml -o json
  tessera run --memory 8Gi --compute 30% -- python train.py
  tessera plan --help

\b
Exit codes: 0 done, 1 rejected or unavailable, 2 invalid input.
"""


class VerbGroup(click.Group):
    """A group that knows its verbs by table, and ends every call in one way."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- ditto
        """The verb's command, imported now; ``None`` where there is no such verb."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = import_module(verb.module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.module}.command is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown verb meets the table's nearest."""
        word = args[0]
        if word in VERBS or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = get_close_matches(word, VERBS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(VERBS)}."
        raise click.UsageError(f"there is no verb {word!r}; {hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- ditto
        """The list of verbs, from the table alone."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs and options that start with ``incomplete``, from the table alone."""
        verbs = [
            CompletionItem(name, help=verb.summary) for name, verb in VERBS.items() if name.startswith(incomplete)
        ]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """As click does; ``--help`` and ``--version`` write here."""
        with quiet_pipe():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; the verbs write here."""
        with quiet_pipe():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; with ``standalone_mode=False``, run and return or raise, as click does."""
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        sys.exit(exit_code(run))


def _colour() -> bool | None:
    """``False`` where colour is unwanted everywhere, ``None`` to let each stream decide by being a terminal.

    Source: no-color.org, which asks for any non-empty value.
    """
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


@click.group(
    name="tessera",
    cls=VerbGroup,
    subcommand_metavar="VERB [ARGS]...",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "color": _colour()},
)
@click.version_option(__version__, "-V", "--version", message="tessera %(version)s")
def cli() -> None:
    """Share accelerators: place pods on fractions of devices, and run commands under a limit.

    `plan` reads Kubernetes manifests as they are, in Tessera's own notation, HAMi's or TensorFusion's,
    and needs no cluster. The other verbs work on the devices of this machine.
    """


def main() -> None:
    """Entry point of the installed command."""
    cli(prog_name="tessera")
