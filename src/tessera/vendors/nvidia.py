"""The row of NVIDIA. Data only."""

from typing import Final

from tessera.core.device import SHARED_MODE
from tessera.vendors.spec import HamiNames, NodeNames, VendorSpec

# Source: HAMi 4707fb02, pkg/device/nvidia/device.go and the chart's device-configmap.yaml (names, factor 1);
# TensorFusion pkg/constants/vendors.go (constant) and its table of native resources.
NVIDIA: Final = VendorSpec(
    name="NVIDIA",
    hami=HamiNames(
        count="nvidia.com/gpu",
        memory="nvidia.com/gpumem",
        memory_percent="nvidia.com/gpumem-percentage",
        cores="nvidia.com/gpucores",
        priority="nvidia.com/priority",
        use_type="nvidia.com/use-gputype",
        no_use_type="nvidia.com/nouse-gputype",
        use_uuid="nvidia.com/use-gpuuuid",
        no_use_uuid="nvidia.com/nouse-gpuuuid",
        numa_bind="nvidia.com/numa-bind",
        mode="nvidia.com/vgpu-mode",
        modes={"hami-core": SHARED_MODE, "mig": "mig", "mps": "mps"},
    ),
    tensor_fusion="NVIDIA",
    visible_devices_env="NVIDIA_VISIBLE_DEVICES",
    control_disable_env="CUDA_DISABLE_CONTROL",
    # Source: the driver's README ("Listing of Installed Components") and nvidia-container-toolkit, which mounts
    # these for compute and utility; `void` makes that toolkit's runtime inject nothing.
    node=NodeNames(
        device_node="/dev/nvidia{minor}",
        shared_nodes=(
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia-modeset",
        ),
        libraries=(
            "libcuda.so.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.1",
            "libnvidia-nvvm.so.4",
            "libnvidia-opencl.so.1",
            "libcudadebugger.so.1",
            "libnvidia-cfg.so.1",
        ),
        order_env="CUDA_VISIBLE_DEVICES",
        nothing_visible="void",
    ),
    foreign_prefixes=("nvidia.com/mig-",),
)
