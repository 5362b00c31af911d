"""How many GPUs a TensorFusion pod gets, and which of its containers hold them: jointly, or split by container."""

from collections.abc import Mapping
from typing import Final

import msgspec

from tessera.core.request import ContainerKind
from tessera.vendors.registry import BY_COUNT
from tessera.wire.dialects.tensor_fusion_keys import path
from tessera.wire.dialects.text import MOST_DEVICES, PodText, read_devices
from tessera.wire.fields import Findings, did_you_mean, split_list
from tessera.wire.quantity import parse_quantity

Holders = tuple[tuple[tuple[str, ...], int], ...]
"""Groups of containers with the number of GPUs that each group holds together."""

_SPLIT: Final = "container-gpu-count"


def native_counts(pod: PodText, findings: Findings) -> dict[str, int]:
    """GPUs per container that are asked for by the vendor's own resource; zero counts as not asked."""
    counts: dict[str, int] = {}
    for container in pod.containers:
        for name, text in container.resources().items():
            if name in BY_COUNT and parse_quantity(text) != 0:
                count = read_devices(text, container.field(name), findings)
                counts[container.name] = count or 1
    return counts


def read_holders(pod: PodText, given: Mapping[str, str], native: Mapping[str, int], findings: Findings) -> Holders:
    """Return who holds how many GPUs, in the order of the pod's containers."""
    injected = _read_injected(pod, given, findings)
    split = _read_split(pod, given, findings) or (dict(native) if len(native) > 1 and not injected else {})
    count = _read_count(given, sum((split or native).values()), findings)
    if split:
        return _split_holders(pod, split, count, injected, findings)
    names = injected or frozenset(native) or _only_app(pod, findings)
    return ((tuple(c.name for c in pod.containers if c.name in names), count),)


def _read_injected(pod: PodText, given: Mapping[str, str], findings: Findings) -> frozenset[str]:
    injected = split_list(given.get("inject-container", ""))
    _check_names(pod, injected, "inject-container", findings)
    return frozenset(injected)


def _check_names(pod: PodText, names: tuple[str, ...], key: str, findings: Findings) -> None:
    known = [container.name for container in pod.containers]
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, known, f"its containers are {', '.join(known)}")
            findings.error(path(key), name, "is no container of the pod", remedy)


def _read_split(pod: PodText, given: Mapping[str, str], findings: Findings) -> dict[str, int]:
    text = given.get(_SPLIT)
    if text is None:
        return {}
    try:
        split = msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        findings.error(path(_SPLIT), text, "is not a JSON object of whole numbers", 'write {"name": 1}')
        return {}
    _check_names(pod, tuple(split), _SPLIT, findings)
    for name, count in split.items():
        if not 0 <= count <= MOST_DEVICES:
            remedy = f"write 0 to {MOST_DEVICES}"
            findings.error(path(_SPLIT), count, f"is no number of devices for {name}", remedy)
    return {name: count for name, count in split.items() if count > 0}


def _read_count(given: Mapping[str, str], otherwise: int, findings: Findings) -> int:
    """GPUs of the pod: as many as it lists by index, else as it counts, else ``otherwise``, else one."""
    listed = len(set(split_list(given.get("gpu-indices", ""))))
    text = given.get("gpu-count")
    counted = None if text is None else read_devices(text, path("gpu-count"), findings)
    if listed and counted not in (None, listed):
        message = f"differs from the {listed} of gpu-indices, which count"
        findings.warn(path("gpu-count"), text, message, "leave it out beside gpu-indices")
    count = listed or counted or otherwise or 1
    if count > MOST_DEVICES:
        findings.error(path("gpu-count"), count, "is more than a node has", f"ask for at most {MOST_DEVICES}")
    return count


def _split_holders(
    pod: PodText, split: Mapping[str, int], count: int, injected: frozenset[str], findings: Findings
) -> Holders:
    total = sum(split.values())
    if total != count:
        message = f"gives out {total} of {count} devices"
        findings.error(path(_SPLIT), "", message, "let the counts add up to gpu-count, or leave gpu-count out")
    for name in sorted(split.keys() - injected if injected else ()):
        findings.error(path(_SPLIT), name, "is not in inject-container", "add it there, or remove it here")
    return tuple(((c.name,), split[c.name]) for c in pod.containers if c.name in split)


def _only_app(pod: PodText, findings: Findings) -> frozenset[str]:
    """Return the pod's one app container; where it has several, the user must say which."""
    names = [c.name for c in pod.containers if c.container.kind is ContainerKind.APP]
    if len(names) != 1:
        message = f"must say which of {', '.join(names)} hold the devices"
        findings.error(path("inject-container"), "", message, f"add it, such as {names[0] if names else 'main'}")
    return frozenset(names)
