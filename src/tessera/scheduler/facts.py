"""What is kept of a pod: the little that decides, so that 100,000 of them fit into memory.

Names of nodes, label sets and container lists repeat a thousand times over; each is kept once.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from tessera.core.request import Container
from tessera.core.ticket import PREFIX
from tessera.policy.soft import Wishes
from tessera.vendors.registry import VENDORS
from tessera.wire.dialects.native import COUNT, RESOURCES
from tessera.wire.dialects.tensor_fusion_keys import ASKING
from tessera.wire.dialects.text import TENSOR_FUSION_PREFIX
from tessera.wire.kube.extender import containers_of, devices_asked, resources_of, tickets_of
from tessera.wire.kube.names import ALLOCATION, MANAGED, REQUEST, RESIZE
from tessera.wire.kube.objects import KubePod
from tessera.wire.kube.wishes import wishes_of

COUNTING: Final = frozenset({COUNT, *(vendor.hami.count for vendor in VENDORS)})
"""Resources that count whole devices, whoever hands them out."""

SHARING: Final = frozenset({*RESOURCES, *(name for v in VENDORS for name in (v.hami.count, *v.hami.shares))})
"""Resources by which a pod asks for something of ours."""

_OTHERS: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""What nearly every container asks for, and no business of ours."""

MARK: Final = "tessera-wake"
"""The node, which does not exist, for which a waiting pod is nominated for a moment (:mod:`.waker`)."""

_ASKING: Final = frozenset(TENSOR_FUSION_PREFIX + key for key in ASKING)


class PodFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pod, thinly. ``node`` is empty while it is not bound; ``finished`` when its containers ended for good.

    ``admitted``: the kubelet has taken it in, so its tickets are used up. ``devices``: whole devices that its
    resources ask for. ``asks``: asks for something of ours, in any dialect. ``flaw``: what is wrong with its
    tickets. ``containers`` is empty for pods without a request. ``wishes`` are kept until the pod is bound, and
    ``resize``, which is a wish for another share, from then on.
    ``nominated``: the node that the pod is expected on, or :data:`MARK`.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    scheduler: str = ""
    created: str = ""
    finished: bool = False
    leaving: bool = False
    admitted: bool = False
    managed: bool = False
    nominated: str = ""
    priority: int = 0
    asks: bool = False
    devices: int = 0
    request: str | None = None
    allocation: str | None = None
    resize: str | None = None
    tickets: tuple[tuple[str, int], ...] = ()
    flaw: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    containers: tuple[Container, ...] = ()
    wishes: Wishes | None = None

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def matters(self) -> bool:
        """Whether the pod holds, or will hold, devices."""
        return bool(self.request or self.allocation or self.devices or self.asks)


class Facts:
    """Makes :class:`PodFacts`, keeping equal parts once. One per process."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._labels: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        self._containers: dict[tuple[Container, ...], tuple[Container, ...]] = {}

    def of(self, pod: KubePod) -> PodFacts:
        """What is kept of ``pod``."""
        meta, spec = pod.metadata, pod.spec
        request = meta.annotation(REQUEST)
        asked = read_resources(pod)
        facts = PodFacts(
            uid=meta.uid,
            namespace=self._name(meta.namespace),
            name=meta.name,
            node=self._name(spec.node_name),
            scheduler=self._name(spec.scheduler_name),
            created=meta.creation_timestamp or "",
            finished=pod.finished,
            leaving=meta.deletion_timestamp is not None,
            admitted=_admitted(pod),
            managed=meta.label(MANAGED[0]) == MANAGED[1],
            nominated=self._name(pod.status.nominated_node_name),
            priority=spec.priority or 0,
            asks=asked.ours or not _ASKING.isdisjoint(meta.annotations or ()),
            devices=asked.devices,
            request=None if request is None else self._name(request),
            allocation=meta.annotation(ALLOCATION),
            tickets=asked.tickets,
            flaw=asked.flaw,
            labels=_once(self._labels, tuple(sorted((meta.labels or {}).items()))),
            containers=_once(self._containers, containers_of(pod)) if request is not None else (),
            wishes=None if request is None or spec.node_name else wishes_of(pod),
        )
        resize = meta.annotation(RESIZE) if request is not None and spec.node_name else None
        return facts if resize is None else msgspec.structs.replace(facts, resize=resize)  # nearly no pod has one

    def _name(self, text: str) -> str:
        return _once(self._names, text)


_Part = TypeVar("_Part", bound=Hashable)
REMEMBERED: Final = 65_536
"""Parts that are known at once; beyond, all are forgotten, which costs memory and nothing else."""


def _once(known: dict[_Part, _Part], part: _Part) -> _Part:
    if len(known) > REMEMBERED:
        known.clear()
    return known.setdefault(part, part)


def _admitted(pod: KubePod) -> bool:
    status = pod.status
    started = status.container_statuses or status.init_container_statuses
    return bool(pod.spec.node_name and (started or status.phase not in ("", "Pending")))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod's resources say: whole devices at its peak, tickets by container, whether any of it is ours."""

    devices: int = 0
    tickets: tuple[tuple[str, int], ...] = ()
    flaw: str = ""
    ours: bool = False


_NOTHING: Final = Asked()


def read_resources(pod: KubePod) -> Asked:
    """What the pod asks for by its resources, in any dialect, whoever admitted it."""
    names = {name for container in pod.spec.all_containers() for name in resources_of(container)}
    if _OTHERS.issuperset(names):
        return _NOTHING
    devices = 0 if COUNTING.isdisjoint(names) else devices_asked(pod, COUNTING)
    tickets = any(name.startswith(PREFIX) for name in names)
    ours = tickets or not SHARING.isdisjoint(names)
    if not tickets:
        return Asked(devices, ours=ours)
    try:
        return Asked(devices, tuple(tickets_of(pod).items()), ours=ours)
    except ValueError as error:
        return Asked(devices, flaw=str(error), ours=ours)
