"""The plan as a document: what ``tessera plan -o json`` prints and what its tables are drawn from.

The shapes below are the public, versioned format; ``docs/plan.schema.json`` is generated from them. A field
is never renamed or given another meaning within a version; fields may be added. Amounts are whole numbers:
memory in MiB, compute in thousandths of a device.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

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
    """A smallest change with which the pod would have been placed."""

    text: str


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

    api_version: Annotated[Literal["tessera.dev/v1"], Meta(description="version of this format")] = (
        msgspec.field(name="apiVersion", default=API_VERSION)
    )
    kind: Literal["Plan"] = "Plan"
    policy: str
    fleet: FleetEntry
    summary: Summary
    pods: tuple[PodEntry, ...]
    skipped: tuple[SkippedEntry, ...]
    errors: tuple[ErrorEntry, ...]
