"""What is not as it should be on a cluster, each thing with the object that it is about."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tessera.cluster.observe import Look
from tessera.cluster.words import plural
from tessera.scheduler.state import UNADMITTED, NoticeKind
from tessera.wire.kube.inventory import GPUNodeStatus

REPORT_TIER: Final = "report"
"""The tier that only reports: nothing stops a container on the node."""


class Fault(StrEnum):
    """What is not as it should be."""

    NOT_BELIEVED = "allocation-not-believed"
    OVERCOMMITTED = "device-overcommitted"
    NOT_ADMITTED = "not-admitted"
    FOREIGN = "foreign-holder"
    NO_ISOLATION = "no-isolation"
    NO_GATE = "no-gate"
    UNHEALTHY = "unhealthy"
    TWICE = "device-on-two-nodes"
    NODE = "node"
    AGENT = "agent"


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be: about which object, and what."""

    fault: Fault
    object: str
    text: str


_OF_NOTICE: Final[Mapping[NoticeKind, Fault]] = {
    NoticeKind.FORGED: Fault.NOT_BELIEVED,
    NoticeKind.OVERCOMMITTED: Fault.OVERCOMMITTED,
    NoticeKind.UNADMITTED: Fault.FOREIGN,
}


def anomalies_of(look: Look) -> tuple[Anomaly, ...]:
    """Everything, pods first, each thing once."""
    return tuple(dict.fromkeys((*_of_pods(look), *_of_nodes(look))))


def _of_pods(look: Look) -> Iterator[Anomaly]:
    for notice in look.notices:
        yield Anomaly(fault=_OF_NOTICE[notice.kind], object=f"pod {notice.facts.key}", text=notice.text)
    for facts in look.waiting():
        if facts.asks and facts.request is None:
            yield Anomaly(fault=Fault.NOT_ADMITTED, object=f"pod {facts.key}", text=UNADMITTED)


def _of_nodes(look: Look) -> Iterator[Anomaly]:
    for name, status in sorted(look.statuses.items()):
        yield from _of_node(f"node {name}", name, status, look)
    for uuid, name in sorted(look.state.inventory.doubled.items()):
        text = f"reports device {uuid}, which another node reports too: not counted here"
        yield Anomaly(fault=Fault.TWICE, object=f"node {name}", text=text)


def _of_node(label: str, name: str, status: GPUNodeStatus, look: Look) -> Iterator[Anomaly]:
    yield from _of_host(label, name, look)
    said = f": {status.message}" if status.message else ""
    if status.isolation == REPORT_TIER:
        yield Anomaly(fault=Fault.NO_ISOLATION, object=label, text=f"nothing enforces limits{said}")
    if not status.isolation:
        yield Anomaly(fault=Fault.NO_ISOLATION, object=label, text="does not say what enforces limits")
    if not status.gate:
        text = f"containers start without being checked against their allocation{said}"
        yield Anomaly(fault=Fault.NO_GATE, object=label, text=text)
    if status.message and status.gate and status.isolation != REPORT_TIER:
        yield Anomaly(fault=Fault.AGENT, object=label, text=status.message)
    yield from _of_devices(label, name, status, look)


def _of_devices(label: str, name: str, status: GPUNodeStatus, look: Look) -> Iterator[Anomaly]:
    for facts in status.devices:
        if not facts.healthy:
            why = facts.reason or "no reason given"
            text = f"device {facts.index} ({facts.uuid}) is unhealthy: {why}"
            yield Anomaly(fault=Fault.UNHEALTHY, object=label, text=text)
    told = {notice.facts.key for notice in look.notices}
    for key, count in sorted(look.state.inventory.marks(name).items()):
        if key in told:
            continue
        text = f"{plural(count, 'device')} held by pod {key} without Tessera"
        yield Anomaly(fault=Fault.FOREIGN, object=label, text=text)


def _of_host(label: str, name: str, look: Look) -> Iterator[Anomaly]:
    node = look.nodes.get(name)
    if node is None:
        text = "has an inventory but is no node of the cluster any more: its devices are not used"
        yield Anomaly(fault=Fault.NODE, object=label, text=text)
    elif not node.ready:
        yield Anomaly(fault=Fault.NODE, object=label, text="is not ready: nothing new is placed on it")


def concerns(anomaly: Anomaly, names: frozenset[str], look: Look) -> bool:
    """Whether it is about one of these nodes, or about a pod on one of them."""
    kind, _, name = anomaly.object.partition(" ")
    if kind == "node":
        return name in names
    return any(facts.key == name and facts.node in names for facts in look.facts.values())
