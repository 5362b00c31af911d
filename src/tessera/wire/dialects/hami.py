"""HAMi's dialect: resources counted per device, of each vendor that has a row, and annotations.

Source: HAMi 4707fb02, pkg/scheduler/webhook.go and pkg/device/nvidia/device.go. Where we differ on purpose
(nothing is dropped or guessed in silence) is a table in docs/dialects.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from tessera.core.priority import Priority
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference, Request
from tessera.core.share import ComputeMilli, MemoryAmount, MemoryFraction, MemoryMiB, ShareSpec
from tessera.core.units import WHOLE, MiB, Milli
from tessera.vendors.registry import VENDORS
from tessera.vendors.spec import HamiNames, VendorSpec
from tessera.wire.dialects.native import WHOLE_DEVICE
from tessera.wire.dialects.text import (
    HAMI_PREFIX,
    ContainerText,
    PodText,
    Reading,
    annotation,
    read_devices,
    read_mib,
    read_whole,
    reading,
    warn_misspelt,
)
from tessera.wire.fields import Findings, did_you_mean, parse_bool, split_list
from tessera.wire.quantity import parse_quantity

NODE_POLICY: Final = HAMI_PREFIX + "node-scheduler-policy"
DEVICE_POLICY: Final = HAMI_PREFIX + "gpu-scheduler-policy"
WEIGHTS: Final = HAMI_PREFIX + "device-scoring-weights"
IGNORE_LABEL: Final = (HAMI_PREFIX + "webhook", "ignore")
KEYS: Final = (NODE_POLICY, DEVICE_POLICY, WEIGHTS)

_RANKINGS: Final = ("binpack", "spread")
_MUTEX: Final = "mutex"
_UNRANKED: Final = {
    "numa": "does not order devices by NUMA node yet; use the numa-bind annotation to keep to one",
    "topology-aware": "does not order devices by their links yet",
}
_WEIGHT_NAMES: Final = frozenset({"slot", "core", "memory"})
_PERCENT: Final = 100
_PRIORITIES: Final = {0: Priority.HIGH, 1: Priority.MEDIUM}


def uses_hami(pod: PodText) -> bool:
    """Whether a container asks for devices, or parts of them, in HAMi's resources."""
    return any(True for _ in _vendors_used(pod))


def shares_hami(pod: PodText) -> bool:
    """Whether a container asks for a *part* of a device in HAMi's resources, not only for a count."""
    names = {name for vendor in VENDORS for name in vendor.hami.shares}
    return any(key in names for container in pod.containers for key in container.resources())


def read_hami(pod: PodText) -> Reading:
    """Request of a pod that is written in HAMi's resources; none where it carries HAMi's ignore label."""
    findings = Findings()
    vendor = next(_vendors_used(pod))
    if IGNORE_LABEL in pod.labels:
        message = f"asks for {vendor.hami.count} but tells HAMi to leave it alone; planned without a device"
        findings.warn(
            f"labels[{IGNORE_LABEL[0]}]", IGNORE_LABEL[1], message, "remove the label to have it planned"
        )
        return Reading(None, None, tuple(findings.found))
    claims = tuple(claim for c in pod.containers if (claim := _read_claim(c, vendor, findings)))
    constraints, preference = _read_annotations(pod, vendor, findings)
    if not claims and not findings.failed:
        return Reading(None, None, tuple(findings.found))
    return reading(Dialect.HAMI, Request(claims, constraints, preference), findings)


def _vendors_used(pod: PodText) -> Iterator[VendorSpec]:
    keys = {key for container in pod.containers for key in container.resources()}
    return (vendor for vendor in VENDORS if not keys.isdisjoint((vendor.hami.count, *vendor.hami.shares)))


# resources


class _Asked(NamedTuple):
    """A container's whole numbers; ``None`` where a resource is absent, zero (HAMi's unset) or wrong."""

    memory: int | None
    percent: int | None
    cores: int | None


