"""Our kinds ``GPUNode`` and ``GPU``: what an agent found on its node. Facts and health only, written on change.

``GPUNode`` (cluster scope, named like the node) carries all devices of a node, so that a scheduler reads one
object a node and never half of one. ``GPU`` (cluster scope, named like the uuid in lower case) is the same device
for people: ``kubectl get gpus``.
"""

import msgspec

from tessera.core.device import DEFAULT_SLOTS, SHARED_MODE, Device, Node
from tessera.core.units import WHOLE, MiB, Milli


class DeviceFacts(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False, kw_only=True):
    """One accelerator as found. Memory in MiB; ``milli_tflops`` is dense FP16; ``reason`` says why not healthy."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    vendor: str
    slots: int = DEFAULT_SLOTS
    numa: int | None = None
    healthy: bool = True
    reason: str = ""
    mode: str = SHARED_MODE
    milli_tflops: int | None = None
    foreign: str = ""
    """Who holds the device besides us (a pod of another device plugin), as ``namespace/name``; empty: nobody."""


class GPUNodeStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What an agent says of its node.

    ``isolation`` is the tier in force: ``driver``, ``hook``, ``unverified`` or ``report``; who says nothing of it
    is believed nothing.
    """

    devices: tuple[DeviceFacts, ...] = ()
    isolation: str = ""
    gate: bool = False
    """Whether the gate checks every container before it starts; who says nothing of it has none."""
    driver: str = ""
    agent: str = ""
    message: str = ""


class GPUStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One device for people: where it is, and its facts."""

    node: str = ""
    device: DeviceFacts | None = None


def facts_of(device: Device, reason: str = "") -> DeviceFacts:
    """A device as it is published."""
    return DeviceFacts(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        vendor=device.vendor,
        slots=device.slots,
        numa=device.numa,
        healthy=device.healthy,
        reason=reason,
        mode=device.mode,
        milli_tflops=device.milli_tflops,
    )


def device_of(facts: DeviceFacts) -> Device:
    """A published device as the allocator sees it; one that somebody else holds is set aside."""
    return Device(
        uuid=facts.uuid,
        index=facts.index,
        model=facts.model,
        memory_mib=MiB(facts.memory_mib),
        vendor=facts.vendor,
        compute_milli=WHOLE,
        slots=facts.slots,
        numa=facts.numa,
        healthy=facts.healthy,
        cordoned=bool(facts.foreign),
        mode=facts.mode,
        milli_tflops=None if facts.milli_tflops is None else Milli(facts.milli_tflops),
    )


def node_of(name: str, status: GPUNodeStatus) -> Node:
    """A node of the fleet. CPU, memory, labels and taints are kube-scheduler's to judge and stay unknown here."""
    return Node(name, tuple(map(device_of, sorted(status.devices, key=lambda d: d.index))))
