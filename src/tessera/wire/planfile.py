"""The plan as a document: what ``tessera plan -o json`` prints and what its tables are drawn from.

The shapes below are the public, versioned format; ``docs/plan.schema.json`` is generated from them. A field
is never renamed or given another meaning within a version; fields may be added. Amounts are whole numbers:
memory in MiB, compute in thousandths of a device.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, Literal, assert_never

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from tessera.allocator.explain import sentence
from tessera.allocator.plan import Verdict
from tessera.allocator.suggest import Suggestion
from tessera.core.device import Node
from tessera.core.errors import Problem, Severity
from tessera.core.placement import Grant, Placed, Placement, ReasonGroup, Rejected, Shortfall
from tessera.core.share import Share
from tessera.wire.manifests import InvalidPod, Manifests, PlannedPod

API_VERSION: Final = "tessera.dev/v1"
NAMES_SHOWN: Final = 20
"""Node names that a group of reasons lists; the rest is in its count."""


class Outcome(StrEnum):
    """What became of one pod."""

    PLACED = "placed"
    REJECTED = "rejected"
    INVALID = "invalid"
    NOT_OURS = "not-ours"


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """A share's amount: charged against the device (request) and enforced at run time (limit)."""

    request: int
    limit: int


class DeviceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One device given to a container, and the share on it."""

    uuid: str
    index: Annotated[int, Meta(description="index of the device on its node")]
    model: str
    memory_mib: Amount
    compute_milli: Annotated[Amount, Meta(description="thousandths of the device")]


class ContainerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one container of a placed pod was given."""

    devices: tuple[DeviceEntry, ...]


class ChargeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod takes of one device at its peak, over all of its containers."""

    uuid: str
    index: int
    memory_mib: int
    compute_milli: int
    exclusive: Annotated[bool, Meta(description="nobody else gets onto the device")]


class ShortfallEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One reason with its numbers; which unit they are in follows from the reason."""

    reason: str
    devices: Annotated[int, Meta(description="how many devices, or nodes for reasons of a node, fail by it")]
    asked: int | None
    best: Annotated[int | None, Meta(description="the most that any of them had to offer")]
    detail: str
    text: Annotated[str, Meta(description="the same for people; its wording may change")]


class ReasonEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that refuse a pod for the same reasons."""

    nodes: Annotated[tuple[str, ...], Meta(description=f"names, the first {NAMES_SHOWN} of them")]
    node_count: int
    shortfalls: tuple[ShortfallEntry, ...]


class SuggestionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A smallest change that would place the pod on what this plan leaves free."""

    change: Annotated[str, Meta(description="what would be changed")]
    value: Annotated[int | None, Meta(description="the new amount where the change is a number")]
    nodes: Annotated[tuple[str, ...], Meta(description=f"where it would go, the first {NAMES_SHOWN} names")]
    node_count: int
    text: Annotated[str, Meta(description="the same for people; its wording may change")]


class PodEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, what was decided on it, and why."""

    namespace: str
    name: str
    source: Annotated[str, Meta(description="file and place in it")]
    object: Annotated[str, Meta(description="the object that the pod comes from, Kind/namespace/name")]
    dialect: str | None
    outcome: Outcome
    node: str | None = None
    containers: dict[str, ContainerEntry] = {}
    charges: tuple[ChargeEntry, ...] = ()
    reasons: tuple[ReasonEntry, ...] = ()
    suggestions: tuple[SuggestionEntry, ...] = ()
    warnings: tuple[str, ...] = ()


class SkippedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is no workload, or none that a plan can know the pods of."""

    source: str
    kind: str
    name: str
    why: str


class ErrorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong with the input. While there is any, nothing is placed."""

    source: str
    object: str
    field: str
    value: str
    message: str
    remedy: str


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the fleet is given out, before and after this plan."""

    capacity: int
    before: int
    after: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of pods by outcome and of skipped objects, and the fleet's allocation."""

    placed: int
    rejected: int
    not_ours: int
    invalid: int
    skipped: int
    memory_mib: Level
    compute_milli: Level


class FleetEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet that the plan was made for; ``notes`` say what had to be assumed about it."""

    source: str
    nodes: int
    devices: int
    memory_mib: int
    notes: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `tessera plan` decided, in the order of its input."""

    api_version: Annotated[Literal["tessera.dev/v1"], Meta(description="version of this format")] = msgspec.field(
        name="apiVersion", default=API_VERSION
    )
    kind: Literal["Plan"] = "Plan"
    policy: str
    fleet: FleetEntry
    summary: Summary
    pods: tuple[PodEntry, ...]
    skipped: tuple[SkippedEntry, ...]
    errors: tuple[ErrorEntry, ...]


def plan_of(
    policy: str,
    fleet: FleetEntry,
    nodes: Sequence[Node],
    *,
    manifests: Manifests,
    verdicts: Sequence[Verdict],
    held: Sequence[Placement] = (),
) -> Plan:
    """The document of a plan. ``verdicts`` are those of the manifests' pods in their order, or none at all
    where the input has errors, in which case the document lists only the pods that are invalid. ``held``: what
    was given out before.
    """
    errors = [p for p in manifests.problems if p.severity is Severity.ERROR]
    pods = tuple(_pod_entry(pod, verdict) for pod, verdict in zip(manifests.pods, verdicts, strict=bool(verdicts)))
    invalid = tuple(_invalid_entry(pod) for pod in manifests.invalid)
    return Plan(
        policy=policy,
        fleet=fleet,
        summary=_summary((*pods, *invalid), nodes, len(manifests.skipped), held),
        pods=(*pods, *invalid),
        skipped=tuple(
            SkippedEntry(source=s.source, kind=s.kind, name=s.name, why=s.why) for s in manifests.skipped
        ),
        errors=tuple(_error_entry(problem) for problem in errors),
    )


