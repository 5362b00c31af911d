"""Thin views of Kubernetes' objects: only the fields that somebody here reads. Unknown fields are skipped.

``gc=False`` where no cycle can form: a hundred thousand of them then cost the garbage collector nothing.
"""

from typing import Any

import msgspec


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Who made an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """An object's metadata; ``managedFields`` and the like are skipped."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> str:
        """``namespace/name``, or the name alone."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def annotation(self, name: str) -> str | None:
        """An annotation's value."""
        return (self.annotations or {}).get(name)

    def label(self, name: str) -> str | None:
        """A label's value."""
        return (self.labels or {}).get(name)


class Resources(msgspec.Struct, frozen=True, gc=False):
    """A container's resources, as text or numbers as the API server has them."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class PodContainer(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A container's name and resources."""

    name: str
    resources: Resources | None = None
    restart_policy: str | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Where a pod is and what its containers ask for. ``affinity`` and spreading stay untyped, being rare."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[PodContainer, ...] = ()
    init_containers: tuple[PodContainer, ...] | None = None
    priority: int | None = None
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: list[dict[str, Any]] | None = None

    def all_containers(self) -> tuple[PodContainer, ...]:
        """Init containers first, as a pod declares them."""
        return (*(self.init_containers or ()), *self.containers)


class ContainerState(msgspec.Struct, frozen=True, gc=False):
    """Which of the three states a container is in."""

    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What the kubelet says of a container."""

    name: str
    started: bool | None = None
    restart_count: int = 0
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """How far a pod is."""

    phase: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class KubePod(msgspec.Struct, frozen=True, gc=False):
    """A pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Whether all containers ended for good: such a pod holds nothing."""
        return self.status.phase in ("Succeeded", "Failed")


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    """Whether a node is cordoned."""

    unschedulable: bool = False


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """What a node has to give, by resource."""

    allocatable: dict[str, str] | None = None


class KubeNode(msgspec.Struct, frozen=True, gc=False):
    """A node."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """Who holds a lease, since when, for how long."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lease of coordination.k8s.io."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()
