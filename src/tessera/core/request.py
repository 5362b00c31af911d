"""A request: what one pod asks of the accelerators of one node, whatever dialect it was written in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tessera.core.share import ShareSpec


class Dialect(StrEnum):
    """A way of writing a request on a pod."""

    NATIVE = "native"
    HAMI = "hami"
    TENSOR_FUSION = "tensor-fusion"


class ContainerKind(StrEnum):
    """How a container's life relates to the others of its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Container:
    """A container's name and kind, in the order in which the pod declares them (init containers first)."""

    name: str
    kind: ContainerKind = ContainerKind.APP


@dataclass(frozen=True, slots=True)
class Claim:
    """``count`` distinct devices, each with one ``share``, held jointly by ``containers`` (counted once).

    ``vendor`` narrows this claim alone, for pods whose containers use devices of different vendors.
    """

    containers: tuple[str, ...]
    count: int
    share: ShareSpec
    vendor: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRule:
    """A device model by name: a case-insensitive part of it, or (``exact``) all of it."""

    pattern: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Constraints:
    """Where a request may go. Empty tuples and ``None`` mean no constraint.

    ``same_device`` lists groups of containers that must get the very same devices; ``distinct_devices``
    forbids any two claims of the pod to meet on a device; ``idle_device`` wants devices without any other
    user; ``one_numa`` wants all devices of a claim on one NUMA node; ``modes`` are the partitioning modes
    that a device may be in; ``indices`` are device indices on the node.
    """

    vendor: str | None = None
    models_allowed: tuple[ModelRule, ...] = ()
    models_denied: tuple[ModelRule, ...] = ()
    uuids_allowed: frozenset[str] = frozenset()
    uuids_denied: frozenset[str] = frozenset()
    indices: frozenset[int] = frozenset()
    modes: frozenset[str] = frozenset()
    one_numa: bool = False
    idle_device: bool = False
    distinct_devices: bool = False
    same_device: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Preference:
    """A pod's own wish over the caller's policy: names of rankings, ``None`` where it has none."""

    node: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """All claims of one pod with their constraints and preference."""

    claims: tuple[Claim, ...]
    constraints: Constraints = field(default_factory=Constraints)
    preference: Preference = field(default_factory=Preference)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the allocator sees it.

    ``cpu_milli`` and ``memory_mib`` are what the pod asks of the node's CPU and memory at its peak.
    ``checked_cpu_milli`` is CPU for which somebody else has chosen the nodes already: policies weigh it, and
    nothing else looks at it.
    ``request`` is ``None`` for a pod that asks for no accelerator.
    """

    namespace: str
    name: str
    uid: str
    containers: tuple[Container, ...]
    request: Request | None = None
    dialect: Dialect | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    node_name: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    checked_cpu_milli: int = 0

    @property
    def key(self) -> str:
        """``namespace/name``, for people; identity is the uid."""
        return f"{self.namespace}/{self.name}"

    @property
    def weighed_cpu_milli(self) -> int:
        """The CPU that policies weigh."""
        return max(self.cpu_milli, self.checked_cpu_milli)


def phases(containers: Sequence[Container]) -> tuple[frozenset[str], ...]:
    """The sets of containers that run at the same time, in order; a pod's peak is the greatest of them.

    An init container overlaps only the sidecars declared before it; the app containers overlap all sidecars.
    Source: Kubernetes KEP-753, resource calculation.
    """
    found: list[frozenset[str]] = []
    sidecars: frozenset[str] = frozenset()
    for container in containers:
        if container.kind is ContainerKind.INIT:
            found.append(sidecars | {container.name})
        elif container.kind is ContainerKind.SIDECAR:
            sidecars = sidecars | {container.name}
    apps = {c.name for c in containers if c.kind is ContainerKind.APP}
    return (*found, sidecars | apps)
