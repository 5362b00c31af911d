"""A pod's metadata and spec, as text for the dialects; what it asks of CPU and memory; where it must go.

Only what decides a placement is read. What is read is checked as the API server would check it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tessera.core.request import Container, ContainerKind, phases
from tessera.vendors.registry import RESOURCE_DOMAINS, VENDORS
from tessera.wire.dialects.text import (
    HAMI_PREFIX,
    NATIVE_PREFIX,
    TENSOR_FUSION_PREFIX,
    ContainerText,
    Pairs,
    PodText,
    read_number,
)
from tessera.wire.fields import Findings, list_at, mapping_at
from tessera.wire.quantity import Malformed, quantity_text, to_mib, to_milli

_OURS: Final = RESOURCE_DOMAINS | {
    prefix.rstrip("/") for prefix in (HAMI_PREFIX, NATIVE_PREFIX, TENSOR_FUSION_PREFIX)
}
_SWITCHES: Final = frozenset(vendor.control_disable_env for vendor in VENDORS)
_WHOLE: Final = Container("")
_LISTS: Final = (("initContainers", ContainerKind.INIT), ("containers", ContainerKind.APP))


@dataclass(frozen=True, slots=True)
class Peak:
    """What a pod asks of its node at its peak: milli-cores and MiB, both rounded up."""

    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Spec:
    """A pod's spec: text for the dialects, its other resources as text, and what binds it to nodes."""

    text: PodText
    whole: ContainerText
    overhead: Pairs
    node_name: str | None
    node_selector: Pairs


def read_spec(
    metadata: Mapping[str, object], spec: Mapping[str, object], profile: Pairs | None, findings: Findings
) -> Spec:
    """Everything of a pod that decides its placement; what is wrong with it is noted in ``findings``."""
    containers = tuple(_read_containers(spec, findings))
    if not containers and not findings.failed:
        findings.error("spec.containers", "", "has no container", "add one")
    node_name = spec.get("nodeName")
    if node_name is not None and not isinstance(node_name, str):
        findings.error("spec.nodeName", node_name, "must be text", "quote it")
    if spec.get("affinity"):
        findings.warn("spec.affinity", "", "is not considered yet", "use spec.nodeSelector")
    return Spec(
        text=PodText(
            containers=containers,
            annotations=tuple(_read_keys(metadata, "annotations", findings)),
            labels=tuple(_read_keys(metadata, "labels", findings)),
            profile=profile,
        ),
        whole=_read_resources(spec, "spec", _WHOLE, findings) if spec.get("resources") else ContainerText(_WHOLE),
        overhead=_read_quantities(spec, "overhead", "spec.overhead", findings),
        node_name=node_name if isinstance(node_name, str) and node_name else None,
        node_selector=_read_selector(spec, findings),
    )


def _read_keys(metadata: Mapping[str, object], kind: str, findings: Findings) -> Iterable[tuple[str, str]]:
    """Annotations or labels under the prefixes that dialects read."""
    for key, value in mapping_at(metadata, kind, f"metadata.{kind}", findings).items():
        if not isinstance(key, str) or key.partition("/")[0] not in _OURS:
            continue
        if isinstance(value, str):
            yield key, value
        else:
            findings.error(f"{kind}[{key}]", value, "must be text, as Kubernetes demands", "put it in quotes")


def _read_selector(spec: Mapping[str, object], findings: Findings) -> Pairs:
    selector = mapping_at(spec, "nodeSelector", "spec.nodeSelector", findings)
    for key, value in selector.items():
        if not isinstance(value, str):
            findings.error(
                f"spec.nodeSelector[{key}]", value, "must be text, as Kubernetes demands", "put it in quotes"
            )
    return tuple(sorted((str(key), value) for key, value in selector.items() if isinstance(value, str)))


# containers


