"""TensorFusion's WorkloadProfile as the annotations that say the same, so that there is one reading of both.

Source: TensorFusion api/v1/workloadprofile_types.go.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tessera.wire.dialects.text import Pairs
from tessera.wire.fields import Findings, list_at, mapping_at
from tessera.wire.quantity import Malformed, parse_quantity, quantity_text

KIND: Final = "WorkloadProfile"
GROUP: Final = "tensor-fusion.ai"

_FIELDS: Final = {
    "poolName": "gpupool",
    "qos": "qos",
    "isLocalGPU": "is-local-gpu",
    "sidecarWorker": "sidecar-worker",
    "isolation": "isolation",
    "partitionTemplateId": "partition-id",
    "gpuModel": "gpu-model",
    "gpuCount": "gpu-count",
    "vendor": "vendor",
}
"""Fields of the profile's spec by the annotation of the same meaning."""

_RESOURCES: Final = {"tflops": "tflops", "vram": "vram", "compute": "compute-percent"}


def read_profile(raw: Mapping[str, object], findings: Findings) -> Pairs:
    """Return what a WorkloadProfile says, as annotations without their prefix."""
    spec = mapping_at(raw, "spec", "spec", findings)
    found = {
        _FIELDS[key]: _text(value) for key, value in spec.items() if key in _FIELDS and value not in (None, "")
    }
    indices = list_at(spec, "gpuIndices", "spec.gpuIndices", findings)
    if indices:
        found["gpu-indices"] = ",".join(map(_text, indices))
    found.update(_resources(spec, findings))
    if isinstance(gang := spec.get("gangScheduling"), dict) and gang.get("minMembers"):
        found["gang-enabled"] = "true"
    return tuple(sorted(found.items()))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _resources(spec: Mapping[str, object], findings: Findings) -> Iterator[tuple[str, str]]:
    resources = mapping_at(spec, "resources", "spec.resources", findings)
    for side in ("requests", "limits"):
        for name, value in mapping_at(resources, side, f"spec.resources.{side}", findings).items():
            if name not in _RESOURCES:
                continue
            text = quantity_text(value)
            if isinstance(text, Malformed):
                findings.error(f"spec.resources.{side}[{name}]", value, text.message, text.remedy)
            elif parse_quantity(text) != 0:  # the API server writes what is unset as "0"
                yield f"{_RESOURCES[name]}-{side.removesuffix('s')}", text
