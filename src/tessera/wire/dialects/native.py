"""Tessera's own dialect: four resources of a container, and annotations for where it may go.

Everything counts per device. A request is charged, a limit is enforced; one that is missing takes the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from tessera.core.priority import WORDS, Priority, priority_of
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference, Request
from tessera.core.share import (
    ComputeMilli,
    MemoryAmount,
    MemoryFraction,
    MemoryMiB,
    ShareSpec,
)
from tessera.core.units import WHOLE, MiB, Milli
from tessera.vendors.registry import MODES, VENDOR_CONSTANTS, canonical_vendor
from tessera.wire.dialects.text import (
    NATIVE_PREFIX,
    ContainerText,
    PodText,
    Reading,
    annotation,
    read_bytes,
    read_devices,
    read_whole_percent,
    reading,
)
from tessera.wire.fields import Findings, did_you_mean, parse_bool, split_list

COUNT: Final = NATIVE_PREFIX + "gpu"
MEMORY: Final = NATIVE_PREFIX + "memory"
MEMORY_PERCENT: Final = NATIVE_PREFIX + "memory-percent"
COMPUTE: Final = NATIVE_PREFIX + "compute"
RESOURCES: Final = (COUNT, MEMORY, MEMORY_PERCENT, COMPUTE)

DECISIONS: Final = ("request", "allocation", "ticket")
"""Names of the records that only Tessera writes; in a manifest they are untrusted and refused."""

_ALL_MEMORY: Final = MemoryFraction(WHOLE)
_ALL_COMPUTE: Final = ComputeMilli(WHOLE)
_POLICIES: Final = ("binpack", "spread", "pwr+", "fgd", "best-fit")
WHOLE_DEVICE: Final = ShareSpec(_ALL_MEMORY, _ALL_MEMORY, _ALL_COMPUTE, _ALL_COMPUTE, exclusive=True)
"""All of a device, and nobody else on it."""


def uses_native(pod: PodText) -> bool:
    """Whether anything on ``pod`` is written in this dialect."""
    return any(key.startswith(NATIVE_PREFIX) for key, _ in pod.annotations) or any(
        key.startswith(NATIVE_PREFIX) for c in pod.containers for key in c.resources()
    )


def read_native(pod: PodText) -> Reading:
    """Request of a pod that is written in Tessera's own resources and annotations."""
    findings = Findings()
    claims = tuple(claim for c in pod.containers if (claim := _read_claim(c, findings)))
    wishes = _read_wishes(pod, findings)
    standing = {key: value for key, value in wishes.items() if key in _STANDING and value is not None}
    claims = tuple(replace(claim, share=replace(claim.share, **standing)) for claim in claims)
    constraints = Constraints(**{key: value for key, value in wishes.items() if key in _CONSTRAINTS})
    preference = Preference(wishes.get("node"), wishes.get("device"))
    _check_groups(constraints, claims, findings)
    if not claims and not findings.failed:
        findings.error("annotations", "", "asks for no device", f"add {COUNT}: 1 to a container's limits")
    return reading(Dialect.NATIVE, Request(claims, constraints, preference), findings)


# resources


def _read_claim(container: ContainerText, findings: Findings) -> Claim | None:
    found = [key for key in container.resources() if key.startswith(NATIVE_PREFIX)]
    for key in found:
        if key not in RESOURCES:
            _refuse(key, container.field(key), RESOURCES, findings)
    if not set(found) & set(RESOURCES):
        return None
    count = _read_count(container, findings)
    memory = _read_memory(container, findings)
    compute = _read_sides(container, COMPUTE, read_whole_percent, findings)
    if memory is None and compute is None:
        return Claim((container.name,), count, WHOLE_DEVICE)
    memory = memory or (_ALL_MEMORY, _ALL_MEMORY)
    requested, limit = compute or (0, 0)
    share = ShareSpec(*memory, ComputeMilli(Milli(requested)), ComputeMilli(Milli(limit or WHOLE)))
    return Claim((container.name,), count, share)


def forged_decisions(pod: PodText) -> Findings:
    """A problem for each record on ``pod`` that only Tessera writes, in whatever dialect the pod is written."""
    findings = Findings()
    for key, _ in pod.annotations:
        if key.startswith(NATIVE_PREFIX) and key.removeprefix(NATIVE_PREFIX).startswith(DECISIONS):
            _refuse(key, f"annotations[{key}]", (), findings)
    return findings


