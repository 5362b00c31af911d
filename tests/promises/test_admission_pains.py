"""Rows of the lists of users' pains that admission shows: what is no amount never becomes a share."""

import pytest

from tessera.wire.kube.names import REQUEST
from wire.kube.reviews import admitted, ask
from wire.objects import container, pod

# The list of KAI's complaints, section 6, row 8: a fraction of "NaN" was accepted and passed on.

TEXTS = (
    "NaN",
    "nan",
    "inf",
    "-inf",
    "Infinity",
    "1e-400",
    "1e400",
    "0. 5",
    "\u0660\u066b\u0665",
    "\u00bd",
    "0x1p-1",
    "-0.5",
    "0,5",
)

TENSOR_FUSION = (
    "tflops-request",
    "tflops-limit",
    "vram-request",
    "vram-limit",
    "compute-percent-request",
    "gpu-count",
)
SOUND = {"tensor-fusion.ai/tflops-request": "10", "tensor-fusion.ai/vram-request": "1Gi"}
RESOURCES = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/gpu")
OURS = ("tessera.dev/memory", "tessera.dev/memory-percent", "tessera.dev/compute", "tessera.dev/gpu")


def by_annotation(key, text):
    written = {**SOUND, f"tensor-fusion.ai/{key}": text}
    if key.startswith("compute-percent"):
        del written["tensor-fusion.ai/tflops-request"]
    return pod(container(), annotations=written, labels={"tensor-fusion.ai/enabled": "true"})


def by_resource(key, text):
    count = "nvidia.com/gpu" if key.startswith("nvidia") else "tessera.dev/gpu"
    return pod(container(limits={count: "1", key: text}))


PODS = [
    *((f"{key}={text}", by_annotation(key, text)) for key in TENSOR_FUSION for text in TEXTS),
    *((f"{key}={text}", by_resource(key, text)) for key in (*RESOURCES, *OURS) for text in TEXTS),
]


@pytest.mark.parametrize("obj", [obj for _, obj in PODS], ids=[name for name, _ in PODS])
def test_kai_8_what_is_no_amount_is_refused_at_admission_with_its_field(obj):
    found = ask(obj)
    assert not found.response["allowed"], found.patch
    assert "annotations[" in found.message or "resources.limits[" in found.message
    assert not found.patch


@pytest.mark.parametrize("key", ["tflops-request", "vram-request", "compute-percent-request"])
def test_kai_8_blanks_around_an_annotation_mean_nothing_and_an_empty_one_is_none(key):
    """A resource with blanks is refused by the API server itself; an annotation is stored as it stands."""
    one = "1Gi" if key.startswith("vram") else "1"
    spaced, tidy = (admitted(by_annotation(key, text))["metadata"]["annotations"] for text in (f" {one} ", one))
    assert spaced[REQUEST] == tidy[REQUEST]
    empty = by_annotation(key, "")
    left_out = by_annotation(key, "")
    del left_out["metadata"]["annotations"][f"tensor-fusion.ai/{key}"]
    assert (
        admitted(empty)["metadata"]["annotations"][REQUEST]
        == admitted(left_out)["metadata"]["annotations"][REQUEST]
    )
