"""The account of one run for ``tessera explain``: what was asked, what it got and why, or what it waits for."""

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.local.admit import Declined, judge
from tessera.local.ask import Ask, ask_text
from tessera.local.book import Run, grants_of
from tessera.local.find import find_run
from tessera.local.machine import Machine, node_of, open_driver
from tessera.local.refusal import changes, holder_lines, reasons
from tessera.local.repair import read_region
from tessera.local.view import RunView, run_view
from tessera.local.words import COMPUTE_NOTE, has_compute_limit


@dataclass(frozen=True, slots=True)
class Account:
    """One run, explained. The lists are empty where there is nothing of the kind to say."""

    run: RunView
    ask: Ask
    asked: str
    why_here: str
    waits_for: tuple[str, ...]
    would_run_now: tuple[str, ...]
    holders: tuple[str, ...]
    notes: tuple[str, ...]


def account_of(name: str) -> Account:
    """The account of the run of this name or id on any machine of the state directory.

    Raises :class:`~tessera.core.errors.InputErrors` where there is none, or one on several machines.
    """
    found = find_run(name, "explain")
    return (
        _waiting(found.machine, found.run, found.runs) if found.run.waits else _holding(found.machine, found.run)
    )


def _holding(machine: Machine, run: Run) -> Account:
    return Account(
        run=run_view(machine, run),
        ask=run.ask,
        asked=ask_text(run.ask),
        why_here=run.why,
        waits_for=(),
        would_run_now=(),
        holders=(),
        notes=tuple(_notes(machine, run)),
    )


def _notes(machine: Machine, run: Run) -> Iterator[str]:
    if has_compute_limit(run):
        yield COMPUTE_NOTE
    region = read_region(machine, run.uid)
    if region is None:
        yield "its shared region cannot be read: what it uses is not known"
        return
    for grant, device in zip(grants_of(run), region.devices, strict=True):
        if device.compute.throttled:
            waited = device.compute.throttled_ns / 1e9
            yield (
                f"{device.compute.throttled:,} launches on device {grant.index} waited for the compute limit, "
                f"{waited:,.1f} s in all"
            )
    if region.paused:
        yield f"it is paused: no launch begins before 'tessera resume {run.name}'"
    if region.full:
        yield f"{region.full} processes were refused because all process slots of the share were taken"


def _waiting(machine: Machine, run: Run, runs: tuple[Run, ...]) -> Account:
    with open_driver(machine) as nvml:
        answer = judge(node_of(machine, nvml.inventory()), run, runs)
    declined = answer if isinstance(answer, Declined) else None
    return Account(
        run=run_view(machine, run),
        ask=run.ask,
        asked=ask_text(run.ask),
        why_here="",
        waits_for=tuple(reasons(declined)) if declined else ("nothing any more: it is about to start",),
        would_run_now=tuple(changes(declined)) if declined and not declined.ahead else (),
        holders=tuple(holder_lines(runs)),
        notes=(),
    )
