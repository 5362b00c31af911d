"""``tessera run`` from its options to its exit code: check, ask, wait, start, stay.

The order is what makes every crash repairable: everything that can be checked is checked before the book is
touched; the run is in the book before its region exists; the region exists before the command does.
"""

import os
import pwd
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from tessera.core.errors import InputErrors, Problem, UnavailableError
from tessera.local.admit import Admitted, Answer, Declined, admit
from tessera.local.ask import Ask, check_ask
from tessera.local.book import Book, Run, grants_of, open_book, region_path
from tessera.local.launch import (
    REGION_VARIABLE,
    RUN_VARIABLE,
    Command,
    environment_of_run,
    find_program,
    require_libraries,
)
from tessera.local.machine import named_machine, node_of, open_driver
from tessera.local.repair import limits_of
from tessera.local.supervise import Supervisor, Terms
from tessera.local.wait import wait_for
from tessera.local.words import COMPUTE_NOTE, has_compute_limit, run_text
from tessera.local.yielding import set_standings
from tessera.runtime.elf import preload_obstacle
from tessera.runtime.native import create_region
from tessera.runtime.nvml import Inventory, Nvml
from tessera.runtime.proc import crash_point, own_identity

REFUSED: Final = 1
_REFUSAL: Final = "tessera.local.refusal"
"""Imported only where a run is refused or waits: it loads the allocator's arrays."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that was said on the command line. ``wait_seconds`` is ``None`` for as long as it takes."""

    ask: Ask
    words: tuple[str, ...]
    name: str | None = None
    wait: bool = False
    wait_seconds: float | None = None
    simulate: str | None = None
    allow_unlimited: bool = False
    quiet: bool = False


def run_command(options: Options, inherited: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run the command under its share; its exit code, or 1 with the reasons said where there is no room.

    Raises :class:`InputErrors`, :class:`UnavailableError` and :class:`~tessera.local.launch.CommandError`.
    """
    _check(options, inherited)
    program = find_program(options.words[0])
    require_libraries(simulated=options.simulate is not None)
    machine = named_machine(options.simulate)
    with open_driver(machine) as nvml, open_book(machine) as book:
        inventory = nvml.inventory()
        answer = _ask(book, inventory, options, say)
        if isinstance(answer, Declined):
            return _refuse(answer, inventory, say)
        run = answer.run
        if not options.quiet:
            _say_start(book, run, say)
        obstacle = preload_obstacle(program)
        if obstacle:
            say(f"note: {options.words[0]} cannot be limited ({obstacle}); it is stopped if it uses a device"
                + (", but for --allow-unlimited" if options.allow_unlimited else ""))  # fmt: skip
        command = Command(program, options.words, environment_of_run(machine, run, inherited))
        return _supervise(book, run, nvml, Terms(options.allow_unlimited, say), command)


def _check(options: Options, inherited: Mapping[str, str]) -> None:
    check_ask(options.ask)
    if options.name is not None and not _NAME.fullmatch(options.name):
        message, remedy = "is no name", "use up to 63 letters, digits, dots, dashes and underscores"
        raise InputErrors([Problem("--name", "", "", options.name, message, remedy)])
    if inherited.get(REGION_VARIABLE):
        what = f"this is inside of run {inherited.get(RUN_VARIABLE, '')} already"
        raise UnavailableError(what, "start the command itself: it shares the share of that run")


def _ask(book: Book, inventory: Inventory, options: Options, say: Callable[[str], None]) -> Answer:
    node = node_of(book.machine, inventory)
    wanted = Run(
        uid=os.urandom(4).hex(),
        name=options.name or "",
        user=_user(),
        command=options.words,
        ask=options.ask,
        supervisor=own_identity(),
        created=time.time(),
    )
    answer = admit(book, node, wanted, wait=options.wait)
    if isinstance(answer, Admitted) or not options.wait or answer.hopeless:
        return answer
    title = answer.run.name + (" (simulated)" if book.machine.is_simulated else "")
    refusal = import_module(_REFUSAL)
    say(f"{title} waits: {'; '.join(refusal.reasons(answer))}")
    return wait_for(book, node, answer, options.wait_seconds)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _refuse(declined: Declined, inventory: Inventory, say: Callable[[str], None]) -> int:
    for line in import_module(_REFUSAL).refusal_lines(declined):
        say(line)
    for fault in inventory.faults:
        say(f"  set aside: device {fault.index}: {fault.why}")
    return REFUSED


def _say_start(book: Book, run: Run, say: Callable[[str], None]) -> None:
    simulated = " (simulated)" if book.machine.is_simulated else ""
    say(f"{run.name}{simulated}: {run_text(run)}")
    if has_compute_limit(run):
        say(f"note: {COMPUTE_NOTE}")


def _supervise(book: Book, run: Run, nvml: Nvml, terms: Terms, command: Command) -> int:
    path = region_path(book.machine, run.uid)
    try:
        create_region(path, run.uid, limits_of(run))
        set_standings(path, grants_of(run))
        crash_point("after-region")
        return Supervisor(book, run, nvml, terms).run(command)
    finally:
        # The supervisor has released it, unless it never came that far.
        with book.change():
            book.remove(run.uid)
        path.unlink(missing_ok=True)
