"""One look at a cluster: what there is, who holds it, what waits. Needs the rights to list and nothing more.

The ledger is the scheduler's own (:mod:`tessera.scheduler.state`), rebuilt from one list of everything: what is
shown here is what a scheduler that starts now would believe. Nothing is read from a status that shows free room.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tessera.allocator.ledger import Ledger
from tessera.cluster.hosts import Peaks, as_host
from tessera.cluster.objects import SeenGPUNode, SeenNode, SeenPod
from tessera.cluster.rights import reading
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.placement import Placement
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.kube.port import (
    GPU_NODES,
    NODES,
    PODS,
    ApiError,
    Kind,
    KubeClient,
    Select,
)
from tessera.scheduler.facts import Facts, PodFacts
from tessera.scheduler.foreign import entry_of
from tessera.scheduler.offers import offered_by
from tessera.scheduler.state import Notice, State
from tessera.wire.kube.inventory import GPUNodeStatus

UNFINISHED: Final = Select(fields="status.phase!=Succeeded,status.phase!=Failed")
"""Pods that ended hold nothing."""

STARTS: Final = 4
"""How often the list of pods is begun that expires between two pages."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at one moment.

    ``state`` is what the scheduler would know. ``snapshot`` has the same devices and shares, on nodes whose CPU,
    memory, labels and cordons are known too, with every pod that takes of those: ``held``. ``statuses`` are what
    agents report, by node; ``pods`` and ``facts`` the pods that hold devices or ask for them, by uid.
    """

    state: State
    snapshot: Snapshot
    held: tuple[Placement, ...]
    nodes: Mapping[str, SeenNode]
    statuses: Mapping[str, GPUNodeStatus]
    pods: Mapping[str, SeenPod]
    facts: Mapping[str, PodFacts]
    notices: tuple[Notice, ...]

    @property
    def fleet(self) -> Fleet:
        """All devices."""
        return self.snapshot.fleet

    def waiting(self) -> tuple[PodFacts, ...]:
        """The pods that ask for devices and are on no node yet, in the order in which they came."""
        found = (f for f in self.facts.values() if not f.node and not f.leaving)
        return tuple(sorted(found, key=lambda f: (f.created, f.key)))


async def observe(client: KubeClient) -> Look:
    """Look once. Raises :class:`UnavailableError` where a right is missing or the API server does not answer.

    Inventory is read before pods, so that a pod which was bound in between is there with its devices.
    """
    reports = await _all(client, GPU_NODES, SeenGPUNode)
    nodes = {node.metadata.name: node for node in await _all(client, NODES, SeenNode)}
    state = State(POLICIES[DEFAULT_POLICY])
    for name, node in nodes.items():
        state.saw_node(name, node.metadata.labels or {}, offered_by(node.status.allocatable))
    for report in reports:
        state.saw_gpu_node(report.metadata.name, report.status)
    state.rebuild()
    pods = _Pods(state)
    for pod in await _pods(client):
        pods.take(pod)
    held = tuple(_with_hosts(placements(state), pods.hosted))
    fleet = Fleet([as_host(node, nodes.get(node.name)) for node in state.fleet.nodes])
    return Look(
        state=state,
        snapshot=Ledger.rebuilt(fleet, held).snapshot(),
        held=held,
        nodes=nodes,
        statuses={report.metadata.name: report.status for report in reports},
        pods=pods.seen,
        facts=pods.facts,
        notices=tuple(state.take_notices()),
    )


class _Pods:
    """Takes pods one by one: into the ledger, and what people may want to know of them."""

    def __init__(self, state: State) -> None:
        self.seen: dict[str, SeenPod] = {}
        self.facts: dict[str, PodFacts] = {}
        self.hosted: dict[str, Placement] = {}
        self._state = state
        self._facts, self._peaks = Facts(), Peaks()

    def take(self, pod: SeenPod) -> None:
        """Take in one pod."""
        facts = self._facts.of(pod)
        self._state.saw_pod(None, facts, 0.0)
        if facts.matters:
            self.seen[facts.uid], self.facts[facts.uid] = pod, facts
        if facts.node:
            peak = self._peaks.of(pod)
            self.hosted[facts.uid] = Placement(
                facts.uid, facts.key, facts.node, {}, (), peak.cpu_milli, peak.memory_mib
            )


def placements(state: State) -> Iterable[Placement]:
    """What pods hold of devices, and what is set aside for pods that use devices without us."""
    yield from (held.placement for _, held in state.holdings.items())
    for node in state.foreign:
        yield from state.asides(node)


def _with_hosts(placements: Iterable[Placement], hosted: dict[str, Placement]) -> Iterable[Placement]:
    """The placements with what their pods take of CPU and memory, and then every other pod's CPU and memory."""
    own = {entry_of(uid): uid for uid in hosted}
    for placement in placements:
        uid = own.get(placement.pod_uid, placement.pod_uid)
        host = hosted.pop(uid, None)
        yield (
            placement if host is None else replace(placement, cpu_milli=host.cpu_milli, memory_mib=host.memory_mib)
        )
    yield from hosted.values()


async def _all(client: KubeClient, kind: Kind, as_: type[T]) -> tuple[T, ...]:
    with reading("list", kind):
        return (await client.list(kind, as_)).items


async def _pods(client: KubeClient) -> list[SeenPod]:
    with reading("list", PODS):
        for left in reversed(range(STARTS)):
            try:
                return [pod async for pod in _paged(client)]
            except ApiError as error:
                if error.code != 410 or not left:
                    raise
    raise AssertionError("every start returns or raises")


async def _paged(client: KubeClient) -> AsyncIterator[SeenPod]:
    async for page in client.pages(PODS, SeenPod, UNFINISHED):
        for pod in page.items:
            yield pod
