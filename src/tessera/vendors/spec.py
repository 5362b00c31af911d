"""What a vendor's row says: the names under which its devices are asked for."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HamiNames:
    """Resource and annotation names of HAMi for one vendor.

    ``memory`` counts ``memory_factor`` MiB per unit; ``memory_percent`` and ``cores`` are percents of each device.
    ``modes`` maps the words of the mode annotation to the modes of :class:`~tessera.core.device.Device`.
    """

    count: str
    memory: str
    memory_percent: str
    cores: str
    priority: str
    use_type: str
    no_use_type: str
    use_uuid: str
    no_use_uuid: str
    numa_bind: str
    mode: str
    modes: Mapping[str, str]
    memory_factor: int = 1

    @property
    def shares(self) -> tuple[str, ...]:
        """Resources that ask for a part of a device, and so for HAMi's reading of the pod."""
        return (self.memory, self.memory_percent, self.cores, self.priority)


@dataclass(frozen=True, slots=True)
class NodeNames:
    """What a device needs on the node that a container is started on.

    ``device_node`` is a format with the device's ``minor`` number; ``shared_nodes`` belong to all devices.
    ``libraries`` are the SONAMEs of the driver's user half; ``order_env`` is the variable by which programs choose
    among the devices that they have; ``nothing_visible`` is the value of the vendor's visible-devices variable at
    which its own container runtime injects nothing.
    """

    device_node: str
    shared_nodes: tuple[str, ...]
    libraries: tuple[str, ...]
    order_env: str
    nothing_visible: str


@dataclass(frozen=True, slots=True)
class VendorSpec:
    """One vendor: its canonical ``name``, HAMi's names, TensorFusion's constant, the environment it reads.

    A container that sets ``control_disable_env`` to ``true`` asks HAMi to leave its limits off. ``ignore_label``
    is the label by which HAMi's webhook leaves a pod alone. ``foreign_prefixes`` are resource names of the vendor
    that other schedulers hand out (hardware partitions by name).
    """

    name: str
    hami: HamiNames
    tensor_fusion: str
    visible_devices_env: str
    control_disable_env: str
    node: NodeNames
    foreign_prefixes: tuple[str, ...] = ()
