"""TensorFusion's dialect: annotations of the pod, counted per GPU, over the fields of a WorkloadProfile.

One claim is held jointly by the injected containers, so their pod is counted once; only ``container-gpu-count``
(or native limits in several containers) splits it. Source: TensorFusion internal/webhook/v1/tf_parser.go and
pkg/constants/constants.go. Where we differ on purpose is a table in docs/dialects.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tessera.core.device import SHARED_MODE
from tessera.core.priority import WORDS, Priority, priority_of
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Request
from tessera.core.share import (
    ComputeAmount,
    ComputeMilli,
    ComputeTflops,
    MemoryAmount,
    MemoryFraction,
    MemoryMiB,
    ShareSpec,
)
from tessera.core.units import WHOLE, MiB, Milli
from tessera.vendors.models import find_model, nearest_models
from tessera.vendors.registry import BY_COUNT, PARTITIONED_MODE, VENDOR_CONSTANTS, canonical_vendor
from tessera.wire.dialects import tensor_fusion_keys as keys
from tessera.wire.dialects.native import WHOLE_DEVICE
from tessera.wire.dialects.tensor_fusion_split import native_counts, read_holders
from tessera.wire.dialects.text import (
    TENSOR_FUSION_PREFIX,
    PodText,
    Reading,
    read_bytes,
    read_number,
    read_percent,
    reading,
)
from tessera.wire.fields import Findings, did_you_mean, split_list
from tessera.wire.quantity import to_milli

ENABLED: Final = TENSOR_FUSION_PREFIX + "enabled"
PROFILE: Final = TENSOR_FUSION_PREFIX + "workload-profile"
_NOTHING: Final = ComputeMilli(Milli(0))
_UNLIMITED: Final = ComputeMilli(WHOLE)
_ALL_MEMORY: Final = MemoryFraction(WHOLE)
_MOST_TFLOPS: Final = 10**6


def uses_tensor_fusion(pod: PodText) -> bool:
    """Whether ``pod`` opted in by label, or has no such label but asks in TensorFusion's annotations."""
    label = dict(pod.labels).get(ENABLED)
    if label is not None and label.strip().casefold() in ("true", "false"):
        return label.strip().casefold() == "true"
    return any(key.removeprefix(TENSOR_FUSION_PREFIX) in keys.ASKING for key, _ in pod.annotations)


def read_tensor_fusion(pod: PodText) -> Reading:
    """Request of a pod that is written in TensorFusion's annotations."""
    findings = Findings()
    _check_opt_in(pod, findings)
    given = _merge(pod, findings)
    keys.warn_of_keys(pod.annotations, given, findings)
    vendor = _read_vendor(given, pod, findings)
    model = given.get("gpu-model")
    isolation = _read_isolation(given, findings)
    native = native_counts(pod, findings)
    share = _read_share(given, isolation, findings, native=bool(native))
    share = replace(share, priority=_read_priority(given, findings))
    _check_model(model, share, findings)
    claims = tuple(Claim(names, count, share) for names, count in read_holders(pod, given, native, findings))
    constraints = Constraints(
        vendor=vendor,
        models_allowed=_model_rules(model),
        indices=_read_indices(given, findings),
        modes=frozenset({PARTITIONED_MODE if isolation == "partitioned" else SHARED_MODE}),
        idle_device=isolation == "shared",
        distinct_devices=len(claims) > 1,
    )
    return reading(Dialect.TENSOR_FUSION, Request(claims, constraints), findings)


# opting in, and the profile


def _check_opt_in(pod: PodText, findings: Findings) -> None:
    label = dict(pod.labels).get(ENABLED)
    where = f"labels[{ENABLED}]"
    if label is None:
        findings.warn(
            where, "", "is missing, so that TensorFusion itself would ignore this pod", 'add it, as "true"'
        )
    elif label.strip().casefold() not in ("true", "false"):
        findings.error(where, label, "is neither true nor false", 'write "true" to opt in')