def _read_claim(container: ContainerText, vendor: VendorSpec, findings: Findings) -> Claim | None:
    names, found = vendor.hami, container.resources()
    if found.keys().isdisjoint((names.count, *names.shares)):
        return None
    if _asks_nothing(container, names, findings):
        return None
    count = read_devices(found[names.count], container.field(names.count), findings) if names.count in found else 1
    asked = _Asked(
        memory=_positive(container, names.memory, "takes all of the memory", findings),
        percent=_read_percent(container, names, findings),
        cores=_read_cores(container, names, findings),
    )
    _warn_of_runtime(container, vendor, findings)
    share = replace(_share(asked, container, names, findings), priority=_read_priority(container, names, findings))
    return Claim((container.name,), count or 1, share)


def _asks_nothing(container: ContainerText, names: HamiNames, findings: Findings) -> bool:
    """A count of zero is how charts say "no device"; beside a share it contradicts itself and is refused later."""
    found = container.resources()
    if parse_quantity(found.get(names.count, "")) != 0 or not found.keys().isdisjoint(names.shares):
        return False
    findings.warn(container.field(names.count), "0", "asks for no device", "leave the line out")
    return True


def _share(asked: _Asked, container: ContainerText, names: HamiNames, findings: Findings) -> ShareSpec:
    """HAMi's defaults: no memory is all of it; all of the memory and no word on cores is the whole device."""
    if asked.memory is None and asked.percent in (None, _PERCENT) and names.cores not in container.resources():
        return WHOLE_DEVICE
    memory: MemoryAmount = MemoryFraction(Milli((asked.percent or _PERCENT) * 10))
    if asked.memory is not None:
        field = container.field(names.memory)
        mib = read_mib(asked.memory * names.memory_factor, str(asked.memory), field, findings)
        memory = MemoryMiB(mib or MiB(0))
        if asked.percent is not None:
            message = f"is ignored, because {names.memory} is given"
            findings.warn(container.field(names.memory_percent), asked.percent, message, "keep one of the two")
    cores = Milli((asked.cores or 0) * 10)
    limit = cores or WHOLE
    return ShareSpec(memory, memory, ComputeMilli(cores), ComputeMilli(limit), exclusive=cores == WHOLE)


def _positive(container: ContainerText, name: str, meaning: str, findings: Findings) -> int | None:
    """Whole number of a resource, ``None`` where it is absent, wrong, or zero, which HAMi reads as absent."""
    text = container.resources().get(name)
    if text is None:
        return None
    number = read_whole(text, container.field(name), findings)
    if number == 0:
        findings.warn(container.field(name), text, f"counts as not given, and so {meaning}", "leave the line out")
    return number or None


def _read_percent(container: ContainerText, names: HamiNames, findings: Findings) -> int | None:
    percent = _positive(container, names.memory_percent, "takes all of the memory", findings)
    if percent is not None and percent > _PERCENT:
        field = container.field(names.memory_percent)
        findings.error(field, percent, "is more than 100 percent of a device", "write 1 to 100")
    return percent


def _read_cores(container: ContainerText, names: HamiNames, findings: Findings) -> int | None:
    text = container.resources().get(names.cores)
    cores = None if text is None else read_whole(text, container.field(names.cores), findings)
    if cores is not None and cores > _PERCENT:
        remedy = "write 0 to 100; it counts per device"
        findings.warn(container.field(names.cores), text, "is more than a device has; 100 is taken", remedy)
        return _PERCENT
    return cores


def _read_priority(container: ContainerText, names: HamiNames, findings: Findings) -> Priority:
    """HAMi's 0 goes before 1, which is what a pod has without a word; what is larger comes after both."""
    text = container.resources().get(names.priority)
    number = None if text is None else read_whole(text, container.field(names.priority), findings)
    return Priority.MEDIUM if number is None else _PRIORITIES.get(number, Priority.LOW)


def _warn_of_runtime(container: ContainerText, vendor: VendorSpec, findings: Findings) -> None:
    """Warn of what HAMi does at run time and we do not, and of what would lift a limit there and does not here."""
    if container.unlimited:
        field = f"containers[{container.name}].env[{vendor.control_disable_env}]"
        findings.warn(field, "true", "does not lift the limit", "ask for the whole device instead")
    if container.privileged:
        field = f"containers[{container.name}].securityContext.privileged"
        message = "lets the container reach every device of the node, whatever its share"
        findings.warn(field, "true", message, "drop the privilege")


# annotations


