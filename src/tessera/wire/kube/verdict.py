"""What a pod's content comes to: the request that stands in it, who holds it, and everything wrong with it.

A verdict depends on the content alone, so that the hundreds of pods of one template are read once
(:mod:`tessera.wire.kube.form`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from tessera.core.errors import Problem, Severity
from tessera.core.request import Dialect, Request
from tessera.core.share import MemoryFraction
from tessera.core.units import WHOLE
from tessera.vendors.registry import BY_COUNT, VENDORS
from tessera.wire.dialects import native, read_pod
from tessera.wire.dialects.hami import shares_hami
from tessera.wire.dialects.registry import dialects_of
from tessera.wire.dialects.tensor_fusion import PROFILE
from tessera.wire.dialects.tensor_fusion_keys import VRAM, path
from tessera.wire.dialects.text import TENSOR_FUSION_PREFIX, ContainerText, Pairs, PodText, Reading, annotation
from tessera.wire.fields import Findings
from tessera.wire.kube.hazards import find_hazards
from tessera.wire.kube.names import DEFAULT_SCHEDULER_NAME, SCHEDULER_NAME
from tessera.wire.kube.podview import PodView, SpecView
from tessera.wire.kube.request import encode_request
from tessera.wire.podspec import read_spec

_FORMER_SCHEDULERS: Final = frozenset({"hami-scheduler", "tensor-fusion-scheduler"})
"""Schedulers of the systems whose dialects we read; a manifest that names one means: share the device."""

_MEMORY: Final = {native.MEMORY, native.MEMORY_PERCENT} | {
    name for vendor in VENDORS for name in (vendor.hami.memory, vendor.hami.memory_percent)
}
_WHOLE_BY_CHOICE: Final = VRAM | {"dedicated-gpu", "isolation"}


class Privileged(StrEnum):
    """What becomes of a privileged container that asks for a part of a device."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Options:
    """What a cluster's administrator decides: the scheduler that places, and how to meet privileged fractions."""

    scheduler_name: str = SCHEDULER_NAME
    privileged: Privileged = Privileged.REFUSE

    def ours(self, scheduler_name: str) -> bool:
        """Whether a pod that names this scheduler means ours, or none in particular."""
        known = _FORMER_SCHEDULERS | {"", DEFAULT_SCHEDULER_NAME, self.scheduler_name}
        return scheduler_name in known


