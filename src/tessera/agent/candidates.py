"""Which container the kubelet is allocating for: the one that asks for this ticket, if it is the only one.

Whom the kubelet may mean stands in the pods' specs: it asks for what they ask. Whether that container may have
anything stands in its pod's allocation. Containers that wait for their first allocation go before those that have
one already; nothing is ever guessed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from tessera.core.placement import Grant
from tessera.core.ticket import Ticket
from tessera.wire.kube.allocation import decode_allocation
from tessera.wire.kube.names import ALLOCATION, SCHEDULER_NAME
from tessera.wire.kube.objects import KubePod, PodContainer
from tessera.wire.quantity import parse_quantity


class Stage(IntEnum):
    """How far a container that asks is; the kubelet asks for the lowest first."""

    NEW = 0
    """It waits and was never answered."""
    ANSWERED = 1
    """It waits and was answered: the kubelet forgot, or asks again."""
    STARTED = 2
    """It ran already."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A container that asks for the ticket, and what it was allocated; else ``why`` it was not."""

    pod: KubePod
    container: str
    stage: Stage
    grants: tuple[Grant, ...] = ()
    why: str = ""

    @property
    def title(self) -> str:
        """The container as messages name it."""
        return f"container {self.container} of pod {self.pod.metadata.key}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """No answer, and the reason for the person who looks at the pod."""

    message: str


@dataclass(frozen=True, slots=True)
class Nobody:
    """No container that we know asks for the ticket: it may not have reached us yet."""

    ticket: Ticket


Choice = Candidate | Refusal | Nobody


def choose(pods: Iterable[KubePod], ticket: Ticket, node: str, answered: Callable[[str, str], bool]) -> Choice:
    """The container that ``ticket`` means among the pods of ``node``.

    ``answered`` tells of a pod's uid and a container's name whether a share was handed out to it before.
    """
    asking = [
        _candidate(pod, container.name, ticket, node, answered)
        for pod in pods
        if not pod.finished and pod.spec.node_name == node
        for container in pod.spec.all_containers()
        if asks_for(container, ticket)
    ]
    if not asking:
        return Nobody(ticket)
    first = min(candidate.stage for candidate in asking)
    found = [candidate for candidate in asking if candidate.stage is first]
    if len(found) > 1:
        names = " and ".join(sorted(candidate.title for candidate in found))
        return Refusal(
            f"ticket {ticket.number} is asked for by {names}, so it is not known which one the kubelet means; "
            "delete one of the pods"
        )
    chosen = found[0]
    return Refusal(f"{chosen.title} {chosen.why}") if chosen.why else chosen


def asks_for(container: PodContainer, ticket: Ticket) -> bool:
    """Whether a container's spec asks for exactly this ticket."""
    limits = (container.resources and container.resources.limits) or {}
    amount = limits.get(ticket.resource)
    if amount is None:
        return False
    value = parse_quantity(str(amount))
    return value == ticket.quantity


def _candidate(
    pod: KubePod, container: str, ticket: Ticket, node: str, answered: Callable[[str, str], bool]
) -> Candidate:
    stage = _stage(pod, container, answered=answered(pod.metadata.uid, container))
    grants, why = _grants(pod, container, ticket, node)
    return Candidate(pod, container, stage, grants, why)


def _stage(pod: KubePod, container: str, *, answered: bool) -> Stage:
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    status = next((s for s in statuses if s.name == container), None)
    state = status.state if status else None
    if state and (state.running is not None or state.terminated is not None):
        return Stage.STARTED
    if status and status.restart_count > 0:
        return Stage.STARTED
    return Stage.ANSWERED if answered else Stage.NEW


def _grants(pod: KubePod, container: str, ticket: Ticket, node: str) -> tuple[tuple[Grant, ...], str]:
    """What the pod's allocation gives the container, or what is wrong with it."""
    meta = pod.metadata
    text = meta.annotation(ALLOCATION)
    if text is None:
        why = f"asks for {ticket.resource} but its pod carries no allocation; let {SCHEDULER_NAME} place the pod"
        return (), why
    try:
        allocation = decode_allocation(text, uid=meta.uid, key=meta.key, node=node)
    except ValueError as error:
        return (
            (),
            f"cannot be served: the annotation {ALLOCATION} {error}; delete the pod, so that it is placed anew",
        )
    number = allocation.tickets.get(container)
    grants = allocation.placement.grants.get(container, ())
    if number != ticket.number or not grants:
        said = "no ticket" if number is None else f"ticket {number}"
        why = (
            f"asks with ticket {ticket.number}, its pod's allocation has {said} and {len(grants)} devices for it; "
            "delete the pod, so that it is placed anew"
        )
        return (), why
    return grants, ""
