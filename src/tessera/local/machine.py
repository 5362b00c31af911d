"""A machine: this one, or a simulated one that was asked for by name (``4xT4``, ``1xA100-SXM4-80GB``).

A simulated machine lives in the state directory under a name that follows from what it is, so that every command
that names it means the same devices. It is written once and never changed.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.core.device import Node
from tessera.core.errors import InputErrors, Problem
from tessera.core.units import BYTES_PER_MIB
from tessera.runtime.nvml import Inventory, Nvml, open_nvml
from tessera.runtime.state import make_directory, state_directory, sweep_temporaries, write_once
from tessera.vendors.models import DeviceModel, find_model, nearest_models

SPEC_EXAMPLE: Final = "1xA100-SXM4-80GB, 4xT4 or 2xT4:24Gi"
_SPEC: Final = re.compile(r"(?:(\d+)x)?(.+?)(?::(\d+)(Gi|Mi))?", re.IGNORECASE)
_MOST_DEVICES: Final = 16
_DESCRIPTION: Final = "machine.conf"
_REGIONS: Final = "regions"
LEDGER: Final = "ledger.db"
_UUID_MARK: Final = "51300000"
"""Begins the uuid of every simulated device."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where one machine's state is kept, and the description where it is a simulated one."""

    name: str
    directory: Path
    description: Path | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether no device stands behind it."""
        return self.description is not None

    @property
    def regions(self) -> Path:
        """The directory of the shared regions."""
        return self.directory / _REGIONS

    @property
    def title(self) -> str:
        """The name for people, never without the word where it is simulated."""
        return f"{self.name} (simulated)" if self.is_simulated else self.name


def this_machine() -> Machine:
    """The machine that we run on."""
    return _prepared(os.uname().nodename, "machine")


def simulated_machine(spec: str, node: str = "") -> Machine:
    """The simulated machine that ``spec`` names. Raises :class:`InputErrors`.

    With the name of a ``node`` of a cluster it is that node's own: no two nodes have a device in common.
    """
    count, model, memory_mib = parse_spec(spec)
    nominal = "" if memory_mib == model.memory_mib else f":{memory_mib}Mi"
    name = f"{count}x{re.sub('[^A-Za-z0-9.]+', '-', model.name)}{nominal}{f'@{node}' if node else ''}"
    directory = make_directory(state_directory(), "sim", name)
    write_once(directory / _DESCRIPTION, _describe(count, model, memory_mib, node))
    return _prepared(name, "sim", name)


def _prepared(name: str, *parts: str) -> Machine:
    """A machine whose directories are there, without what the dead left half-made."""
    directory = make_directory(state_directory(), *parts)
    make_directory(state_directory(), *parts, _REGIONS)
    sweep_temporaries(directory)
    description = directory / _DESCRIPTION
    return Machine(name, directory, description if parts[0] == "sim" else None)


def named_machine(simulate: str | None) -> Machine:
    """The machine that a command's ``--simulate`` names; this one without it."""
    return this_machine() if simulate is None else simulated_machine(simulate)


def known_machines() -> Iterator[Machine]:
    """Every machine that has a ledger in the state directory, this one first."""
    state = state_directory()
    if (state / "machine" / LEDGER).exists():
        yield this_machine()
    for directory in sorted((state / "sim").glob("*")):
        if (directory / LEDGER).exists():
            yield _prepared(directory.name, "sim", directory.name)


def parse_spec(spec: str) -> tuple[int, DeviceModel, int]:
    """Devices, model and MiB of each. Raises :class:`InputErrors`."""
    found = _SPEC.fullmatch(spec.strip())
    count = int(found[1] or 1) if found else 0
    model = find_model(found[2]) if found else None
    if not found or not 1 <= count <= _MOST_DEVICES:
        message = f"is not a machine of 1 to {_MOST_DEVICES} devices"
        raise InputErrors([Problem("--simulate", "", "", spec, message, f"write {SPEC_EXAMPLE}")])
    if model is None:
        near = nearest_models(found[2])
        remedy = f"did you mean {' or '.join(near)}?" if near else f"write {SPEC_EXAMPLE}"
        raise InputErrors([Problem("--simulate", "", "", spec, f"names no known model ({found[2]})", remedy)])
    if found[3] is None:
        return count, model, model.memory_mib
    memory_mib = int(found[3]) * (1024 if found[4].lower() == "gi" else 1)
    if memory_mib < 1:
        raise InputErrors([Problem("--simulate", "", "", spec, "has no memory", f"write {SPEC_EXAMPLE}")])
    return count, model, memory_mib


def simulated_uuid(model: str, index: int, node: str = "") -> str:
    """The uuid of a simulated device: the same whenever it is asked for, and seen to be one."""
    kind, place = zlib.crc32(model.encode()) & 0xFFFF, zlib.crc32(node.encode())
    return f"GPU-{_UUID_MARK}-{kind:04x}-4000-8000-{place:08x}{index:04d}"


def _describe(count: int, model: DeviceModel, memory_mib: int, node: str) -> str:
    """The description that the simulated driver reads. The first half of the devices is on NUMA node 0."""
    lines = ["driver version=13.0 context_mib=0"]
    for index in range(count):
        uuid, numa = simulated_uuid(model.name, index, node), int(count > 1 and index >= (count + 1) // 2)
        lines.append(
            f'device uuid={uuid} name="{model.name}" memory_mib={memory_mib} '
            f"pci=0000:{index + 7:02x}:00.0 numa={numa}"
        )
    return "\n".join(lines) + "\n"


@contextmanager
def open_driver(machine: Machine) -> Iterator[Nvml]:
    """The machine's driver, open. Raises :class:`UnavailableError` where there is none."""
    with open_nvml(machine.description) as nvml:
        yield nvml


def node_of(machine: Machine, inventory: Inventory) -> Node:
    """The machine as a node."""
    return Node(machine.name, inventory.devices)


def bytes_of(mib: int) -> int:
    """MiB as bytes."""
    return mib * BYTES_PER_MIB
