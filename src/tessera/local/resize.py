"""``tessera resize``: another share for a run while it runs, on the devices that it has.

The book is what counts, and at no moment does a region allow more than the book says: what shrinks is put in force
first, then the book is changed, then what grows is put in force. Whoever is killed on the way leaves a region that
allows too little, and the next call, or the run's own supervisor, sets it to the book
(:func:`~tessera.local.repair.enforce`).

* Growth needs room that nobody holds and nobody waited for first.
* A limit below what is in use would take nothing back and refuse everything, so it is refused itself. What a
  process allocates between that look and the limit makes the change undone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tessera.allocator.resize import Short, grows, placed_again, room_of, shortages
from tessera.core.device import Node
from tessera.core.errors import InputErrors, Problem, UnavailableError
from tessera.core.placement import Grant, Placement
from tessera.core.units import BYTES_PER_MIB
from tessera.local.admit import waiting_for
from tessera.local.ask import Ask, check_ask, pod_of, resized_ask
from tessera.local.book import Book, Run, grants_of, open_book, region_path
from tessera.local.find import find_run
from tessera.local.machine import node_of, open_driver
from tessera.local.repair import enforce_now, is_revoked, limits_of, read_region, repair
from tessera.runtime.limits import Excess, tighten
from tessera.runtime.native import LiveRegion
from tessera.runtime.proc import crash_point


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to change, as it was typed; ``None`` for what stays."""

    memory: str | None
    compute: str | None


@dataclass(frozen=True, slots=True)
class Resized:
    """It is in force."""

    run: Run


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The devices have no room for the growth of a run, or runs that waited first may need it (``ahead``)."""

    run: Run
    ask: Ask
    shorts: tuple[Short, ...]
    ahead: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """A device of which a run uses more than it would be allowed; MiB, what is used rounded up."""

    index: int
    used_mib: int
    limit_mib: int


@dataclass(frozen=True, slots=True)
class InUse:
    """The run uses more than the smaller share would allow."""

    run: Run
    held: tuple[Held, ...]


Outcome = Resized | NoRoom | InUse


def resize_run(name: str, wish: Wish) -> Outcome:
    """Change the share of a run, or say why not.

    Raises :class:`InputErrors` for a wish that cannot be read and a name that is no run's, and
    :class:`UnavailableError` where the run has no share that could be changed now.
    """
    if wish == Wish(None, None):
        raise InputErrors(
            [Problem("resize", "", "", "", "says nothing to change", "give --memory, --compute or both")]
        )
    check_ask(Ask(1, wish.memory, wish.compute))
    found = find_run(name, "resize")
    with open_driver(found.machine) as nvml, open_book(found.machine) as book:
        return resize(book, node_of(found.machine, nvml.inventory()), found.run.uid, wish)


def resize(book: Book, node: Node, uid: str, wish: Wish) -> Outcome:
    """As :func:`resize_run`, for a run of an open book."""
    with book.change():
        runs = repair(book)
        run = next((run for run in runs if run.uid == uid), None)
        if run is None:
            raise UnavailableError(f"run {uid} is over", "start it again with the share that it needs")
        outcome: Outcome = _decide(book, node, run, wish, runs)
        if isinstance(outcome, Resized):
            outcome = _tighten(book, run, outcome)
        if isinstance(outcome, Resized):
            _write(book, outcome.run)
    crash_point("after-commit-resize")
    if isinstance(outcome, Resized):
        with book.change():  # it may have been changed again meanwhile: what the book says now is what holds
            enforce_now(book, uid)
        crash_point("after-resize")
    return outcome


def _write(book: Book, run: Run) -> None:
    assert run.placement is not None, "who holds nothing is not resized"
    crash_point("after-tighten")
    book.resize(run.uid, run.ask, run.placement)
    crash_point("before-commit-resize")


def _decide(book: Book, node: Node, run: Run, wish: Wish, runs: Sequence[Run]) -> Resized | NoRoom:
    """What would come of it as far as room goes; changes nothing."""
    ask = resized_ask(run.ask, wish.memory, wish.compute)
    before, after = _again(book, node, run, ask)
    placements = [one.placement for one in runs if one.placement is not None]
    room = {device.uuid: room_of(device, run.uid, placements) for device in node.devices}
    shorts = shortages(before, after, room)
    ahead = waiting_for(node, {charge.uuid for charge in after.charges if grows(before, charge)}, runs)
    return NoRoom(run, ask, shorts, ahead) if shorts or ahead else Resized(replace(run, ask=ask, placement=after))


def _again(book: Book, node: Node, run: Run, ask: Ask) -> tuple[Placement, Placement]:
    """What the run holds, and what it would. Raises :class:`UnavailableError` where nothing can be changed now."""
    if run.placement is None:
        raise UnavailableError(f"run {run.name} waits and holds nothing yet", "end it, and ask for another share")
    region = read_region(book.machine, run.uid)
    if region is None:
        what = f"run {run.name} has no region that can be read: it begins just now, or its files were removed"
        raise UnavailableError(what, "try again in a moment")
    if is_revoked(region):
        raise UnavailableError(f"run {run.name} is ending", "start it again with the share that it needs")
    devices = {device.uuid: device for device in node.devices}
    placement = placed_again(pod_of(ask, run.uid, run.name), run.placement, devices)
    if placement is None:
        raise UnavailableError(
            f"a device of run {run.name} is gone", "'tessera devices' lists those that are there"
        )
    return run.placement, placement


def _tighten(book: Book, run: Run, outcome: Resized) -> Resized | InUse:
    """Put in force what shrinks; undone where more is in use by then than the new limit."""
    crash_point("before-resize")
    changed = outcome.run
    before, after = limits_of(run), limits_of(changed)
    with LiveRegion(region_path(book.machine, changed.uid), len(after)) as region:
        region.reap()  # what the dead held is in nobody's use
        excess = tighten(region, before, after)
    held = tuple(_held(grants_of(changed)[one.device], one) for one in excess)
    return InUse(run, held) if held else outcome


def _held(grant: Grant, excess: Excess) -> Held:
    return Held(grant.index, -(-excess.used // BYTES_PER_MIB), grant.share.memory_limit)


def pause_run(name: str, *, paused: bool) -> Run:
    """Hold every launch of a run, or let them go on; gives the run. What is under way goes on either way.

    Raises as :func:`resize_run`.
    """
    found = find_run(name, "pause" if paused else "resume")
    run = found.run
    if run.waits:
        raise UnavailableError(f"run {run.name} waits and has not begun", "Ctrl-C ends its waiting")
    with open_book(found.machine) as book, book.change():
        path = region_path(found.machine, run.uid)
        with LiveRegion(path, len(grants_of(run))) as region:
            region.pause(paused=paused)
    return run
