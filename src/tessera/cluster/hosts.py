"""What nodes have besides devices, and what pods take of that: CPU, memory, places; labels and cordons."""

from collections.abc import Mapping
from typing import Final

from tessera.cluster.objects import SeenNode, SeenPod
from tessera.core.device import Node
from tessera.core.request import Container
from tessera.wire.dialects.text import ContainerText, Pairs, PodText
from tessera.wire.fields import Findings
from tessera.wire.kube.extender import containers_of
from tessera.wire.kube.objects import Resources
from tessera.wire.podspec import Peak, Spec, peak_of
from tessera.wire.quantity import Malformed, parse_quantity, to_count, to_mib, to_milli

_COUNTED: Final = ("cpu", "memory")
_WHOLE: Final = Container("")
_REMEMBERED: Final = 4096

_Key = tuple[tuple[ContainerText, ...], ContainerText, Pairs]


def as_host(node: Node, seen: SeenNode | None) -> Node:
    """``node`` with what Kubernetes knows of it. One that is gone or not ready takes no pods: it is cordoned."""
    if seen is None:
        return Node(node.name, node.devices, cordoned=True)
    room = seen.status.allocatable or {}
    cpu, memory, pods = (parse_quantity(str(room[name])) if name in room else None for name in (*_COUNTED, "pods"))
    return Node(
        node.name,
        node.devices,
        cpu_milli=None if cpu is None or isinstance(cpu, Malformed) else to_milli(cpu),
        memory_mib=None if memory is None or isinstance(memory, Malformed) else to_mib(memory),
        max_pods=None if pods is None or isinstance(pods, Malformed) else _count(to_count(pods)),
        cordoned=seen.spec.unschedulable or not seen.ready,
        labels=seen.metadata.labels or {},
    )


def _count(value: int | Malformed) -> int | None:
    return None if isinstance(value, Malformed) else value


class Peaks:
    """What pods take of their nodes at their peak; pods that are alike are read once."""

    def __init__(self) -> None:
        self._known: dict[_Key, Peak] = {}

    def of(self, pod: SeenPod) -> Peak:
        """CPU and memory, as kube-scheduler counts them."""
        spec = pod.spec
        key = (_containers(pod), _text(_WHOLE, spec.resources), _pairs(spec.overhead))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            containers, whole, overhead = key
            read = Spec(PodText(containers, (), (), None), whole, overhead, None, ())
            found = self._known[key] = peak_of(read, Findings())
        return found


def _containers(pod: SeenPod) -> tuple[ContainerText, ...]:
    listed = zip(containers_of(pod), pod.spec.all_containers(), strict=True)
    return tuple(_text(container, raw.resources) for container, raw in listed)


def _text(container: Container, resources: Resources | None) -> ContainerText:
    if resources is None:
        return ContainerText(container)
    return ContainerText(container, _pairs(resources.limits), _pairs(resources.requests))


def _pairs(quantities: Mapping[str, str] | None) -> Pairs:
    return tuple((name, str(quantities[name])) for name in _COUNTED if name in quantities) if quantities else ()
