"""Who gets a share now: the queue, the allocator, the book, in one transaction.

First come, first served: while an earlier run waits for devices that this one could take too, this one waits or
is refused, whatever is free. What waits for other models does not stand in the way. The decision itself is the
allocator's, on the ledger rebuilt from the book.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from tessera.allocator.rules import passes
from tessera.allocator.single import OneNode
from tessera.core.device import Node
from tessera.core.errors import InputErrors, Problem, UnavailableError
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
    """Not now: there is no room, or runs that came first wait for the same devices (``ahead``).

    ``node`` and ``runs`` are what it was decided on; :mod:`tessera.local.refusal` finds the reasons in them.
    ``run`` is in the queue if it wanted to wait, unless it is ``hopeless``: it would not fit either if nobody
    held anything.
    """

    run: Run
    pod: Pod
    node: Node
    ahead: tuple[Run, ...]
    runs: tuple[Run, ...]
    hopeless: bool


Answer = Admitted | Declined


def admit(book: Book, node: Node, wanted: Run, *, wait: bool) -> Answer:
    """Give the run its share, or say why not; with ``wait``, it is in the queue then.

    Raises :class:`InputErrors` where its name is taken by a run that lives.
    """
    with book.change():
        runs = repair(book)
        wanted = replace(wanted, name=_free_name(wanted, runs))
        answer = judge(node, wanted, runs)
        crash_point("before-insert")
        if isinstance(answer, Admitted):
            book.add(answer.run)
        elif wait and not answer.hopeless:
            book.add(wanted)
        crash_point("after-insert")
    crash_point("after-commit")
    return answer


def readmit(book: Book, node: Node, uid: str) -> Answer:
    """Ask again for a run that waits. Raises :class:`UnavailableError` where it has left the queue."""
    with book.change():
        runs = repair(book)
        waiting = next((run for run in runs if run.uid == uid), None)
        if waiting is None:
            raise UnavailableError(f"run {uid} is not in the queue any more", "start it again")
        answer = judge(node, waiting, runs)
        if isinstance(answer, Admitted) and answer.run.placement is not None:
            book.place(uid, answer.run.placement, answer.run.why)
    return answer


def judge(node: Node, wanted: Run, runs: Sequence[Run]) -> Answer:
    """Whether the run could have its share now; nothing is changed."""
    pod = pod_of(wanted.ask, wanted.uid, wanted.name)
    present = OneNode(node, (run.placement for run in runs if run.placement is not None))
    ahead = _ahead(node, pod, wanted, runs)
    placement = None if ahead else present.place(pod, POLICY)
    if placement is not None:
        return Admitted(replace(wanted, placement=placement, why=_why(present, pod)))
    hopeless = OneNode(node, ()).place(pod, POLICY) is None
    return Declined(wanted, pod, node, ahead, tuple(runs), hopeless)


def _ahead(node: Node, pod: Pod, wanted: Run, runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that wait since before this one and may need a device that it may need."""
    mine = _candidates(node, pod)
    return tuple(
        run
        for run in runs
        if run.waits
        and run.uid != wanted.uid
        and (not wanted.ticket or run.ticket < wanted.ticket)
        and not mine.isdisjoint(_candidates(node, pod_of(run.ask, run.uid, run.name)))
    )


def waiting_for(node: Node, uuids: Collection[str], runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that wait and may need one of these devices."""
    return tuple(
        run
        for run in runs
        if run.waits and not _candidates(node, pod_of(run.ask, run.uid, run.name)).isdisjoint(uuids)
    )


def _candidates(node: Node, pod: Pod) -> frozenset[str]:
    """The devices that the pod could ever get, whatever is used of them."""
    return frozenset(device.uuid for device in node.devices if passes(device, _request(pod).constraints))


def _request(pod: Pod) -> Request:
    assert pod.request is not None, "pod_of always writes a request"
    return pod.request


def _why(present: OneNode, pod: Pod) -> str:
    """How the devices were chosen, in words that stay true after the moment is gone."""
    fitting, total = len(present.fitting(pod)), len(present.node.devices)
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