def _refuse(key: str, where: str, known: Sequence[str], findings: Findings) -> None:
    """Note that ``key`` under our prefix is unknown, or a decision that no user may write."""
    if key.removeprefix(NATIVE_PREFIX).startswith(DECISIONS):
        findings.error(where, "", "is written by Tessera only and not believed from a manifest", "remove it")
        return
    remedy = did_you_mean(key, known, f"known are {', '.join(known)}")
    findings.error(where, "", "is not a key of Tessera", remedy)


def _read_count(container: ContainerText, findings: Findings) -> int:
    """Count of devices; where it is wrong a problem is noted, and 1 stands in for it."""
    limit, request = dict(container.limits).get(COUNT), dict(container.requests).get(COUNT)
    texts = [text for text in (limit, request) if text is not None]
    counts = [read_devices(text, container.field(COUNT), findings) for text in dict.fromkeys(texts)]
    found = {count for count in counts if count is not None}
    if len(found) > 1:
        remedy = "a device is whole: request as many as the limit"
        findings.error(container.field(COUNT), limit, f"differs from its request of {request}", remedy)
    return min(found, default=1)


def _read_memory(container: ContainerText, findings: Findings) -> tuple[MemoryAmount, MemoryAmount] | None:
    size = _read_sides(container, MEMORY, _read_size, findings)
    percent = _read_sides(container, MEMORY_PERCENT, _read_some_percent, findings)
    if size and percent:
        remedy = f"keep {MEMORY} or {MEMORY_PERCENT}, not both"
        findings.error(container.field(MEMORY_PERCENT), "", f"contradicts {MEMORY}", remedy)
    if size:
        return MemoryMiB(MiB(size[0])), MemoryMiB(MiB(size[1]))
    if percent:
        return MemoryFraction(Milli(percent[0])), MemoryFraction(Milli(percent[1]))
    return None


def _read_size(text: str, where: str, findings: Findings) -> int | None:
    mib = read_bytes(text, where, findings)
    if mib is not None and mib <= 1 and not text.endswith("i"):
        remedy = "it counts bytes: write 4Gi for four gibibytes, or leave the line out for all of the memory"
        findings.error(where, text, "is less than 1 MiB of memory", remedy)
    return mib


def _read_some_percent(text: str, where: str, findings: Findings) -> int | None:
    milli = read_whole_percent(text, where, findings)
    if milli == 0:
        remedy = "write 1 to 100, or leave the line out for all of the memory"
        findings.error(where, text, "asks for no memory", remedy)
    return milli


def _read_sides(
    container: ContainerText, key: str, read: Callable[[str, str, Findings], int | None], findings: Findings
) -> tuple[int, int] | None:
    """Request and limit of a resource, the missing one taken from the other; ``None`` where neither is sound."""
    limit_text, request_text = dict(container.limits).get(key), dict(container.requests).get(key)
    where = f"containers[{container.name}].resources.requests[{key}]"
    limit = None if limit_text is None else read(limit_text, container.field(key), findings)
    request = limit
    if request_text is not None and request_text != limit_text:
        request = read(request_text, where, findings)
    if limit_text is None:
        limit = request
    if request is None or limit is None:
        return None
    if request > limit:
        remedy = "raise the limit or lower the request"
        findings.error(where, request_text, f"is more than its limit of {limit_text}", remedy)
    return request, limit


# annotations

_CONSTRAINTS: Final = frozenset(f.name for f in fields(Constraints))
_STANDING: Final = frozenset({"priority", "spill"})
_Read = Callable[[str, str, Findings], object]


def _models(text: str, _where: str, _findings: Findings) -> tuple[ModelRule, ...]:
    return tuple(ModelRule(pattern) for pattern in split_list(text, ",|"))


def _uuids(text: str, _where: str, _findings: Findings) -> frozenset[str]:
    return frozenset(split_list(text, ",|"))


def _flag(text: str, where: str, findings: Findings) -> bool:
    value = parse_bool(text)
    if value is None:
        findings.error(where, text, "is not a boolean", 'write "true" or "false"')
    return bool(value)


def _numa(text: str, where: str, findings: Findings) -> bool:
    if text != "same":
        findings.error(where, text, "is not a known NUMA rule", 'write "same", or leave it out')
    return True


