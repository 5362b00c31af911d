"""The run that somebody means by a name or an id, on whichever machine of the state directory it is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tessera.core.errors import InputErrors, Problem
from tessera.local.book import Run
from tessera.local.machine import Machine, known_machines
from tessera.local.view import mended_runs


@dataclass(frozen=True, slots=True)
class Found:
    """A run, its machine, and all runs there."""

    machine: Machine
    run: Run
    runs: tuple[Run, ...]


def find_run(name: str, verb: str) -> Found:
    """The run of this name or id; ``verb`` is what asks.

    Raises :class:`InputErrors` where there is none, or one on several machines.
    """
    every = tuple(_all_runs())
    found = [one for one in every if name in (one.run.name, one.run.uid)]
    if len(found) != 1:
        raise InputErrors([_not_one(name, verb, [one.run for one in found], [one.run.name for one in every])])
    return found[0]


def _all_runs() -> Iterator[Found]:
    for machine in known_machines():
        runs = mended_runs(machine)
        yield from (Found(machine, run, runs) for run in runs)


def _not_one(name: str, verb: str, found: Iterable[Run], names: Iterable[str]) -> Problem:
    ids = ", ".join(run.uid for run in found)
    if ids:
        return Problem(verb, "", "", name, "is the name of several runs", f"name one by its id: {ids}")
    listed = ", ".join(names)
    remedy = f"there are: {listed}" if listed else "there are no runs"
    return Problem(verb, "", "", name, "is no run", remedy)