def _read_annotations(pod: PodText, vendor: VendorSpec, findings: Findings) -> tuple[Constraints, Preference]:
    given, names = dict(pod.annotations), vendor.hami
    warn_misspelt(given, KEYS, HAMI_PREFIX, findings)
    device, idle = _read_device_policy(given.get(DEVICE_POLICY, ""), findings)
    _check_weights(given.get(WEIGHTS), findings)
    constraints = Constraints(
        vendor=vendor.name,
        models_allowed=_models(given.get(names.use_type, ""), vendor),
        models_denied=_models(given.get(names.no_use_type, ""), vendor),
        uuids_allowed=frozenset(split_list(given.get(names.use_uuid, ""))),
        uuids_denied=frozenset(split_list(given.get(names.no_use_uuid, ""))),
        modes=_read_modes(given.get(names.mode, ""), names, findings),
        one_numa=_read_flag(given.get(names.numa_bind, ""), names.numa_bind, findings),
        idle_device=idle,
    )
    return constraints, Preference(_read_node_policy(given.get(NODE_POLICY, ""), findings), device)


def _models(text: str, vendor: VendorSpec) -> tuple[ModelRule, ...]:
    """Parts of model names; HAMi registers models as ``<vendor>-<model>``, so that prefix is taken off."""
    prefix = f"{vendor.name}-".casefold()
    patterns = split_list(text)
    cut = (p[len(prefix) :] if p.casefold().startswith(prefix) and len(p) > len(prefix) else p for p in patterns)
    return tuple(ModelRule(pattern) for pattern in cut)


def _read_modes(text: str, names: HamiNames, findings: Findings) -> frozenset[str]:
    modes: set[str] = set()
    for word in split_list(text):
        if word in names.modes:
            modes.add(names.modes[word])
        else:
            remedy = did_you_mean(word, names.modes, f"known are {', '.join(names.modes)}")
            findings.error(annotation(names.mode), word, "is not a mode that a device can be in", remedy)
    return frozenset(modes)


def _read_flag(text: str, key: str, findings: Findings) -> bool:
    value = parse_bool(text.strip()) if text.strip() else False
    if value is None:
        findings.error(annotation(key), text, "is not a boolean", 'write "true" or "false"')
    return bool(value)


def _read_node_policy(text: str, findings: Findings) -> str | None:
    word = text.strip()
    if not word or word in _RANKINGS:
        return word or None
    remedy = did_you_mean(word, _RANKINGS, f"known are {', '.join(_RANKINGS)}")
    findings.warn(annotation(NODE_POLICY), word, "is not a known policy; the caller's is used", remedy)
    return None


def _read_device_policy(text: str, findings: Findings) -> tuple[str | None, bool]:
    """First ranking of the list, and whether it asks for idle devices."""
    words = split_list(text)
    for word in words:
        if word in _UNRANKED:
            findings.warn(annotation(DEVICE_POLICY), word, _UNRANKED[word], "no change is needed")
        elif word not in _RANKINGS and word != _MUTEX:
            known = (*_RANKINGS, _MUTEX, *_UNRANKED)
            remedy = did_you_mean(word, known, f"known are {', '.join(known)}")
            findings.warn(annotation(DEVICE_POLICY), word, "is not a known policy; the caller's is used", remedy)
    return next((word for word in words if word in _RANKINGS), None), _MUTEX in words


def _check_weights(text: str | None, findings: Findings) -> None:
    """Validate ``slot=a,core=b,memory=c``: all three once, whole, not negative, and not all zero."""
    if text is None or not text.strip():
        return
    pairs = [entry.partition("=") for entry in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    values = [value.strip() for _, _, value in pairs]
    whole = all(value.isascii() and value.isdecimal() for value in values)
    if (
        set(names) == _WEIGHT_NAMES
        and len(names) == len(_WEIGHT_NAMES)
        and whole
        and any(v.strip("0") for v in values)
    ):
        message = "is understood but not applied yet"
        findings.warn(annotation(WEIGHTS), text, message, "use a policy annotation to steer the choice of device")
        return
    remedy = 'write "slot=1,core=1,memory=1": each once, whole numbers, at least one above zero'
    findings.error(annotation(WEIGHTS), text, "is not a set of weights", remedy)
