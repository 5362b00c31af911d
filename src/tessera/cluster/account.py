"""The account of one pod for ``kubectl tessera explain``: what it asked, where it is, or what it waits for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

import msgspec

from tessera.allocator.explain import reject
from tessera.allocator.place import place, prospect
from tessera.allocator.suggest import suggest
from tessera.cluster.devices import Holding, holders_of
from tessera.cluster.objects import SCHEDULED, SeenPod
from tessera.cluster.observe import Look
from tessera.cluster.waiting import pod_of
from tessera.cluster.words import grant_text, plural, request_lines
from tessera.core.fleet import Snapshot, Usage
from tessera.core.placement import Placement
from tessera.core.request import Pod
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.holdings import Held
from tessera.scheduler.state import UNADMITTED
from tessera.wire.kube.names import DEFAULT_SCHEDULER_NAME, SCHEDULER_NAME
from tessera.wire.kube.request import decode_request
from tessera.wire.planfile import (
    API_VERSION,
    NAMES_SHOWN,
    ReasonEntry,
    SuggestionEntry,
    reason_entry,
    suggestion_entry,
)

_SCHEDULERS: Final = (SCHEDULER_NAME, DEFAULT_SCHEDULER_NAME)
_POLICY: Final = POLICIES[DEFAULT_POLICY]
_EXPECTED: Final = ("ContainerCreating", "PodInitializing")


class State(StrEnum):
    """What became of a pod."""

    WAITING = "waiting"
    PLACED = "placed"
    NOT_ADMITTED = "not-admitted"
    NOT_BELIEVED = "not-believed"
    FOREIGN = "foreign"
    ENDED = "ended"
    NOT_OURS = "not-ours"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a container was given."""

    uuid: str
    index: int
    model: str
    memory_request_mib: int
    memory_limit_mib: int
    compute_request_milli: int
    compute_limit_milli: int
    exclusive: bool
    text: str


class Contained(msgspec.Struct, frozen=True, kw_only=True):
    """One container: its devices and the number by which the node's agent knows it."""

    name: str
    ticket: int | None = None
    devices: tuple[Given, ...] = ()


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Who else holds a part of a device."""

    node: str
    device: int
    holding: Holding


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, explained. Lists are empty where there is nothing of the kind to say; fields are only added."""

    api_version: str = msgspec.field(name="apiVersion", default=API_VERSION)
    kind: str = "PodAccount"
    namespace: str
    name: str
    uid: str
    phase: str
    scheduler: str
    created: str
    state: State
    says: str
    asked: tuple[str, ...] = ()
    dialect: str | None = None
    node: str | None = None
    tier: str | None = None
    """What holds memory on its node: driver, hook, unverified, report; empty where its agent does not say."""
    containers: tuple[Contained, ...] = ()
    beside: tuple[Neighbour, ...] = ()
    could_be_on: tuple[str, ...] = ()
    elsewhere: tuple[ReasonEntry, ...] = ()
    """Why not on the other nodes, as of now and not of the moment of the decision."""
    reasons: tuple[ReasonEntry, ...] = ()
    suggestions: tuple[SuggestionEntry, ...] = ()
    waiting_helps: bool | None = None
    held_by: tuple[Neighbour, ...] = ()
    scheduler_says: str = ""
    notes: tuple[str, ...] = ()


def account_of(look: Look, pod: SeenPod, facts: PodFacts) -> Account:
    """The account of a pod, which may have ended and then is not in the look."""
    blank = _blank(pod, facts)
    if facts.finished:
        return _said(blank, State.ENDED, f"has ended ({pod.status.phase}) and holds nothing")
    if not facts.matters:
        return _said(blank, State.NOT_OURS, "asks for no accelerator: Tessera has nothing to do with it")
    held = look.state.holdings.get(facts.uid)
    if held is not None:
        return _placed(look, blank, held, facts)
    if facts.node:
        return _unplaced_but_bound(look, blank, facts)
    return _waiting(look, blank, pod, facts)


def _said(blank: Account, state: State, says: str) -> Account:
    return msgspec.structs.replace(blank, state=state, says=says)