def _read_containers(spec: Mapping[str, object], findings: Findings) -> Iterable[ContainerText]:
    seen: set[str] = set()
    for key, kind in _LISTS:
        for place, raw in enumerate(list_at(spec, key, f"spec.{key}", findings)):
            where = f"spec.{key}[{place}]"
            if not isinstance(raw, dict):
                findings.error(where, raw, "must be a mapping", "write a container with a name")
                continue
            name = raw.get("name")
            if not isinstance(name, str) or not name:
                findings.error(f"{where}.name", name, "is not a container's name", "write one")
                continue
            if name in seen:
                findings.error(f"{where}.name", name, "is the name of two containers", "rename one of them")
            seen.add(name)
            sidecar = kind is ContainerKind.INIT and raw.get("restartPolicy") == "Always"
            container = Container(name, ContainerKind.SIDECAR if sidecar else kind)
            yield _read_resources(raw, f"containers[{name}]", container, findings)


def _read_resources(
    raw: Mapping[str, object], where: str, container: Container, findings: Findings
) -> ContainerText:
    resources = mapping_at(raw, "resources", f"{where}.resources", findings)
    security = raw.get("securityContext")
    env = raw.get("env")
    return ContainerText(
        container=container,
        limits=_read_quantities(resources, "limits", f"{where}.resources.limits", findings),
        requests=_read_quantities(resources, "requests", f"{where}.resources.requests", findings),
        unlimited=isinstance(env, list) and any(_switched_off(entry) for entry in env),
        privileged=isinstance(security, dict) and security.get("privileged") is True,
    )


def _switched_off(entry: object) -> bool:
    """Whether an environment entry asks for a container without limits."""
    return (
        isinstance(entry, dict)
        and entry.get("name") in _SWITCHES
        and str(entry.get("value")).casefold() in ("true", "1")
    )


def _read_quantities(raw: Mapping[str, object], key: str, where: str, findings: Findings) -> Pairs:
    """Resources under ``key`` as text; whether the text is a quantity is for whoever needs its number."""
    if raw.get(key) is None:
        return ()
    found = []
    for name, value in mapping_at(raw, key, where, findings).items():
        text = value if type(value) is str else quantity_text(value)
        if isinstance(text, Malformed):
            findings.error(f"{where}[{name}]", value, text.message, text.remedy)
        else:
            found.append((str(name), text.strip()))
    return tuple(found)


# CPU and memory


def peak_of(spec: Spec, findings: Findings) -> Peak:
    """CPU and memory at the pod's peak, as kube-scheduler counts them.

    A container that has only a limit requests it. What the pod requests as a whole (Kubernetes 1.34) stands for
    the sum of its containers; overhead comes on top. Source: KEP-753, KEP-2837, KEP-688.
    """
    cpu = _peak(spec, "cpu", findings)
    memory = _peak(spec, "memory", findings)
    return Peak(to_milli(cpu), to_mib(memory))


def _peak(spec: Spec, resource: str, findings: Findings) -> Fraction:
    containers = spec.text.containers
    asked = {c.name: _asked(c, resource, findings) for c in containers}
    of_containers = max(
        (
            sum((asked.get(name) or Fraction(0) for name in phase), Fraction(0))
            for phase in phases([c.container for c in containers])
        ),
        default=Fraction(0),
    )
    whole = _asked_whole(spec.whole, resource, findings, fallback=all(value is None for value in asked.values()))
    text = dict(spec.overhead).get(resource)
    overhead = None if text is None else read_number(text, f"spec.overhead[{resource}]", findings)
    return (of_containers if whole is None else whole) + (overhead or 0)


def _asked(container: ContainerText, resource: str, findings: Findings) -> Fraction | None:
    """Request of a container, or its limit where it has no request; ``None`` where it has neither."""
    for side, pairs in (("requests", container.requests), ("limits", container.limits)):
        text = dict(pairs).get(resource)
        if text is not None:
            where = f"containers[{container.name}].resources.{side}[{resource}]"
            return read_number(text, where, findings)
    return None


def _asked_whole(whole: ContainerText, resource: str, findings: Findings, *, fallback: bool) -> Fraction | None:
    """Pod-level request, or its limit where no container says anything; ``None`` where the containers count."""
    request, limit = dict(whole.requests).get(resource), dict(whole.limits).get(resource)
    text = request if request is not None else limit if fallback else None
    return None if text is None else read_number(text, f"spec.resources[{resource}]", findings)
