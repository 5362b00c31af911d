import pytest

from tessera.vendors.models import MODELS, find_model, nearest_models


# Source: TensorFusion's hardware catalogue (FP16 TFLOPS).
@pytest.mark.parametrize(
    ("name", "memory_gb", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, 312),
        ("NVIDIA A100 80GB PCIe", 80, 312),
        ("NVIDIA A100-SXM4-40GB", 40, 312),
        ("NVIDIA A800-SXM4-80GB", 80, 312),
        ("NVIDIA H100 80GB HBM3", 80, 989),
        ("NVIDIA H100 PCIe", 80, 756),
        ("NVIDIA H800", 80, 989),
        ("NVIDIA H800 PCIe", 80, 756),
        ("NVIDIA H200", 141, 989),
        ("NVIDIA H200 NVL", 141, 835),
        ("NVIDIA A30", 24, 165),
        ("NVIDIA A10", 24, 125),
        ("NVIDIA A10G", 24, 125),
        ("NVIDIA A40", 48, 149.7),
        ("NVIDIA L4", 24, 121),
        ("NVIDIA L40", 48, 362),
        ("NVIDIA L40S", 48, 366),
        ("Tesla T4", 16, 65),
        ("NVIDIA GeForce RTX 3090", 24, 71.2),
        ("NVIDIA GeForce RTX 4090", 24, 165.16),
        ("NVIDIA GeForce RTX 5060 Ti", 16, 66),
    ],
)
def test_the_table_has_what_tensor_fusions_catalogue_has(name, memory_gb, tflops):
    model = find_model(name)
    assert (model.name, model.memory_mib, model.milli_tflops) == (name, memory_gb * 1024, tflops * 1000)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("tesla t4", "Tesla T4"),
        ("T4", "Tesla T4"),
        ("Tesla-T4", "Tesla T4"),
        ("NVIDIA-A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("A100_SXM", "NVIDIA A100-SXM4-80GB"),
        ("A100", "NVIDIA A100-SXM4-80GB"),
        ("v100m32", "Tesla V100-SXM2-32GB"),
        ("V100", "Tesla V100-SXM2-16GB"),
        ("P100", "Tesla P100-PCIE-16GB"),
        ("NVIDIA 3090", "NVIDIA GeForce RTX 3090"),
        ("H100", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_model_is_found_by_any_of_its_names(word, name):
    assert find_model(word).name == name


@pytest.mark.parametrize("word", ["", "A101", "NVIDIA", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"])
def test_what_is_no_model_is_not_found(word):
    assert find_model(word) is None


def test_every_full_name_and_alias_finds_its_own_model():
    for model in MODELS:
        for name in (model.name, *model.aliases):
            assert find_model(name) is model
            assert find_model(name.upper()) is model


def test_models_are_sound():
    assert all(model.memory_mib % 1024 == 0 and model.memory_mib > 0 < model.milli_tflops for model in MODELS)


def test_the_nearest_models_are_named_at_most_three():
    near = nearest_models("NVIDIA A100-SXM4-81GB")
    assert near[0] == "NVIDIA A100-SXM4-80GB"
    assert len(near) <= 3
    assert nearest_models("%%%") == ()