def _blank(pod: SeenPod, facts: PodFacts) -> Account:
    asked, dialect = _asked(facts)
    return Account(
        namespace=facts.namespace,
        name=facts.name,
        uid=facts.uid,
        phase=pod.status.phase,
        scheduler=facts.scheduler,
        created=facts.created,
        state=State.WAITING,
        says="",
        asked=asked,
        dialect=dialect,
        node=facts.node or None,
        containers=tuple(Contained(name=name, ticket=number) for name, number in facts.tickets),
        scheduler_says=_scheduler_says(pod),
        notes=tuple(_kubelet_says(pod)),
    )


def _asked(facts: PodFacts) -> tuple[tuple[str, ...], str | None]:
    if facts.request is None:
        return (), None
    try:
        request, dialect = decode_request(facts.request)
    except ValueError as error:
        return (f"nothing that can be read: its request {error}",), None
    return tuple(request_lines(request)), dialect.value


def _scheduler_says(pod: SeenPod) -> str:
    """What kube-scheduler wrote about a pod that it has not placed."""
    conditions = pod.status.conditions or ()
    return next((c.message for c in conditions if c.type == SCHEDULED and c.status == "False"), "")


def _kubelet_says(pod: SeenPod) -> Iterator[str]:
    """Why the kubelet refuses the pod or one of its containers."""
    status = pod.status
    if status.reason or status.message:
        yield f"the kubelet says {': '.join(filter(None, (status.reason, status.message)))}"
    for container in status.statuses():
        waits = container.state.waiting if container.state else None
        reason = str((waits or {}).get("reason", ""))
        if waits and reason not in _EXPECTED:
            message = str(waits.get("message", ""))
            yield f"container {container.name} does not start: {': '.join(filter(None, (reason, message)))}"
    if pod.metadata.deletion_timestamp:
        yield "it is being deleted; what it holds is free when it is gone"


# placed


def _placed(look: Look, blank: Account, held: Held, facts: PodFacts) -> Account:
    placement, tickets = held.placement, held.tickets
    containers = tuple(
        Contained(
            name=name,
            ticket=tickets.get(name),
            devices=tuple(
                Given(
                    uuid=grant.uuid,
                    index=grant.index,
                    model=grant.model,
                    memory_request_mib=grant.share.memory_request,
                    memory_limit_mib=grant.share.memory_limit,
                    compute_request_milli=grant.share.compute_request,
                    compute_limit_milli=grant.share.compute_limit,
                    exclusive=grant.share.exclusive,
                    text=grant_text(grant),
                )
                for grant in grants
            ),
        )
        for name, grants in placement.grants.items()
    )
    hosts, refusing = _alternatives(look, placement, facts)
    return msgspec.structs.replace(
        blank,
        state=State.PLACED,
        says=f"is on node {placement.node} ({blank.phase or 'no phase yet'})",
        could_be_on=hosts,
        elsewhere=refusing,
        containers=containers,
        tier=status.isolation if (status := look.statuses.get(placement.node)) else None,
        beside=tuple(_beside(look, placement)),
        scheduler_says="",
        notes=(*blank.notes, *_device_notes(look, placement)),
    )


def _alternatives(
    look: Look, placement: Placement, facts: PodFacts
) -> tuple[tuple[str, ...], tuple[ReasonEntry, ...]]:
    """The nodes that could hold the pod if it were to be placed now, and why the others could not."""
    asking = pod_of(look, facts)
    if isinstance(asking, str):
        return (), ()
    usage = look.snapshot.usage.thawed()
    usage.book(look.fleet, placement.charges, sign=-1)
    usage.book_host(look.fleet, placement.node, asking.cpu_milli, asking.memory_mib, sign=-1)
    without = Snapshot(look.fleet, usage.frozen())
    found = prospect(without, asking).hosts
    each = [node.name for node, could in zip(look.fleet.nodes, found, strict=True) if could]
    # Each claim fits alone on these; whether all do together is asked of those that are shown.
    hosts = tuple(n for n in each[:NAMES_SHOWN] if place(without, replace(asking, node_name=n), _POLICY))
    hosting = {*hosts, *each[NAMES_SHOWN:]}
    groups = (
        replace(g, nodes=tuple(n for n in g.nodes if n not in hosting)) for g in reject(without, asking).groups
    )
    return hosts, tuple(reason_entry(group) for group in groups if group.nodes)


def _beside(look: Look, placement: Placement) -> Iterator[Neighbour]:
    held = holders_of(look)
    for charge in placement.charges:
        row = look.fleet.device_row.get(charge.uuid)
        if row is None:
            continue
        for holding in held.get(charge.uuid, ()):
            if holding.pod != placement.pod_key:
                yield Neighbour(node=placement.node, device=look.fleet.devices[row].index, holding=holding)


