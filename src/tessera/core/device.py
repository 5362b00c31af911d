"""Devices and nodes: what there is, as observed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tessera.core.units import WHOLE, MiB, Milli

DEFAULT_SLOTS: Final = 100
"""Shares that a device may carry where the inventory does not say (a share of less than 1 % is not useful)."""

SHARED_MODE: Final = "shared"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Device:
    """One physical accelerator. ``milli_tflops`` is dense FP16, ``None`` where the model is unknown."""

    uuid: str
    index: int
    model: str
    memory_mib: MiB
    vendor: str
    compute_milli: Milli = WHOLE
    slots: int = DEFAULT_SLOTS
    numa: int | None = None
    healthy: bool = True
    cordoned: bool = False
    mode: str = SHARED_MODE
    milli_tflops: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its devices; ``None`` where the inventory does not say how much there is."""

    name: str
    devices: tuple[Device, ...]
    cpu_milli: int | None = None
    memory_mib: int | None = None
    max_pods: int | None = None
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def label(self, key: str) -> str | None:
        """The label's value; every node has its own name for its hostname label, unless it says otherwise."""
        return self.labels.get(key, self.name if key == HOSTNAME_LABEL else None)
