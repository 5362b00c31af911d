"""What a simulation found: the content of ``summary.json`` as types. What the files are: :mod:`tessera.simulator`.

Percentages of devices are of all that the cluster has, with two decimals. Everything is decided by input and
settings; nothing tells of the machine that computed it.
"""

from enum import StrEnum
from typing import Final

import msgspec

SCHEMA: Final = "tessera.dev/simulation/v1"
REPORTED: Final = (50, 80, 90, 95, 100, 105, 110, 120, 130)
"""Percent of arrived demand at which allocations are published (the points of the reference experiments)."""


class Kind(StrEnum):
    """What a pod asks for: no device, a part of one, one, or more than one."""

    CPU_ONLY = "cpu-only"
    SHARING = "sharing"
    ONE = "one-device"
    MANY = "multi-device"


class ModelCapacity(msgspec.Struct, frozen=True):
    """How much of one device model there is."""

    model: str
    nodes: int
    devices: int


class ClusterEntry(msgspec.Struct, frozen=True):
    """The cluster. ``cpu_milli`` and ``memory_mib`` are sums over nodes that say how much they have."""

    nodes: int
    devices: int
    milli: int
    cpu_milli: int
    memory_mib: int
    models: tuple[ModelCapacity, ...]


class TraceEntry(msgspec.Struct, frozen=True):
    """The pods: how many in all and of each kind, how many different ones, what they ask of devices together."""

    pods: int
    kinds: dict[Kind, int]
    shapes: int
    milli: int


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that decides the outcome; ``command`` repeats it.

    ``arrivals``: the demand that arrives, as a multiple of what the cluster has (``None``: as listed). ``load``
    and ``lifetimes`` (``trace`` or ``exponential``): of a simulation with departures. ``sample``: nodes that are
    looked at for one pod. ``failures``: node losses per node and day. ``drain``: moves that may make room for one
    pod. ``give_back``: nodes that could be given back were looked for.
    """

    command: str
    nodes: str
    pods: str
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    sequence: str | None = None
    arrivals: float | None = None
    load: float | None = None
    lifetimes: str | None = None
    sample: int | None = None
    failures: float | None = None
    drain: int | None = None
    give_back: bool = False


class KindCount(msgspec.Struct, frozen=True):
    """What became of the pods of one kind; ``constrained`` ones name the models that they may use.

    ``early`` are rejections while not more had arrived than the cluster has (up to 100 %), out of
    ``arrived_early``; ``asked_milli`` and ``rejected_milli`` what those pods asked of devices.
    """

    kind: Kind
    constrained: bool
    arrived: int
    placed: int
    rejected: int
    early: int
    arrived_early: int
    asked_milli: int
    rejected_milli: int


class Idle(msgspec.Struct, frozen=True):
    """What is idle on one model's devices at the end, and whether the target workload could use it.

    The parts add up to ``milli`` (each rounded). For each idle device of each node they are the share of the
    target workload's device pods that can use it (``usable``), or cannot since too little is left on it or on too
    few devices (``small``), since the node lacks processors or memory for them (``host``), or since they may not
    use this model (``model_only``), looked at in the order ``model_only``, ``small``, ``host``.

    ``rests`` counts devices by what is left of them: those with nothing, with 1 to 99 milli, 100 to 199, ... 900
    to 999, and whole ones: twelve numbers.
    """

    model: str
    milli: int
    usable: int
    small: int
    host: int
    model_only: int
    rests: tuple[int, ...]


class Churn(msgspec.Struct, frozen=True):
    """Figures of a simulation with departures, over its last two thirds (it starts from an empty cluster).

    ``allocation``: mean over time, percent. ``rejected_demand``: percent of the demand for devices.
    ``rejected_many``: percent of the multi-device pods. ``moves``: pods moved to make room, ``drained`` the pods
    that were placed so. ``lost``: pods that were on a node that failed, ``homeless`` those of them that found no
    other; ``failures`` counts the nodes that did.
    """

    allocation: float
    rejected_demand: float
    rejected_many: float
    placed: int
    departed: int
    moves: int
    moves_per_100: float
    drained: int
    lost: int
    homeless: int
    failures: int


class Run(msgspec.Struct, frozen=True):
    """One policy on one seed. ``placements`` and ``cluster`` are files beside ``summary.json``.

    ``allocation``: percent held at each of ``REPORTED`` that was reached (keys are whole percents as text),
    ``end`` at the end. ``first_rejection``: percent that had arrived when the first pod was rejected, ``None`` if
    none was. ``tries``: looks at samples of nodes where ``sample`` is set.
    """

    policy: str
    seed: int
    placements: str
    cluster: str
    arrived: int
    placed: int
    rejected: int
    early: int
    first_rejection: float | None
    allocation: dict[str, float]
    end: float
    kinds: tuple[KindCount, ...]
    idle: tuple[Idle, ...]
    tries: int = 0
    churn: Churn | None = None


class Across(msgspec.Struct, frozen=True):
    """One figure over all seeds: mean, standard deviation (of the sample, 0 for one seed), least and greatest."""

    mean: float
    std: float
    least: float
    greatest: float


class PolicyEntry(msgspec.Struct, frozen=True):
    """One policy over all seeds. ``many_accepted``: percent of the multi-device pods that were
    placed while not more had arrived than the cluster has.
    """

    policy: str
    allocation: dict[str, Across]
    end: Across
    rejected: Across
    early: Across
    first_rejection: Across | None
    many_accepted: Across | None


class Spare(msgspec.Struct, frozen=True):
    """How many nodes could be given back: on ``kept`` of them everything that was held is held still."""

    policy: str
    seed: int
    kept: int
    spare: tuple[str, ...]


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it. ``notes`` are what to know about the input, for people."""

    schema: str
    version: str
    settings: Settings
    cluster: ClusterEntry
    trace: TraceEntry
    policies: tuple[PolicyEntry, ...]
    runs: tuple[Run, ...]
    spares: tuple[Spare, ...] = ()
    notes: tuple[str, ...] = ()
