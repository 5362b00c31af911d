"""What containers and devices use, from the metrics that agents expose; what is not exposed is not known.

The page of one agent is fetched through the API server's proxy: whoever looks needs no road to the node.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Final, Protocol

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tessera.cluster.rights import reading
from tessera.core.errors import UnavailableError
from tessera.core.units import BYTES_PER_MIB
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError, KubeClient, Select
from tessera.wire.kube.objects import Meta

AGENT_LABELS: Final = "app.kubernetes.io/name=tessera,app.kubernetes.io/component=agent"
METRICS_PORT: Final = "metrics"
DEFAULT_PORT: Final = 8080
PARALLEL: Final = 16
"""Agents asked at once."""

CONTAINER_USED: Final = "tessera_container_memory_used_bytes"
CONTAINER_PEAK: Final = "tessera_container_memory_peak_bytes"
CONTAINER_REFUSED: Final = "tessera_container_refused_total"
CONTAINER_ISOLATION: Final = "tessera_container_isolation"
DEVICE_USED: Final = "tessera_device_memory_used_bytes"
DEVICE_BUSY: Final = "tessera_device_utilization_ratio"

Key = tuple[str, str, str, str]
"""Namespace, pod, container, uuid of the device."""


class _Port(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, frozen=True, gc=False):
    ports: tuple[_Port, ...] | None = None


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: tuple[_Container, ...] = ()


class AgentPod(msgspec.Struct, frozen=True, gc=False):
    """The pod of a node's agent."""

    metadata: Meta
    spec: _Spec = _Spec()

    @property
    def port(self) -> int:
        """Where it exposes metrics: its port of that name. The proxy takes numbers only."""
        ports = (port for container in self.spec.containers for port in container.ports or ())
        return next((port.container_port for port in ports if port.name == METRICS_PORT), DEFAULT_PORT)


class ReadingClient(KubeClient, Protocol):
    """A client that can read any address."""

    async def raw(self, path: str) -> bytes:
        """The body of any address."""
        ...


@dataclass(frozen=True, slots=True)
class Used:
    """Amounts in use, by metric and then by container and device, or by device. Absent: not known.

    ``isolation``: how the limits of each container (namespace, pod, name) hold. ``silent`` are the nodes whose
    agent did not answer, with the reason; ``answered`` those whose agent did.
    """

    containers: Mapping[str, Mapping[Key, float]] = field(default_factory=dict)
    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    isolation: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()

    def container(self, metric: str, key: Key) -> float | None:
        """What a container uses of a device; ``None`` where that is not known."""
        return self.containers.get(metric, {}).get(key)

    def device(self, metric: str, uuid: str) -> float | None:
        """What is used of a device, by whomever."""
        return self.devices.get(metric, {}).get(uuid)


def mib(value: float | None) -> int | None:
    """Bytes as whole MiB, rounded up: what is used is never shown as nothing."""
    return None if value is None else -(-int(value) // BYTES_PER_MIB)


def read_pages(pages: Iterable[str]) -> Used:
    """What these pages of metrics say. A page that is none, or broken off, counts as far as it can be read."""
    containers: dict[str, dict[Key, float]] = {}
    devices: dict[str, dict[str, float]] = {}
    isolation: dict[tuple[str, str, str], str] = {}
    for name, labels, value in (sample for page in pages for sample in _samples(page)):
        container = (labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", ""))
        if name in _CONTAINER_METRICS:
            containers.setdefault(name, {})[*container, labels.get("device", "")] = value
        elif name in _DEVICE_METRICS:
            devices.setdefault(name, {})[labels.get("device", "")] = value
        elif name == CONTAINER_ISOLATION and value:
            isolation[container] = labels.get("state", "")
    return Used(containers, devices, isolation)


_CONTAINER_METRICS: Final = frozenset({CONTAINER_USED, CONTAINER_PEAK, CONTAINER_REFUSED})
_DEVICE_METRICS: Final = frozenset({DEVICE_USED, DEVICE_BUSY})


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if isfinite(sample.value):  # what is not a number is not known
                    yield sample.name, sample.labels, sample.value
    except (ValueError, KeyError, IndexError):
        return


async def used_now(client: ReadingClient, namespace: str, nodes: frozenset[str] | None = None) -> Used:
    """Ask the agents of these nodes, or all. One that does not answer is silent and spoils nobody's numbers.

    Raises :class:`UnavailableError` where agents may not be listed, or none of them may be asked.
    """
    with reading("list", PODS, namespace):
        listed = await client.list(PODS, AgentPod, Select(namespace=namespace, labels=AGENT_LABELS))
    agents = [pod for pod in listed.items if pod.spec.node_name and (nodes is None or pod.spec.node_name in nodes)]
    room = asyncio.Semaphore(PARALLEL)
    answers = await asyncio.gather(*(_page(client, agent, room) for agent in agents))
    _refused_everywhere(answers, namespace)
    pages = [answer for answer in answers if isinstance(answer, str)]
    read = read_pages(pages)
    silent = {a.spec.node_name: str(r) for a, r in zip(agents, answers, strict=True) if not isinstance(r, str)}
    answered = frozenset(agent.spec.node_name for agent in agents) - silent.keys()
    return replace(read, silent=silent, answered=answered)


def _refused_everywhere(answers: Sequence[str | Exception], namespace: str) -> None:
    if answers and all(isinstance(answer, ApiError) and answer.code == 403 for answer in answers):
        raise UnavailableError(
            f"you may not get pods/proxy in namespace {namespace}, through which agents are asked",
            f"check with 'kubectl auth can-i get pods/proxy -n {namespace}', and ask for a role that allows it",
        )


async def _page(client: ReadingClient, agent: AgentPod, room: asyncio.Semaphore) -> str | Exception:
    meta = agent.metadata
    path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{agent.port}/proxy/metrics"
    async with room:
        try:
            return (await client.raw(path)).decode("utf-8", "replace")
        except (ApiError, ConnectionLostError) as error:
            return error