def _device_notes(look: Look, placement: Placement) -> Iterator[str]:
    status = look.statuses.get(placement.node)
    known = {facts.uuid: facts for facts in status.devices} if status else {}
    for charge in placement.charges:
        facts = known.get(charge.uuid)
        if facts is None:
            yield f"device {charge.uuid} is not in the inventory of node {placement.node} any more"
        elif not facts.healthy:
            yield f"device {facts.index} is unhealthy: {facts.reason or 'no reason given'}"
    if status and not status.gate:
        yield f"node {placement.node} has no gate: containers start without being checked"


def _unplaced_but_bound(look: Look, blank: Account, facts: PodFacts) -> Account:
    """A pod on a node that holds no share of ours."""
    why = next((n.text for n in look.notices if n.facts.uid == facts.uid), "")
    if facts.allocation is not None:
        return _said(blank, State.NOT_BELIEVED, why or "has an allocation that is not believed")
    what = why or f"is on node {facts.node} without a share of Tessera's"
    return _said(blank, State.FOREIGN, f"{what}; it was not placed by Tessera and runs without its limits")


# waiting


def _waiting(look: Look, blank: Account, pod: SeenPod, facts: PodFacts) -> Account:
    if facts.request is None:
        return _said(blank, State.NOT_ADMITTED, UNADMITTED)
    gates = tuple(gate.name for gate in pod.spec.scheduling_gates or ())
    asking = pod_of(look, facts)
    if isinstance(asking, str):
        return _said(blank, State.WAITING, f"waits: it cannot be placed, its request {asking}")
    judged = _judged(look, blank, asking)
    notes = (*blank.notes, *_other_hands(facts), *_barred(look, facts))
    if gates:
        says = f"waits: scheduling gates hold it ({', '.join(gates)}), nobody places it before they are removed"
        return msgspec.structs.replace(judged, says=says, notes=notes)
    return msgspec.structs.replace(judged, notes=notes)


def _judged(look: Look, blank: Account, asking: Pod) -> Account:
    """What the allocator says of the pod now, and of an idle cluster."""
    placed = place(look.snapshot, asking, _POLICY)
    if placed is not None:
        node = placed.placement.node
        says = (
            f"waits: there is room for it on node {node} now, as far as devices, CPU, memory and node selectors go"
        )
        return _said(blank, State.WAITING, says)
    rejected = reject(look.snapshot, asking)
    idle = Snapshot(look.fleet, Usage.nothing(look.fleet).frozen())
    would = place(idle, asking, _POLICY)
    count = len(look.fleet.nodes)
    return msgspec.structs.replace(
        blank,
        says=f"waits: {_nowhere(count)}",
        reasons=tuple(map(reason_entry, rejected.groups)),
        suggestions=tuple(map(suggestion_entry, suggest(look.snapshot, asking))),
        waiting_helps=would is not None,
        held_by=tuple(_in_the_way(look, asking, idle)) if would is not None else (),
    )


def _nowhere(nodes: int) -> str:
    if not nodes:
        return "no node of the cluster reports a device"
    return f"none of {plural(nodes, 'node')} with devices has room for it now"


def _in_the_way(look: Look, asking: Pod, idle: Snapshot) -> Iterator[Neighbour]:
    """Who holds devices of the nodes that could take the pod if they were idle, by node and device."""
    held: Mapping[str, tuple[Holding, ...]] = holders_of(look)
    for node, could in zip(look.fleet.nodes, prospect(idle, asking).hosts, strict=True):
        if not could:
            continue
        for device in node.devices:
            for holding in held.get(device.uuid, ()):
                yield Neighbour(node=node.name, device=device.index, holding=holding)


def _other_hands(facts: PodFacts) -> Iterator[str]:
    if facts.scheduler == DEFAULT_SCHEDULER_NAME:
        only = "unless Tessera runs as that, nobody who knows of shares places it"
        yield f"it is left to {DEFAULT_SCHEDULER_NAME}: {only}"
    elif facts.scheduler not in _SCHEDULERS:
        yield f"it is left to scheduler {facts.scheduler}, which is not Tessera's"


def _barred(look: Look, facts: PodFacts) -> Iterator[str]:
    for node, why in sorted(look.state.barred(facts).items()):
        yield f"node {node} is out for the moment: {why}"