def _policy(text: str, where: str, findings: Findings) -> str:
    if text not in _POLICIES:
        known = f"{', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}"
        findings.error(where, text, "is not a known policy", f"write {known}")
    return text


def _modes(text: str, where: str, findings: Findings) -> frozenset[str]:
    modes = frozenset(split_list(text))
    for unknown in sorted(modes - MODES):
        remedy = did_you_mean(unknown, MODES, f"known are {', '.join(sorted(MODES))}")
        findings.error(where, unknown, "is not a known mode of a device", remedy)
    return modes


def _vendor(text: str, where: str, findings: Findings) -> str | None:
    vendor = canonical_vendor(text)
    if vendor is None:
        remedy = did_you_mean(text, VENDOR_CONSTANTS, f"known are {', '.join(VENDOR_CONSTANTS)}")
        findings.error(where, text, "is not a known vendor", remedy)
    return vendor


def _priority(text: str, where: str, findings: Findings) -> Priority | None:
    priority = priority_of(text)
    if priority is None:
        remedy = did_you_mean(text, WORDS, f"known are {', '.join(WORDS)}")
        findings.error(where, text, "is not a known priority", remedy)
    return priority


def _groups(text: str, _where: str, _findings: Findings) -> tuple[tuple[str, ...], ...]:
    return tuple(group for part in split_list(text, ";") if (group := split_list(part)))


ANNOTATIONS: Final[dict[str, tuple[str, _Read]]] = {
    NATIVE_PREFIX + "model": ("models_allowed", _models),
    NATIVE_PREFIX + "exclude-model": ("models_denied", _models),
    NATIVE_PREFIX + "uuid": ("uuids_allowed", _uuids),
    NATIVE_PREFIX + "exclude-uuid": ("uuids_denied", _uuids),
    NATIVE_PREFIX + "numa": ("one_numa", _numa),
    NATIVE_PREFIX + "idle-device": ("idle_device", _flag),
    NATIVE_PREFIX + "distinct-devices": ("distinct_devices", _flag),
    NATIVE_PREFIX + "same-device": ("same_device", _groups),
    NATIVE_PREFIX + "mode": ("modes", _modes),
    NATIVE_PREFIX + "vendor": ("vendor", _vendor),
    NATIVE_PREFIX + "node-policy": ("node", _policy),
    NATIVE_PREFIX + "device-policy": ("device", _policy),
    NATIVE_PREFIX + "priority": ("priority", _priority),
    NATIVE_PREFIX + "spill": ("spill", _read_size),
}
"""Every annotation: the field of Constraints, Preference or ShareSpec that it sets, and how its text is read."""


def _read_wishes(pod: PodText, findings: Findings) -> dict[str, Any]:
    """Values of our annotations by the field that they set."""
    wishes: dict[str, Any] = {}
    for key, text in pod.annotations:
        if not key.startswith(NATIVE_PREFIX):
            continue
        if key not in ANNOTATIONS:
            _refuse(key, annotation(key), tuple(ANNOTATIONS), findings)
        elif text.strip():
            name, read = ANNOTATIONS[key]
            wishes[name] = read(text.strip(), annotation(key), findings)
    return wishes


def _check_groups(constraints: Constraints, claims: Sequence[Claim], findings: Findings) -> None:
    """Note groups of containers that cannot get the very same devices."""
    where = annotation(NATIVE_PREFIX + "same-device")
    counts = {name: claim.count for claim in claims for name in claim.containers}
    seen: set[str] = set()
    for group in constraints.same_device:
        text = ",".join(group)
        for name in group:
            if name not in counts:
                findings.error(where, name, "is no container that asks for devices", "name one that does")
        if len(set(group)) < 2 or seen & set(group):
            findings.error(where, text, "is no group of its own", "name two or more containers, each in one group")
        seen.update(group)
        if len({counts[name] for name in group if name in counts}) > 1:
            findings.error(where, text, "ask for different numbers of devices", "give them equal counts")
    if constraints.same_device and constraints.distinct_devices:
        remedy = f"keep {NATIVE_PREFIX}same-device or {NATIVE_PREFIX}distinct-devices, not both"
        findings.error(where, "", f"contradicts {NATIVE_PREFIX}distinct-devices", remedy)
