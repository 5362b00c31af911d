"""All vendors, and the look-ups that dialects need. Nothing outside of this package names a vendor."""

from typing import Final

from tessera.core.device import SHARED_MODE
from tessera.vendors.nvidia import NVIDIA
from tessera.vendors.spec import VendorSpec

VENDORS: Final[tuple[VendorSpec, ...]] = (NVIDIA,)

PARTITIONED_MODE: Final = "partitioned"
"""TensorFusion's mode of a device that is cut by a partition template."""

MODES: Final[frozenset[str]] = frozenset(
    {SHARED_MODE, PARTITIONED_MODE, *(mode for vendor in VENDORS for mode in vendor.hami.modes.values())}
)
"""Every mode that a request may name."""

# Source: TensorFusion pkg/constants/vendors.go: the constants that its annotation may hold.
VENDOR_CONSTANTS: Final[tuple[str, ...]] = (
    "NVIDIA", "AMD", "Intel", "Qualcomm", "AWSNeuron", "Google", "Cerebras", "Hygon", "MetaX", "MooreThreads",
    "Biren", "THead", "PPU", "Ascend", "Cambricon", "Enflame", "KunlunXin", "Horizon", "Moore", "Example",
)  # fmt: skip

# Source: HAMi 4707fb02, chart's device-configmap.yaml. Vendors that have no row yet: their pods are reported.
FOREIGN_DOMAINS: Final[frozenset[str]] = frozenset(
    {
        "amd.com", "aliyun.com", "aws.amazon.com", "birentech.com", "cambricon.com", "enflame.com", "google.com",
        "gpu.intel.com", "huawei.com", "hygon.com", "iluvatar.ai", "kunlunxin.com", "metax-tech.com",
        "mthreads.com", "vastaitech.com",
    }
)  # fmt: skip

RESOURCE_DOMAINS: Final[frozenset[str]] = frozenset(v.hami.count.partition("/")[0] for v in VENDORS)
"""Domains of the resources and annotations that the rows name."""

BY_COUNT: Final = {vendor.hami.count: vendor for vendor in VENDORS}
"""Vendors by the resource that counts their devices."""

_BY_CONSTANT: Final = {name.casefold(): name for name in VENDOR_CONSTANTS} | {
    vendor.tensor_fusion.casefold(): vendor.name for vendor in VENDORS
}


def canonical_vendor(text: str) -> str | None:
    """Vendor name as devices carry it, for a constant written in any case; ``None`` where nobody has that name."""
    return _BY_CONSTANT.get(text.strip().casefold())


def foreign_resource(name: str) -> bool:
    """Whether ``name`` is a device resource that Tessera knows of but does not hand out."""
    return name.partition("/")[0] in FOREIGN_DOMAINS or any(
        name.startswith(prefix) for vendor in VENDORS for prefix in vendor.foreign_prefixes
    )
