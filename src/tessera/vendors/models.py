"""Device models by the name that the driver reports: memory and dense FP16 compute.

Memory is nominal (the figure on the data sheet, in GB, times 1024), so it is a little more than the driver
reports; a fleet that says what its devices have is believed over this table. Names are compared without
regard to case, to the vendor's own prefixes, and to ``-``, ``_`` and blanks, so that the driver's
``Tesla T4``, a node label's ``Tesla-T4`` and a person's ``t4`` are one model. A short name that several
models share (``A100``) means the one that lists it among its aliases: what stands in most machines, or,
in doubt, the smaller one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from tessera.core.units import MiB

_GB: Final = 1024


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A model: the driver's full ``name``, other names, nominal memory in MiB, milli-TFLOPS of dense FP16."""

    name: str
    aliases: tuple[str, ...]
    memory_mib: MiB
    milli_tflops: int
    vendor: str = "NVIDIA"


def _model(name: str, memory_gb: int, tflops: float, aliases: str = "") -> DeviceModel:
    names = tuple(alias.strip() for alias in aliases.split("|") if alias.strip())
    return DeviceModel(name, names, MiB(memory_gb * _GB), round(tflops * 1000))


# Source: TFLOPS of models that TensorFusion's catalogue lists are its figures (gpu-info-config.yaml in its
# samples and its chart), because its users' `tflops-request` is written against them. Its figures for the L40
# (362) and L40S (366) count sparsity or round up; they stay as they are for that reason.
# The others: NVIDIA's data sheets, FP16 tensor without sparsity (P100: FP16 without tensor cores).
MODELS: Final[tuple[DeviceModel, ...]] = (
    _model("NVIDIA A100-SXM4-80GB", 80, 312, "A100 | A100_SXM | A100-SXM-80GB | A100-80GB"),
    _model("NVIDIA A100-SXM4-40GB", 40, 312, "A100-40GB | A100-SXM-40GB | A100_SXM_40G"),
    _model("NVIDIA A100 80GB PCIe", 80, 312, "A100_PCIe | A100-PCIE-80GB | A100_PCIe_80G"),
    _model("NVIDIA A100-PCIE-40GB", 40, 312, "A100_PCIe_40G"),
    _model("NVIDIA A800-SXM4-80GB", 80, 312, "A800 | A800_SXM | A800-80GB"),
    _model("NVIDIA A800-SXM4-40GB", 40, 312, "A800-40GB"),
    _model("NVIDIA A800 80GB PCIe", 80, 312, "A800_PCIe | A800-PCIE-80GB"),
    _model("NVIDIA A800-PCIE-40GB", 40, 312, "A800 40GB Active"),
    _model("NVIDIA H100 80GB HBM3", 80, 989, "H100 | H100_SXM | H100-SXM5-80GB | H100-SXM-80GB | H100-80GB"),
    _model("NVIDIA H100 PCIe", 80, 756, "H100-PCIE-80GB"),
    _model("NVIDIA H100 NVL", 94, 835, "H100-NVL-94GB"),
    _model("NVIDIA H800", 80, 989, "H800_SXM | H800-SXM5-80GB"),
    _model("NVIDIA H800 PCIe", 80, 756, "H800-PCIE-80GB"),
    _model("NVIDIA H20", 96, 148, "H20-96GB"),
    _model("NVIDIA H200", 141, 989, "H200_SXM | H200-SXM-141GB | H200-141GB"),
    _model("NVIDIA H200 NVL", 141, 835),
    _model("NVIDIA GH200 480GB", 96, 989, "GH200"),
    _model("NVIDIA B200", 180, 2250, "B200_SXM | B200-180GB"),
    _model("NVIDIA A30", 24, 165, "A30-24GB"),
    _model("NVIDIA A10", 24, 125, "A10-24GB"),
    _model("NVIDIA A10G", 24, 125, "A10G-24GB"),
    _model("NVIDIA A16", 16, 17.9),
    _model("NVIDIA A2", 16, 18, "A2-16GB"),
    _model("NVIDIA A40", 48, 149.7, "A40-48GB"),
    _model("NVIDIA L4", 24, 121, "L4-24GB"),
    _model("NVIDIA L40", 48, 362, "L40-48GB"),
    _model("NVIDIA L40S", 48, 366, "L40S-48GB"),
    _model("Tesla T4", 16, 65, "T4-16GB"),
    _model("Tesla V100-SXM2-16GB", 16, 125, "V100 | V100M16 | V100-16GB | V100_SXM | V100-SXM2"),
    _model("Tesla V100-SXM2-32GB", 32, 125, "V100M32 | V100-32GB"),
    _model("Tesla V100-PCIE-16GB", 16, 112, "V100_PCIe"),
    _model("Tesla V100-PCIE-32GB", 32, 112),
    _model("Tesla P100-PCIE-16GB", 16, 18.7, "P100 | P100_PCIe | P100-16GB"),
    _model("Tesla P100-PCIE-12GB", 12, 18.7, "P100-12GB"),
    _model("Tesla P100-SXM2-16GB", 16, 21.2, "P100_SXM | P100-SXM2"),
    _model("NVIDIA GeForce RTX 3090", 24, 71.2, "3090 | RTX3090"),
    _model("NVIDIA GeForce RTX 4090", 24, 165.16, "4090 | RTX4090"),
    _model("NVIDIA GeForce RTX 5060 Ti", 16, 66, "5060 Ti | RTX5060Ti"),
    _model("NVIDIA GeForce RTX 5090", 32, 209.5, "5090 | RTX5090"),
    _model("NVIDIA RTX A6000", 48, 154.8, "A6000"),
    _model("NVIDIA RTX 6000 Ada Generation", 48, 182.1, "RTX 6000 Ada"),
)

_PREFIXES: Final = ("nvidia-", "tesla-", "geforce-")


def _key(name: str) -> str:
    key = "-".join(name.casefold().replace("_", " ").replace("-", " ").split())
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _index(models: Iterable[DeviceModel]) -> dict[str, DeviceModel]:
    """Every name of every model; the full name of one wins over another's alias."""
    models = tuple(models)
    aliases = {_key(alias): model for model in models for alias in model.aliases}
    return aliases | {_key(model.name): model for model in models}


_BY_NAME: Final = _index(MODELS)


def find_model(name: str) -> DeviceModel | None:
    """Model of this full name or alias, or ``None`` where the table has none."""
    return _BY_NAME.get(_key(name))


def nearest_models(name: str, at_most: int = 3) -> tuple[str, ...]:
    """Full names of the known models that read most like ``name``, for a remedy; may be empty."""
    close = get_close_matches(_key(name), sorted(_BY_NAME), n=at_most * 2, cutoff=0.5)
    return tuple(dict.fromkeys(_BY_NAME[key].name for key in close))[:at_most]