def fleet_entry(source: str, nodes: Sequence[Node], notes: Sequence[str]) -> FleetEntry:
    """What the document says about its fleet."""
    return FleetEntry(
        source=source,
        nodes=len(nodes),
        devices=sum(len(node.devices) for node in nodes),
        memory_mib=sum(device.memory_mib for node in nodes for device in node.devices),
        notes=tuple(notes),
    )


def _pod_entry(planned: PlannedPod, verdict: Verdict) -> PodEntry:
    pod, decision = planned.pod, verdict.decision
    entry = PodEntry(
        namespace=pod.namespace,
        name=pod.name,
        source=planned.source,
        object=planned.object,
        dialect=None if pod.dialect is None else str(pod.dialect),
        outcome=Outcome.NOT_OURS,
        warnings=tuple(map(str, planned.warnings)),
    )
    match decision:
        case None:
            return entry
        case Placed(placement):
            return replace(
                entry,
                outcome=Outcome.PLACED,
                node=placement.node,
                containers={name: _container_entry(grants) for name, grants in placement.grants.items()},
                charges=_charge_entries(placement),
            )
        case Rejected(groups):
            return replace(
                entry,
                outcome=Outcome.REJECTED,
                reasons=tuple(map(reason_entry, groups)),
                suggestions=tuple(map(suggestion_entry, verdict.suggestions)),
            )
        case _:
            assert_never(decision)


def _invalid_entry(invalid: InvalidPod) -> PodEntry:
    return PodEntry(
        namespace=invalid.namespace,
        name=invalid.name,
        source=invalid.source,
        object=invalid.object,
        dialect=None if invalid.dialect is None else str(invalid.dialect),
        outcome=Outcome.INVALID,
    )


def _container_entry(grants: Sequence[Grant]) -> ContainerEntry:
    return ContainerEntry(devices=tuple(_device_entry(grant) for grant in grants))


def _device_entry(grant: Grant) -> DeviceEntry:
    memory, compute = _amounts(grant.share)
    return DeviceEntry(
        uuid=grant.uuid, index=grant.index, model=grant.model, memory_mib=memory, compute_milli=compute
    )


@lru_cache(maxsize=4096)
def _amounts(share: Share) -> tuple[Amount, Amount]:
    return (
        Amount(request=share.memory_request, limit=share.memory_limit),
        Amount(request=share.compute_request, limit=share.compute_limit),
    )


def _charge_entries(placement: Placement) -> tuple[ChargeEntry, ...]:
    index = {grant.uuid: grant.index for grants in placement.grants.values() for grant in grants}
    return tuple(
        ChargeEntry(
            uuid=charge.uuid,
            index=index[charge.uuid],
            memory_mib=charge.memory_mib,
            compute_milli=charge.compute_milli,
            exclusive=charge.exclusive,
        )
        for charge in placement.charges
    )


def reason_entry(group: ReasonGroup) -> ReasonEntry:
    """A group of nodes that refuse alike."""
    return ReasonEntry(
        nodes=group.nodes[:NAMES_SHOWN],
        node_count=len(group.nodes),
        shortfalls=tuple(map(_shortfall_entry, group.shortfalls)),
    )


def _shortfall_entry(shortfall: Shortfall) -> ShortfallEntry:
    return ShortfallEntry(
        reason=str(shortfall.reason),
        devices=shortfall.devices,
        asked=shortfall.asked,
        best=shortfall.best,
        detail=shortfall.detail,
        text=sentence(shortfall),
    )


def suggestion_entry(suggestion: Suggestion) -> SuggestionEntry:
    """A change that would help."""
    return SuggestionEntry(
        change=str(suggestion.change),
        value=suggestion.value,
        nodes=suggestion.nodes[:NAMES_SHOWN],
        node_count=len(suggestion.nodes),
        text=suggestion.text,
    )


def _error_entry(problem: Problem) -> ErrorEntry:
    return ErrorEntry(
        source=problem.source,
        object=problem.object,
        field=problem.field,
        value=problem.value,
        message=problem.message,
        remedy=problem.remedy,
    )


def _summary(pods: Sequence[PodEntry], nodes: Sequence[Node], skipped: int, held: Sequence[Placement]) -> Summary:
    """Counts and levels; what is held of devices that are gone is of no fleet."""
    count = Counter(pod.outcome for pod in pods)
    devices = [device for node in nodes for device in node.devices]
    known = {device.uuid for device in devices} if held else set()
    before = [charge for placement in held for charge in placement.charges if charge.uuid in known]
    planned = [charge for pod in pods for charge in pod.charges]
    memory, compute = sum(c.memory_mib for c in before), sum(c.compute_milli for c in before)
    return Summary(
        placed=count[Outcome.PLACED],
        rejected=count[Outcome.REJECTED],
        not_ours=count[Outcome.NOT_OURS],
        invalid=count[Outcome.INVALID],
        skipped=skipped,
        memory_mib=Level(
            capacity=sum(device.memory_mib for device in devices),
            before=memory,
            after=memory + sum(charge.memory_mib for charge in planned),
        ),
        compute_milli=Level(
            capacity=sum(device.compute_milli for device in devices),
            before=compute,
            after=compute + sum(charge.compute_milli for charge in planned),
        ),
    )