@dataclass(frozen=True, slots=True)
class Profile:
    """A WorkloadProfile: what it says as annotations, and what is wrong with it."""

    pairs: Pairs
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``request`` is the annotation's text, ``None`` for a pod that asks for nothing of ours or is wrong.

    ``holders`` are the containers that appear in a claim. ``errors`` refuse the pod, ``warnings`` do not.
    """

    dialect: Dialect | None = None
    request: str | None = None
    holders: frozenset[str] = frozenset()
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


_encoder: Final = msgspec.json.Encoder()


def profile_name(pod: PodView) -> str | None:
    """Name of the WorkloadProfile that ``pod`` wants."""
    annotations = pod.metadata.annotations if pod.metadata else None
    return (annotations or {}).get(PROFILE, "").strip() or None


def judge(content: PodView, profile: Profile | None, options: Options) -> Verdict:
    """The verdict on a pod of this content. Deterministic."""
    findings = Findings()
    raw = msgspec.json.decode(_encoder.encode(content))
    named = profile_name(content)
    pairs = profile.pairs if profile is not None else () if named else None
    text = read_spec(raw["metadata"], {key: raw["spec"].get(key) for key in _READ}, pairs, findings).text
    used = dialects_of(text)
    if not used:
        return Verdict()  # whatever else is wrong with it is the API server's to say
    if named and used == (Dialect.TENSOR_FUSION,) and not _has_profile(named, profile, findings):
        return Verdict(Dialect.TENSOR_FUSION, errors=tuple(findings.found))  # what it says is not known
    reading = read_pod(text)
    findings.found.extend(reading.findings)
    if reading.request is not None or findings.failed:
        _check_node(content.spec or SpecView(), findings)
    if reading.request is not None:
        if _is_foreign(content.spec or SpecView(), text, reading, options, findings):
            return Verdict(warnings=tuple(findings.found))
        _check_pod(content.spec or SpecView(), text, reading.request, reading.dialect, options, findings)
    return _verdict(reading, findings)


_READ: Final = ("containers", "initContainers")


def _verdict(reading: Reading, findings: Findings) -> Verdict:
    errors = tuple(problem for problem in findings.found if problem.severity is Severity.ERROR)
    warnings = tuple(problem for problem in findings.found if problem.severity is Severity.WARNING)
    if errors or reading.request is None or reading.dialect is None:
        return Verdict(reading.dialect, errors=errors, warnings=warnings)
    holders = frozenset(name for claim in reading.request.claims for name in claim.containers)
    return Verdict(reading.dialect, encode_request(reading.request, reading.dialect), holders, (), warnings)


# checks of a pod on a cluster, beside those of its dialect


def _has_profile(named: str, profile: Profile | None, findings: Findings) -> bool:
    if profile is None:
        message = "names a WorkloadProfile that is not in the pod's namespace"
        findings.error(annotation(PROFILE), named, message, "create it first, or correct the name")
    else:
        findings.found.extend(profile.problems)
    return profile is not None


def _check_node(spec: SpecView, findings: Findings) -> None:
    if spec.node_name:
        message = "goes round the scheduler, so that nobody hands out a device"
        remedy = f"use nodeSelector kubernetes.io/hostname: {spec.node_name} instead"
        findings.error("spec.nodeName", spec.node_name, message, remedy)


def _is_foreign(spec: SpecView, text: PodText, reading: Reading, options: Options, findings: Findings) -> bool:
    """Whether another scheduler is to place the pod, which may hand out whole devices by itself but no shares."""
    name = spec.scheduler_name or ""
    if options.ours(name):
        return False
    if reading.dialect is Dialect.HAMI and not shares_hami(text):
        message = "places this pod, so that its devices are whole and outside of Tessera's care"
        findings.warn("spec.schedulerName", name, message, "leave it out to have Tessera place it")
        return True
    message = "cannot hand out a share of a device"
    findings.error("spec.schedulerName", name, message, f"leave it out, or write {options.scheduler_name}")
    return False


def _check_pod(
    spec: SpecView,
    text: PodText,
    request: Request,
    dialect: Dialect | None,
    options: Options,
    findings: Findings,
) -> None:
    fractions = {name for c in request.claims if not c.share.exclusive for name in c.containers}
    find_hazards(spec, fractions, findings, refuse_privileged=options.privileged is Privileged.REFUSE)
    for field, remedy in _whole_by_default(text, request, dialect):
        message = "asks for no memory, and so for the whole of each device"
        findings.warn(field, "", message, f"add {remedy} to share it")


def _whole_by_default(text: PodText, request: Request, dialect: Dialect | None) -> Iterator[tuple[str, str]]:
    """Where memory was left out, and so is all of each device's; and what to add to ask for less."""
    whole = {
        name: None
        for claim in request.claims
        if claim.share.memory_request == MemoryFraction(WHOLE)
        for name in claim.containers
    }
    if dialect is Dialect.TENSOR_FUSION:
        given = {key for key, _ in (*text.annotations, *(text.profile or ()))}
        chosen = {key for name in _WHOLE_BY_CHOICE for key in (name, TENSOR_FUSION_PREFIX + name)}
        if whole and given.isdisjoint(chosen) and all(c.share.exclusive for c in request.claims):
            yield "annotations", path("vram-request")
        return
    for container in text.containers:
        if container.name in whole and _MEMORY.isdisjoint(container.resources()):
            yield _counted(container)


def _counted(container: ContainerText) -> tuple[str, str]:
    """The field that counts a container's devices, and the resource that would ask for a part of their memory."""
    for name in container.resources():
        if name in BY_COUNT:
            return container.field(name), BY_COUNT[name].hami.memory
    return container.field(native.COUNT), native.MEMORY
