"""``tessera explain``: one run, what it asked for, where it is and why, or what it waits for."""

from collections.abc import Iterator
from typing import Final

import click
import msgspec
from click.shell_completion import CompletionItem

from tessera.cli.columns import columns, command_text, span
from tessera.core.priority import Priority
from tessera.core.units import render_mib, render_percent
from tessera.local.account import Account, account_of
from tessera.local.machine import known_machines
from tessera.local.view import ShareView, State, mended_runs

_STATES = {
    State.WAITING: "waits",
    State.STARTING: "starts",
    State.RUNNING: "runs",
    State.PAUSED: "is paused",
    State.UNWATCHED: "runs unwatched (its supervisor was killed; the share stays taken until its processes end)",
}
_EPILOG: Final = """\b
Examples:
  tessera explain train-1
  tessera explain train-1 -o json
"""


class RunName(click.ParamType[str]):
    """The name or id of a run, which completes to those that live."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """The names of the runs."""
        names = (run.name for machine in known_machines() for run in mended_runs(machine))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command(epilog=_EPILOG)
@click.argument("name", type=RunName())
@click.option("-o", "--output", "style", type=click.Choice(("table", "json")), default="table", show_default=True,
              help="What to print.")  # fmt: skip
def command(name: str, style: str) -> None:
    """Explain the run NAME (or its id): what was asked, what it has and uses, and why it is where it is.

    For a run that waits: what it waits for, who holds it, and the smallest change with which it would run now.
    """
    account = account_of(name)
    if style == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(account), indent=2))
    else:
        click.echo("\n".join(account_lines(account)))


def account_lines(account: Account) -> Iterator[str]:
    """The account for a person."""
    run = account.run
    simulated = " (simulated)" if run.simulated else ""
    yield f"{click.style(run.name, bold=True)} ({run.id}) {_STATES[run.state]} on {run.machine}{simulated}"
    yield ""
    yield _fact("asked", account.asked)
    yield _fact("command", command_text(run.command))
    processes = f"process {run.pid}, supervisor {run.supervisor_pid}"
    yield _fact("by", f"{run.user}, {processes}, for {span(run.age_seconds)}")
    if account.why_here:
        yield _fact("placed", account.why_here)
    yield from _devices(run.devices)
    for word, lines in (("waits for", account.waits_for), ("held", account.holders), ("note", account.notes)):
        yield from (_fact(word, line) for line in lines)
    if account.would_run_now:
        yield _fact("would run", "; or ".join(account.would_run_now))
    if run.processes:
        yield ""
        rows = [(str(p.pid), render_mib(p.memory_used_mib), p.command) for p in run.processes]
        yield from columns(("PROCESS", "USED", "COMMAND"), rows, (0, 1))


def _fact(word: str, text: str) -> str:
    label = f"{word}:"
    return f"{click.style(f'{label:<11}', fg='cyan')} {text}"


def _devices(shares: tuple[ShareView, ...]) -> Iterator[str]:
    for share in shares:
        limit = f"{render_mib(share.memory_limit_mib)}, {render_percent(share.compute_limit_milli)} of the compute"
        alone = ", nobody else on it" if share.exclusive else ""
        yield _fact("device", f"{share.index}, {share.model}, {share.uuid}")
        yield _fact("  limit", f"{limit}{alone}")
        used, peak = render_mib(share.memory_used_mib), render_mib(share.memory_peak_mib)
        yield _fact("  used", f"{used} now, {peak} at most")
        plural = "" if share.refused == 1 else "s"
        yield _fact("  refused", f"{share.refused:,} allocation{plural} that went past the limit")
        yield from _beside_others(share)


def _beside_others(share: ShareView) -> Iterator[str]:
    """What only some shares have: a priority, memory in the host, a device that was full."""
    if share.priority != Priority.MEDIUM.word:
        yield _fact("  priority", share.priority)
    if share.memory_spilled_mib:
        yield _fact("  spilled", f"{render_mib(share.memory_spilled_mib)} of it lie in host memory")
    if share.device_full:
        yield _fact("  full", f"{share.device_full:,} times the device was full below the limit")
