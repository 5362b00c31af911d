"""A pod and the verdict on it to the JSON patch that makes it Tessera's: as small as it can be, and empty the
second time.

Written are the canonical request, the label by which agents and people select, the scheduler's name and one ticket
for each container that holds devices. Taken away is what only Tessera may write. What the user asked for stays.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tessera.core.ticket import PREFIX, QUANTITIES, TICKETS, Ticket, ticket_of
from tessera.wire.fields import Findings
from tessera.wire.kube.jsonpatch import Operation, add, pointer, remove
from tessera.wire.kube.names import DECISIONS, MANAGED, REQUEST
from tessera.wire.kube.podview import (
    ContainerView,
    MetaView,
    PodView,
    ResourcesView,
    SpecView,
    forgeable,
    tickets_in,
)
from tessera.wire.kube.verdict import Options, Verdict

NextTicket = Callable[[], Ticket]
"""Where the next ticket comes from."""

_LABEL: Final = MANAGED[0]
_SIDES: Final = ("limits", "requests")
_NOT_BELIEVED: Final = "is written by Tessera only and was taken away"

BLANK_KEY: Final = "#"
BLANK_QUANTITY: Final = "@"
_BLANK: Final = {PREFIX + BLANK_KEY: BLANK_QUANTITY}


class Tickets:
    """Tickets in turn, from ``start`` on and round the end. Which one a container gets decides nothing but who may
    wait on one node at the same time, so several sources need not know of each other.
    """

    def __init__(self, start: int) -> None:
        self._number = start % TICKETS

    def __call__(self) -> Ticket:
        """The next one."""
        ticket = Ticket(self._number)
        self._number = (self._number + 1) % TICKETS
        return ticket


@dataclass(frozen=True, slots=True)
class _Draft:
    """The patch so far, and what the user should know about it."""

    operations: list[Operation] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)


def mutate(
    pod: PodView, verdict: Verdict, next_ticket: NextTicket, options: Options
) -> tuple[tuple[Operation, ...], Findings]:
    """What to change on ``pod``, and what of it the user should know. ``verdict`` must be without errors.

    Tickets on a pod that carries our request already are ours, and stay: whoever changed the pod in between has it
    reviewed again. Anybody may copy them from another pod, and then waits until that one's ticket is free.
    """
    draft = _Draft()
    meta, spec = pod.metadata or MetaView(), pod.spec or SpecView()
    admitted = REQUEST in (meta.annotations or {}) and (meta.labels or {}).get(_LABEL) == MANAGED[1]
    _write_records(meta, spec, verdict, options, draft)
    _write_tickets(spec, verdict, next_ticket, draft, admitted=admitted)
    return tuple(draft.operations), draft.findings


@dataclass(frozen=True, slots=True)
class Outline:
    """What :func:`mutate` does to every pod of one content, but for the tickets.

    ``blanks`` is what gives one container its ticket, one element a holder, after the ``operations``; it has
    :data:`BLANK_KEY` and :data:`BLANK_QUANTITY` where key and quantity of the ticket go, and nowhere else.
    """

    operations: tuple[Operation, ...]
    findings: Findings
    blanks: tuple[tuple[Operation, ...], ...]


def outline(content: PodView, verdict: Verdict, options: Options) -> Outline:
    """What to change on a pod of this content that brings nothing which only Tessera writes."""
    draft = _Draft()
    spec = content.spec or SpecView()
    _write_records(content.metadata or MetaView(), spec, verdict, options, draft)
    blanks = []
    for key, place, container in spec.located():
        if verdict.request is not None and container.name in verdict.holders:
            blank = _Draft()
            _add_ticket(container.resources, ("spec", key, place, "resources"), _BLANK, blank)
            blanks.append(tuple(blank.operations))
    return Outline(tuple(draft.operations), draft.findings, tuple(blanks))


# metadata


def _write_records(meta: MetaView, spec: SpecView, verdict: Verdict, options: Options, draft: _Draft) -> None:
    _write_annotations(meta, verdict, draft)
    _write_label(meta, verdict, draft)
    if verdict.request is not None and (spec.scheduler_name or "") != options.scheduler_name:
        draft.operations.append(add("/spec/schedulerName", options.scheduler_name))


def _write_annotations(meta: MetaView, verdict: Verdict, draft: _Draft) -> None:
    given = meta.annotations or {}
    for key in given:
        if forgeable(key) and not (key == REQUEST and verdict.request is not None):
            draft.operations.append(remove(pointer("metadata", "annotations", key)))
            if key in DECISIONS or verdict.request is None:
                draft.findings.warn(f"annotations[{key}]", "", _NOT_BELIEVED, "leave it out")
    if verdict.request is None or given.get(REQUEST) == verdict.request:
        return
    if REQUEST in given:
        message = "is written by Tessera only and was replaced by what the pod asks for"
        draft.findings.warn(f"annotations[{REQUEST}]", "", message, "leave it out")
    _put(draft, ("metadata", "annotations"), meta.annotations, {REQUEST: verdict.request})


def _write_label(meta: MetaView, verdict: Verdict, draft: _Draft) -> None:
    value = (meta.labels or {}).get(_LABEL)
    if verdict.request is not None and value != MANAGED[1]:
        _put(draft, ("metadata", "labels"), meta.labels, dict([MANAGED]))
    elif verdict.request is None and value is not None:
        draft.operations.append(remove(pointer("metadata", "labels", _LABEL)))
        draft.findings.warn(f"labels[{_LABEL}]", value, _NOT_BELIEVED, "leave it out")


def _put(
    draft: _Draft, at: tuple[str | int, ...], there: Mapping[str, object] | None, pairs: Mapping[str, object]
) -> None:
    """Add ``pairs`` to the map at a path, which is made where it is not ``there``."""
    if there is None:
        draft.operations.append(add(pointer(*at), dict(pairs)))
    else:
        draft.operations.extend(add(pointer(*at, key), value) for key, value in pairs.items())


# tickets


def _write_tickets(
    spec: SpecView, verdict: Verdict, next_ticket: NextTicket, draft: _Draft, *, admitted: bool
) -> None:
    kept = _kept(spec, verdict) if admitted else {}
    taken = set(kept.values())
    for key, place, container in spec.located():
        if container.name in kept:
            continue
        holds = verdict.request is not None and container.name in verdict.holders
        at = ("spec", key, place, "resources")
        _strip(container, at, draft, told=not admitted or verdict.request is None)
        if holds:
            ticket = fresh_ticket(next_ticket, taken)
            taken.add(ticket.number)
            _add_ticket(container.resources, at, {ticket.resource: str(ticket.quantity)}, draft)


def _kept(spec: SpecView, verdict: Verdict) -> dict[str, int]:
    """Numbers of the tickets that containers hold rightly already, by container; no number twice."""
    kept: dict[str, int] = {}
    for _, _, container in spec.located():
        number = _number_on(container) if container.name in verdict.holders else None
        if number is not None and number not in kept.values():
            kept[container.name] = number
    return kept


def _number_on(container: ContainerView) -> int | None:
    """Number of the one whole ticket that a container asks for."""
    resources = container.resources or ResourcesView()
    names = set(tickets_in(resources.limits)) | set(tickets_in(resources.requests))
    if len(names) != 1:
        return None
    (name,) = names
    limit, request = ((side or {}).get(name) for side in (resources.limits, resources.requests))
    text = str(limit)
    if limit != request or not (text.isascii() and text.isdecimal() and len(text) <= len(str(QUANTITIES))):
        return None
    ticket = ticket_of(name, int(text))
    return None if ticket is None else ticket.number


def fresh_ticket(next_ticket: NextTicket, taken: set[int]) -> Ticket:
    """The next ticket that is not ``taken`` by another container of the pod."""
    for _ in range(TICKETS):
        ticket = next_ticket()
        if ticket.number not in taken:
            return ticket
    return ticket  # a pod of more containers than there are tickets finds no node, and is told so there


def _strip(container: ContainerView, at: tuple[str | int, ...], draft: _Draft, *, told: bool) -> None:
    """Take away every ticket of a container; ``told`` where a user must have written it."""
    for side, name in _written(container.resources):
        draft.operations.append(remove(pointer(*at, side, name)))
        if told:
            where = f"containers[{container.name}].resources.{side}[{name}]"
            draft.findings.warn(where, "", _NOT_BELIEVED, "leave it out")


def _written(resources: ResourcesView | None) -> Iterator[tuple[str, str]]:
    for side in _SIDES if resources else ():
        yield from ((side, name) for name in tickets_in(getattr(resources, side)))


def _add_ticket(
    resources: ResourcesView | None, at: tuple[str | int, ...], asked: Mapping[str, str], draft: _Draft
) -> None:
    if resources is None:
        draft.operations.append(add(pointer(*at), dict.fromkeys(_SIDES, asked)))
        return
    for side in _SIDES:
        _put(draft, (*at, side), getattr(resources, side), asked)
