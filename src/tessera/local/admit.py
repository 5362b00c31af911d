"""Who gets a share now: the queue, the allocator, the book, in one transaction.

First come, first served: while an earlier run waits for devices that this one could take too, this one waits or
is refused, whatever is free. What waits for other models does not stand in the way. The decision itself is the
allocator's, on the ledger rebuilt from the book.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from tessera.allocator.fit import static_masks
from tessera.allocator.ledger import Ledger
from tessera.allocator.place import place, prospect
from tessera.allocator.plan import decide
from tessera.core.errors import InputErrors, Problem, UnavailableError
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.placement import Placed, Rejected
from tessera.core.request import Pod, Request
from tessera.local.ask import pod_of
from tessera.local.book import Book, Run
from tessera.local.repair import repair
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.proc import crash_point

_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")
POLICY: Final = POLICIES[DEFAULT_POLICY]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The run holds its share."""

    run: Run


@dataclass(frozen=True, slots=True)
class Declined:
    """Not now, and why: the allocator's reasons, or the runs that came first and wait for the same devices.

    ``snapshot`` and ``runs`` are what it was decided on. ``run`` is in the queue if it wanted to wait, unless it
    is ``hopeless``: it would not fit either if nobody held anything.
    """

    run: Run
    pod: Pod
    snapshot: Snapshot
    rejected: Rejected
    ahead: tuple[Run, ...]
    runs: tuple[Run, ...]
    hopeless: bool


Answer = Admitted | Declined


def admit(book: Book, fleet: Fleet, wanted: Run, *, wait: bool) -> Answer:
    """Give the run its share, or say why not; with ``wait``, it is in the queue then.

    Raises :class:`InputErrors` where its name is taken by a run that lives.
    """
    with book.change():
        runs = repair(book)
        wanted = replace(wanted, name=_free_name(wanted, runs))
        answer = judge(fleet, wanted, runs)
        crash_point("before-insert")
        if isinstance(answer, Admitted):
            book.add(answer.run)
        elif wait and not answer.hopeless:
            book.add(wanted)
        crash_point("after-insert")
    crash_point("after-commit")
    return answer


def readmit(book: Book, fleet: Fleet, uid: str) -> Answer:
    """Ask again for a run that waits. Raises :class:`UnavailableError` where it has left the queue."""
    with book.change():
        runs = repair(book)
        waiting = next((run for run in runs if run.uid == uid), None)
        if waiting is None:
            raise UnavailableError(f"run {uid} is not in the queue any more", "start it again")
        answer = judge(fleet, waiting, runs)
        if isinstance(answer, Admitted) and answer.run.placement is not None:
            book.place(uid, answer.run.placement, answer.run.why)
    return answer


def judge(fleet: Fleet, wanted: Run, runs: Sequence[Run]) -> Answer:
    """Whether the run could have its share now; nothing is changed."""
    pod = pod_of(wanted.ask, wanted.uid, wanted.name)
    snapshot = snapshot_of(fleet, runs)
    ahead = _ahead(fleet, pod, wanted, runs)
    decision = Rejected() if ahead else decide(snapshot, pod, POLICY)
    if isinstance(decision, Placed):
        return Admitted(replace(wanted, placement=decision.placement, why=_why(snapshot, pod)))
    hopeless = place(snapshot_of(fleet, ()), pod, POLICY) is None
    return Declined(wanted, pod, snapshot, decision, ahead, tuple(runs), hopeless)


def snapshot_of(fleet: Fleet, runs: Sequence[Run]) -> Snapshot:
    """The machine with what its runs hold."""
    return Ledger.rebuilt(fleet, (run.placement for run in runs if run.placement is not None)).snapshot()


def _ahead(fleet: Fleet, pod: Pod, wanted: Run, runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that wait since before this one and may need a device that it may need."""
    mine = static_masks(fleet).of(_request(pod).constraints)[1]
    return tuple(
        run
        for run in runs
        if run.waits
        and run.uid != wanted.uid
        and (not wanted.ticket or run.ticket < wanted.ticket)
        and (static_masks(fleet).of(_request(pod_of(run.ask, run.uid, run.name)).constraints)[1] & mine).any()
    )


def _request(pod: Pod) -> Request:
    assert pod.request is not None, "pod_of always writes a request"
    return pod.request


def _why(snapshot: Snapshot, pod: Pod) -> str:
    """How the devices were chosen, in words that stay true after the snapshot is gone."""
    fitting, total = int(prospect(snapshot, pod).counts[0][0]), len(snapshot.fleet.devices)
    wanted = _request(pod).claims[0].count
    if fitting == wanted:
        return f"of {total} devices, only {'this one' if wanted == 1 else 'these'} could host it"
    taken = "the fullest was taken" if wanted == 1 else "the fullest were taken"
    return f"{fitting} of {total} devices could host it; {taken}, which keeps the others as whole as they are"


def _free_name(wanted: Run, runs: Sequence[Run]) -> str:
    """The name that was asked for, or the command's with the first number that makes it unique."""
    taken = {run.name: run for run in runs}
    if not wanted.name:
        base = _ODD.sub("-", PurePath(wanted.command[0]).name)
        return next(name for n in range(1, len(taken) + 2) if (name := f"{base}-{n}") not in taken)
    holder = taken.get(wanted.name)
    if holder is not None:
        message = f"is the name of a run that lives (pid {holder.supervisor.pid}, {holder.user})"
        raise InputErrors([Problem("--name", "", "", wanted.name, message, "choose another name")])
    return wanted.name