def _merge(pod: PodText, findings: Findings) -> dict[str, str]:
    """Annotations over the profile's fields, by name without the prefix.

    Annotations that name compute in one unit hide the profile's compute in the other.
    """
    own = {
        key.removeprefix(TENSOR_FUSION_PREFIX): text.strip()
        for key, text in pod.annotations
        if key.startswith(TENSOR_FUSION_PREFIX) and text.strip()
    }
    if "workload-profile" not in own:
        return own
    if pod.profile is None:
        message = "names a WorkloadProfile that is not in the input"
        remedy = "give the profile's file too; it must be in the pod's namespace"
        findings.error(f"annotations[{PROFILE}]", own["workload-profile"], message, remedy)
        return own
    profile = dict(pod.profile)
    for mine, theirs in ((keys.TFLOPS, keys.PERCENT), (keys.PERCENT, keys.TFLOPS)):
        if not own.keys().isdisjoint(mine):
            profile = {key: text for key, text in profile.items() if key not in theirs}
    return profile | own


# constraints


def _read_vendor(given: Mapping[str, str], pod: PodText, findings: Findings) -> str | None:
    """Vendor as named, or as the native resource implies."""
    text = given.get("vendor")
    if text is None:
        used = (BY_COUNT[key].name for c in pod.containers for key in c.resources() if key in BY_COUNT)
        return next(used, None)
    vendor = canonical_vendor(text)
    if vendor is None:
        remedy = did_you_mean(text, VENDOR_CONSTANTS, f"known are {', '.join(VENDOR_CONSTANTS)}")
        findings.error(keys.path("vendor"), text, "is not a known vendor", remedy)
    return vendor


def _model_rules(model: str | None) -> tuple[ModelRule, ...]:
    """Model as written, and the driver's name for it where the catalogue knows a short one; both whole names."""
    if model is None:
        return ()
    known = find_model(model)
    names = (model, known.name) if known is not None else (model,)
    return tuple(ModelRule(name, exact=True) for name in dict.fromkeys(names))


def _check_model(model: str | None, share: ShareSpec, findings: Findings) -> None:
    """Refuse TFLOPS of a model whose TFLOPS nobody knows."""
    if model is None or find_model(model) is not None or not isinstance(share.compute_request, ComputeTflops):
        return
    near = nearest_models(model)
    remedy = f"did you mean {' or '.join(near)}?" if near else "ask with compute-percent-request instead"
    findings.error(keys.path("gpu-model"), model, "is not a model whose TFLOPS are known", remedy)


def _read_isolation(given: Mapping[str, str], findings: Findings) -> str:
    isolation = given.get("isolation", "partitioned" if keys.PARTITION & given.keys() else "soft")
    if isolation not in keys.ISOLATIONS:
        remedy = did_you_mean(isolation, keys.ISOLATIONS, f"known are {', '.join(keys.ISOLATIONS)}")
        findings.error(keys.path("isolation"), isolation, "is not a mode of isolation", remedy)
    return isolation


def _read_indices(given: Mapping[str, str], findings: Findings) -> frozenset[int]:
    words = split_list(given.get("gpu-indices", ""))
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) < 5)]
    for word in wrong:
        findings.error(
            keys.path("gpu-indices"), word, "is not the index of a device", 'write a list such as "0,1"'
        )
    return frozenset(int(word) for word in words if word not in wrong)


# the share


def _read_priority(given: Mapping[str, str], findings: Findings) -> Priority:
    """The level of its QoS; medium without one."""
    word = keys.read_word(given, "qos", WORDS, findings)
    return (priority_of(word) if word else None) or Priority.MEDIUM


