"""Kubernetes' objects with the few fields more that people are told about: gates, conditions, messages."""

import msgspec

from tessera.wire.kube.inventory import GPUNodeStatus
from tessera.wire.kube.objects import (
    ContainerStatus,
    KubeNode,
    KubePod,
    Meta,
    NodeStatus,
    PodSpec,
    PodStatus,
    Resources,
)

READY = "Ready"
SCHEDULED = "PodScheduled"


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One of an object's conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class SchedulingGate(msgspec.Struct, frozen=True, gc=False):
    """Something that holds a pod back until whoever put it there takes it away."""

    name: str = ""


class SeenSpec(PodSpec, frozen=True, rename="camel", gc=False):
    """A pod's spec, with what binds it to nodes and what it asks of their CPU and memory."""

    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    node_selector: dict[str, str] | None = None
    overhead: dict[str, str] | None = None
    resources: Resources | None = None


class SeenStatus(PodStatus, frozen=True, rename="camel", gc=False):
    """A pod's status, with what its schedulers and its kubelet say."""

    message: str = ""
    conditions: tuple[Condition, ...] | None = None

    def statuses(self) -> tuple[ContainerStatus, ...]:
        """Init containers first."""
        return (*(self.init_container_statuses or ()), *(self.container_statuses or ()))


class SeenPod(KubePod, frozen=True, gc=False):
    """A pod."""

    spec: SeenSpec = SeenSpec()
    status: SeenStatus = SeenStatus()


class SeenNodeStatus(NodeStatus, frozen=True, gc=False):
    """What a node has to give, and how it is."""

    conditions: tuple[Condition, ...] | None = None


class SeenNode(KubeNode, frozen=True, gc=False):
    """A node."""

    status: SeenNodeStatus = SeenNodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet says so."""
        return any(c.type == READY and c.status == "True" for c in self.status.conditions or ())


class SeenGPUNode(msgspec.Struct, frozen=True, gc=False):
    """What an agent says of its node."""

    metadata: Meta
    status: GPUNodeStatus = GPUNodeStatus()
