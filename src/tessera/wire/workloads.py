"""Kubernetes objects to the pods that they make: how many, under which names, and on which nodes.

Names and uids are made, not drawn: the same input gives the same pods, whoever plans it and when.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tessera.wire.fields import Findings, count_at, mapping_at

Nodes = Sequence[tuple[str, Mapping[str, str] | None]]
"""Nodes by name with their labels; ``None`` where those are not known, so that a selector rules nothing out."""

MOST_PODS: Final = 100_000
"""Pods that one object may make; more is a slip of the keyboard."""


class Instance(NamedTuple):
    """One pod of an object: its name, what tells it from its siblings, and the node that it is pinned to."""

    name: str
    ordinal: str
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods of one object: their metadata and spec, and each of them. ``why`` says why there is none."""

    metadata: Mapping[str, object]
    spec: Mapping[str, object]
    instances: tuple[Instance, ...]
    why: str = ""


_Count = Callable[[Mapping[str, object], Findings], int]


class _Kind(NamedTuple):
    """An API group per kind, and how many pods its spec makes; ``None`` where the nodes decide, or it is one."""

    groups: frozenset[str]
    pods: _Count | None = None


def _replicas(spec: Mapping[str, object], findings: Findings) -> int:
    return count_at(spec, "replicas", 1, findings)


def _job_pods(spec: Mapping[str, object], findings: Findings) -> int:
    """Pods that a Job runs at a time. Source: batch/v1 JobSpec."""
    parallelism = count_at(spec, "parallelism", 1, findings)
    return min(parallelism, count_at(spec, "completions", parallelism, findings))


_APPS: Final = frozenset({"apps", "extensions"})
_CORE: Final = frozenset({""})
_BATCH: Final = frozenset({"batch"})
KINDS: Final[Mapping[str, _Kind]] = {
    "Pod": _Kind(_CORE),
    "Deployment": _Kind(_APPS, _replicas),
    "StatefulSet": _Kind(_APPS, _replicas),
    "ReplicaSet": _Kind(_APPS, _replicas),
    "DaemonSet": _Kind(_APPS),
    "ReplicationController": _Kind(_CORE, _replicas),
    "Job": _Kind(_BATCH, _job_pods),
    "CronJob": _Kind(_BATCH, _job_pods),
}
"""Kinds that make pods."""


def makes_pods(kind: str, group: str) -> bool:
    """Whether objects of this kind and API group make pods that we know how to count."""
    return kind in KINDS and group in KINDS[kind].groups


def expand(kind: str, name: str, raw: Mapping[str, object], nodes: Nodes, findings: Findings) -> Workload:
    """Every pod that the object makes; ``kind`` must be one of :data:`KINDS`."""
    spec = mapping_at(raw, "spec", "spec", findings)
    if kind == "Pod":
        return _expand_pod(name, raw, spec, findings)
    if kind == "CronJob":
        template = mapping_at(spec, "jobTemplate", "spec.jobTemplate", findings)
        job = mapping_at(template, "spec", "spec.jobTemplate.spec", findings)
        return _expand_template(kind, name, job, nodes, findings, suspended=spec.get("suspend") is True)
    return _expand_template(kind, name, spec, nodes, findings, suspended=spec.get("suspend") is True)


def _expand_pod(name: str, raw: Mapping[str, object], spec: Mapping[str, object], findings: Findings) -> Workload:
    metadata = mapping_at(raw, "metadata", "metadata", findings)
    status = raw.get("status")
    phase = status.get("phase") if isinstance(status, dict) else None
    if phase in ("Succeeded", "Failed"):
        return Workload(metadata, spec, (), f"has finished ({phase})")
    return Workload(metadata, spec, (Instance(name, ""),))


def _expand_template(
    kind: str, name: str, spec: Mapping[str, object], nodes: Nodes, findings: Findings, *, suspended: bool
) -> Workload:
    template = mapping_at(spec, "template", "spec.template", findings)
    metadata = mapping_at(template, "metadata", "spec.template.metadata", findings)
    pod = mapping_at(template, "spec", "spec.template.spec", findings)
    count = KINDS[kind].pods
    if suspended and kind in ("Job", "CronJob"):
        return Workload(metadata, pod, (), "is suspended")
    if count is None:
        chosen = _matching(pod, nodes)
        instances = tuple(Instance(f"{name}-{node}", node, node) for node in chosen)
        return Workload(metadata, pod, instances, "" if instances else "matches no node")
    number = count(spec, findings)
    if number > MOST_PODS:
        message = f"makes more than {MOST_PODS:,} pods"
        findings.error("spec", number, message, "lower its replicas")
        number = 0
    first = _first_ordinal(kind, spec, findings)
    instances = tuple(Instance(f"{name}-{n}", str(n)) for n in range(first, first + number))
    return Workload(metadata, pod, instances, "" if instances else "has no replicas")


def _first_ordinal(kind: str, spec: Mapping[str, object], findings: Findings) -> int:
    """Source: apps/v1 StatefulSetOrdinals."""
    if kind != "StatefulSet":
        return 0
    return count_at(mapping_at(spec, "ordinals", "spec.ordinals", findings), "start", 0, findings)


def _matching(pod: Mapping[str, object], nodes: Nodes) -> tuple[str, ...]:
    """Names of the nodes whose labels the pod's nodeSelector matches; what is wrong with it is noted later."""
    selector = pod.get("nodeSelector")
    wanted = selector if isinstance(selector, dict) else {}
    return tuple(
        name
        for name, labels in nodes
        if labels is None or all(labels.get(key) == value for key, value in wanted.items())
    )
