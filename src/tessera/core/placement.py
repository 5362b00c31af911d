"""The two answers to a request: a placement, or a rejection with its reasons as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tessera.core.share import Share


class Reason(StrEnum):
    """Why a device or a node cannot host a request."""

    NODE_NAME = "node-name"
    NODE_SELECTOR = "node-selector"
    NODE_CORDONED = "node-cordoned"
    NODE_CPU = "node-cpu"
    NODE_MEMORY = "node-memory"
    NODE_PODS = "node-pods"
    NO_DEVICE = "no-device"
    VENDOR = "vendor"
    MODE = "mode"
    MODEL = "model"
    UUID = "uuid"
    INDEX = "index"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    TFLOPS_UNKNOWN = "tflops-unknown"
    HELD_EXCLUSIVELY = "held-exclusively"
    NOT_IDLE = "not-idle"
    SLOTS = "slots"
    MEMORY = "memory"
    COMPUTE = "compute"
    COMPUTE_EXHAUSTED = "compute-exhausted"
    NUMA = "numa"
    COUNT = "count"
    COMBINATION = "combination"
    SEARCH_LIMIT = "search-limit"


@dataclass(frozen=True, slots=True)
class Grant:
    """One device given to a container, with the share on it."""

    uuid: str
    index: int
    model: str
    share: Share


@dataclass(frozen=True, slots=True)
class Charge:
    """What a pod takes of one device at its peak; ``exclusive`` keeps everybody else off."""

    uuid: str
    memory_mib: int
    compute_milli: int
    slots: int
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Who got what: grants per container name, and the charges that the ledger books for them."""

    pod_uid: str
    pod_key: str
    node: str
    grants: Mapping[str, tuple[Grant, ...]]
    charges: tuple[Charge, ...]
    cpu_milli: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One reason with its numbers: how many devices (or nodes) fail by it, what was asked, the best there was.

    ``asked`` and ``best`` are in the reason's unit (MiB, milli, devices, slots); ``None`` where it has none.
    ``detail`` names what words say better than numbers: a model, a label.
    """

    reason: Reason
    devices: int
    asked: int | None = None
    best: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Nodes that refuse for the same set of reasons, the reason of most devices first."""

    nodes: tuple[str, ...]
    shortfalls: tuple[Shortfall, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """The request fits here."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request fits nowhere; every node is in exactly one group."""

    groups: tuple[ReasonGroup, ...] = field(default=())


Decision = Placed | Rejected
