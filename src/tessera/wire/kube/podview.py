"""A pod as admission looks at it: names, keys, resources, and what weakens isolation. All else is skipped."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tessera.core.ticket import PREFIX as TICKET_PREFIX
from tessera.vendors.registry import RESOURCE_DOMAINS, VENDORS
from tessera.wire.dialects.native import DECISIONS
from tessera.wire.dialects.text import HAMI_PREFIX, NATIVE_PREFIX, TENSOR_FUSION_PREFIX

VISIBLE_DEVICES: Final = frozenset(vendor.visible_devices_env for vendor in VENDORS)
_WATCHED_ENV: Final = VISIBLE_DEVICES | {vendor.control_disable_env for vendor in VENDORS}
_DOMAINS: Final = RESOURCE_DOMAINS | {p.rstrip("/") for p in (HAMI_PREFIX, NATIVE_PREFIX, TENSOR_FUSION_PREFIX)}
_TICKET: Final = TICKET_PREFIX.rstrip("-")
_FORGEABLE: Final = tuple(NATIVE_PREFIX + name for name in DECISIONS)

Quantities = dict[str, Any]
"""Resources by name, as text or numbers."""


class ResourcesView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container's resources."""

    limits: Quantities | None = None
    requests: Quantities | None = None


class EnvView(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One environment variable that has its value in the pod."""

    name: str = ""
    value: str | None = None


class SecurityView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a container is privileged."""

    privileged: bool | None = None


class ContainerView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A container; ``name`` may be missing in what a user wrote."""

    name: str = ""
    resources: ResourcesView | None = None
    restart_policy: str | None = None
    env: tuple[EnvView, ...] | None = None
    security_context: SecurityView | None = None

    @property
    def privileged(self) -> bool:
        """Whether it reaches every device of its node."""
        return self.security_context is not None and self.security_context.privileged is True


class HostPathView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A path of the node."""

    path: str = ""


class VolumeView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A volume; only a path of the node is of interest."""

    host_path: HostPathView | None = None


class SpecView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A pod's spec."""

    containers: tuple[ContainerView, ...] | None = None
    init_containers: tuple[ContainerView, ...] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    host_ipc: bool | None = msgspec.field(default=None, name="hostIPC")
    host_pid: bool | None = msgspec.field(default=None, name="hostPID")
    share_process_namespace: bool | None = None
    volumes: tuple[VolumeView, ...] | None = None

    def located(self) -> Iterator[tuple[str, int, ContainerView]]:
        """Each container with the list it stands in and its place there, init containers first."""
        for key, containers in (("initContainers", self.init_containers), ("containers", self.containers)):
            for place, container in enumerate(containers or ()):
                yield key, place, container


class MetaView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A pod's metadata; ``None`` is a map that is not there, which matters to a patch."""

    name: str | None = None
    generate_name: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class PodView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod, or a template of one."""

    metadata: MetaView | None = None
    spec: SpecView | None = None


class _TemplateSpec(msgspec.Struct, frozen=True):
    template: PodView = PodView()


class _JobTemplate(msgspec.Struct, frozen=True):
    spec: _TemplateSpec = _TemplateSpec()


class _WorkloadSpec(msgspec.Struct, frozen=True, rename="camel"):
    template: PodView | None = None
    job_template: _JobTemplate | None = None


class _Workload(msgspec.Struct, frozen=True):
    spec: _WorkloadSpec = _WorkloadSpec()


_pods: Final = msgspec.json.Decoder(PodView)
_workloads: Final = msgspec.json.Decoder(_Workload)


def decode_pod(raw: bytes | msgspec.Raw) -> PodView:
    """The pod of these bytes. Raises ``ValueError`` where they are none."""
    try:
        return _pods.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"is no pod: {error}") from error


def decode_template(raw: bytes | msgspec.Raw) -> PodView:
    """The pod template of a workload, a CronJob's included. Raises ``ValueError`` where there is none."""
    try:
        spec = _workloads.decode(raw).spec
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"has no pod template: {error}") from error
    if spec.template is not None:
        return spec.template
    if spec.job_template is not None:
        return spec.job_template.spec.template
    raise ValueError("has no pod template")


# what a reading may depend on


def forgeable(key: str) -> bool:
    """Whether ``key`` is a record or a resource that only Tessera writes."""
    return key.startswith(_FORGEABLE)


def content_of(pod: PodView) -> PodView:
    """``pod`` without its names, without what only Tessera writes, and without keys that no dialect reads.

    Pods of one template have equal content, whatever the API server gave each of them. A map that is not there
    stays away, and each container keeps its place.
    """
    meta, spec = pod.metadata or MetaView(), pod.spec or SpecView()
    return PodView(
        MetaView(annotations=_keys_read(meta.annotations), labels=_keys_read(meta.labels)),
        SpecView(
            containers=_contents(spec.containers),
            init_containers=_contents(spec.init_containers),
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            host_ipc=spec.host_ipc,
            host_pid=spec.host_pid,
            share_process_namespace=spec.share_process_namespace,
            volumes=tuple([volume for volume in spec.volumes or () if volume.host_path is not None]),
        ),
    )


def bears_records(pod: PodView) -> bool:
    """Whether ``pod`` brings an annotation or a resource that only Tessera writes: its content does not tell."""
    annotations = pod.metadata.annotations if pod.metadata else None
    if annotations and any(map(forgeable, annotations)):
        return True
    spec = pod.spec or SpecView()
    return any(
        _has_tickets(one.resources) for several in (spec.containers, spec.init_containers) for one in several or ()
    )


def _keys_read(pairs: dict[str, str] | None) -> dict[str, str] | None:
    if pairs is None:
        return None
    return {
        key: value
        for key, value in pairs.items()
        if key.partition("/")[0] in _DOMAINS and not key.startswith(_FORGEABLE)
    }


def _contents(containers: tuple[ContainerView, ...] | None) -> tuple[ContainerView, ...] | None:
    return None if containers is None else tuple([_content(container) for container in containers])


def _content(container: ContainerView) -> ContainerView:
    resources = container.resources
    return ContainerView(
        container.name,
        _without_tickets(resources) if resources is not None and _has_tickets(resources) else resources,
        container.restart_policy,
        tuple([entry for entry in container.env if entry.name in _WATCHED_ENV]) if container.env else None,
        container.security_context,
    )


def _has_tickets(resources: ResourcesView | None) -> bool:
    if resources is None:
        return False
    for side in (resources.limits, resources.requests):
        for name in side or ():
            if name.startswith(_TICKET):
                return True
    return False


def _without_tickets(resources: ResourcesView) -> ResourcesView:
    return ResourcesView(_others_in(resources.limits), _others_in(resources.requests))


def tickets_in(quantities: Quantities | None) -> Iterator[str]:
    """Names of ticket resources, real and invented."""
    return (name for name in quantities or () if name.startswith(_TICKET))


def _others_in(quantities: Quantities | None) -> Quantities:
    tickets = frozenset(tickets_in(quantities))
    return {name: value for name, value in (quantities or {}).items() if name not in tickets}
