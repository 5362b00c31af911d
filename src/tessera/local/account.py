"""The account of one run for ``tessera explain``: what was asked, what it got and why, or what it waits for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tessera.core.errors import InputErrors, Problem
from tessera.local.admit import Declined, judge
from tessera.local.ask import Ask, ask_text
from tessera.local.book import Run, grants_of
from tessera.local.machine import Machine, known_machines, node_of, open_driver
from tessera.local.refusal import changes, holder_lines, reasons
from tessera.local.repair import read_region
from tessera.local.view import RunView, mended_runs, run_view
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

    Raises :class:`InputErrors` where there is none, or one on several machines.
    """
    found = [(machine, run, runs) for machine, run, runs in _all_runs() if name in (run.name, run.uid)]
    if len(found) != 1:
        raise InputErrors([_not_one(name, [run for _, run, _ in found], [run.name for _, run, _ in _all_runs()])])
    machine, run, runs = found[0]
    return _waiting(machine, run, runs) if run.waits else _holding(machine, run)


def _all_runs() -> Iterator[tuple[Machine, Run, tuple[Run, ...]]]:
    for machine in known_machines():
        runs = mended_runs(machine)
        yield from ((machine, run, runs) for run in runs)


def _not_one(name: str, found: Iterable[Run], names: Iterable[str]) -> Problem:
    ids = ", ".join(run.uid for run in found)
    if ids:
        return Problem("explain", "", "", name, "is the name of several runs", f"name one by its id: {ids}")
    listed = ", ".join(names)
    remedy = f"there are: {listed}" if listed else "there are no runs"
    return Problem("explain", "", "", name, "is no run", remedy)


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