def _read_share(given: Mapping[str, str], isolation: str, findings: Findings, *, native: bool) -> ShareSpec:
    """Share of each GPU. Shared isolation and dedicated GPUs take all of it, and nobody else comes near."""
    named = sorted((keys.TFLOPS | keys.PERCENT | keys.VRAM) & given.keys())
    whole = "isolation" if isolation == "shared" else "dedicated-gpu"
    if keys.read_flag(given, "dedicated-gpu", findings) or isolation == "shared":
        for key in named:
            message = f"is ignored, because {whole} takes all of each GPU"
            findings.warn(keys.path(key), given[key], message, f"remove it, or {whole}")
        return WHOLE_DEVICE
    if not named:
        _check_counted(given, isolation, findings, native=native)
        return WHOLE_DEVICE
    request, limit = _read_compute(given, findings) or ((_UNLIMITED if native else _NOTHING), _UNLIMITED)
    return ShareSpec(*_read_memory(given, findings), request, limit)


def _check_counted(given: Mapping[str, str], isolation: str, findings: Findings, *, native: bool) -> None:
    """Neither compute nor memory is named: a count alone means whole GPUs, nothing at all is a mistake."""
    if native or isolation == "partitioned" or keys.COUNTING & given.keys():
        return
    remedy = f"add {TENSOR_FUSION_PREFIX}vram-request and {TENSOR_FUSION_PREFIX}tflops-request"
    findings.error("annotations", "", "says nothing about what it needs", remedy)


def _read_compute(given: Mapping[str, str], findings: Findings) -> tuple[ComputeAmount, ComputeAmount] | None:
    """Request and limit of compute, in TFLOPS where both units are given; ``None`` where neither is."""
    use_tflops = bool(keys.TFLOPS & given.keys())
    for key in sorted(keys.PERCENT & given.keys() if use_tflops else ()):
        findings.warn(keys.path(key), given[key], "is ignored, because TFLOPS are given", "keep one unit")
    if use_tflops:
        sides = _read_sides(given, "tflops", _read_tflops, findings)
    else:
        sides = _read_sides(given, "compute-percent", read_percent, findings)
    if sides is None:
        return None
    request, limit = sides
    amount = ComputeTflops if use_tflops else _percent_amount
    return (amount(request) if request else _NOTHING), (amount(limit) if limit else _UNLIMITED)


def _percent_amount(milli: int) -> ComputeMilli:
    return ComputeMilli(Milli(milli))


def _read_tflops(text: str, where: str, findings: Findings) -> int | None:
    value = read_number(text, where, findings)
    if value is not None and value > _MOST_TFLOPS:
        findings.error(where, text, "is more TFLOPS than any device has", "check the unit")
        return None
    return None if value is None else to_milli(value)


def _read_memory(given: Mapping[str, str], findings: Findings) -> tuple[MemoryAmount, MemoryAmount]:
    """Request and limit of memory; all of it, with a warning, where neither is given."""
    sides = _read_sides(given, "vram", read_bytes, findings)
    if sides is None:
        if not keys.VRAM & given.keys():
            message = "is not given, so that all of the memory of each GPU is charged"
            findings.warn(keys.path("vram-request"), "", message, "add it")
        return _ALL_MEMORY, _ALL_MEMORY
    request, limit = sides
    if limit <= 1:
        key = "vram-limit" if "vram-limit" in given else "vram-request"
        findings.error(keys.path(key), given[key], "is less than 2 MiB of memory", "it counts bytes: write 4Gi")
    return MemoryMiB(MiB(request)), MemoryMiB(MiB(limit))


def _read_sides(
    given: Mapping[str, str], kind: str, read: Callable[[str, str, Findings], int | None], findings: Findings
) -> tuple[int, int] | None:
    """Request and limit of ``kind``, the missing one taken from the other; ``None`` where neither is sound."""
    texts = [(key, given[key]) for key in (f"{kind}-request", f"{kind}-limit") if key in given]
    values = [read(text, keys.path(key), findings) for key, text in texts]
    if not values or values[0] is None or values[-1] is None:
        return None
    request, limit = values[0], values[-1]
    if request > limit:
        remedy = "raise the limit or lower the request"
        findings.error(
            keys.path(f"{kind}-request"), texts[0][1], f"is more than its limit of {texts[-1][1]}", remedy
        )
    return request, limit
