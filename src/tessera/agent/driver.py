"""What containers need of the node's driver: device nodes, libraries, and for a simulated machine its state.

A value, found once when an agent starts and again when devices are found anew; the CDI spec is made of it.
"""

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.agent.answer import AnswerMount, Plain
from tessera.agent.layout import INNER_DRIVER, INNER_MACHINE
from tessera.core.device import Device
from tessera.runtime.native import SIMULATED_CUDA, SIMULATED_NVML
from tessera.runtime.nvml import MACHINE_VARIABLE
from tessera.vendors.spec import NodeNames

LIBRARY_DIRECTORIES: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
)
"""Where drivers are installed: Debian and Ubuntu, Red Hat, a container of NVIDIA's operator, GKE."""
_MOST_LINKS: Final = 16
INNER_DIRECTORIES: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
"""Directories that the dynamic loaders of the usual images search without being told."""


@dataclass(frozen=True, slots=True)
class DriverNode:
    """One device's nodes on this machine; none for a simulated one."""

    uuid: str
    index: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Everything of the driver that goes into containers."""

    devices: tuple[DriverNode, ...]
    shared_nodes: tuple[str, ...] = ()
    mounts: tuple[AnswerMount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def nodes_of(self, uuids: Collection[str]) -> tuple[str, ...]:
        """The device nodes that these devices need, the shared ones included."""
        own = (node for device in self.devices if device.uuid in uuids for node in device.nodes)
        return (*own, *self.shared_nodes)

    def plain(self, uuids: Collection[str]) -> Plain:
        """The same for a container without CDI."""
        return Plain(self.nodes_of(uuids), self.mounts, self.environment)

    def known_nodes(self) -> frozenset[str]:
        """Nodes of single devices: a container may have those of its own devices only."""
        return frozenset(node for device in self.devices for node in device.nodes)


def simulated_files(devices: Iterable[Device], description: Path, libraries: Path) -> DriverFiles:
    """A simulated machine: its ``libraries`` and the directory of its description, where its state lies too."""
    mounts = (
        *(AnswerMount(str(libraries / lib.name), f"{INNER_DRIVER}/{lib.name}") for lib in SIMULATED_LIBRARIES),
        AnswerMount(str(description.parent), INNER_MACHINE, read_only=False),
    )
    environment = (
        ("LD_LIBRARY_PATH", INNER_DRIVER),
        (MACHINE_VARIABLE, f"{INNER_MACHINE}/{description.name}"),
    )
    return DriverFiles(tuple(DriverNode(d.uuid, d.index, ()) for d in devices), (), mounts, environment)


SIMULATED_LIBRARIES: Final = (SIMULATED_CUDA, SIMULATED_NVML)


def real_files(
    devices: Sequence[tuple[Device, int | None]], names: NodeNames, visible_env: str, root: Path = Path("/")
) -> DriverFiles:
    """A real driver: device nodes by ``(device, minor number)`` and libraries, as far as they are there.

    ``root`` is where we see the node's own root directory; the paths that come out are the node's.
    """
    nodes = tuple(
        DriverNode(device.uuid, device.index, _present([names.device_node.format(minor=minor)], root))
        for device, minor in devices
        if minor is not None
    )
    return DriverFiles(
        devices=nodes,
        shared_nodes=_present(names.shared_nodes, root),
        mounts=tuple(_library_mounts(names.libraries, root)),
        environment=((visible_env, names.nothing_visible),),
    )


def _present(paths: Iterable[str], root: Path) -> tuple[str, ...]:
    """Those that are device nodes on this machine."""
    found = []
    for path in paths:
        try:
            mode = os.stat(root / path.lstrip("/")).st_mode  # noqa: PTH116 - mode only
        except OSError:
            continue
        if stat.S_ISCHR(mode):
            found.append(path)
    return tuple(found)


def _library_mounts(sonames: Iterable[str], root: Path) -> Iterable[AnswerMount]:
    """Each library from the first directory that has it, into every directory where a loader may look."""
    for soname in sonames:
        for directory in LIBRARY_DIRECTORIES:
            real = real_path(f"{directory}/{soname}", root)
            if real is not None:
                yield from (AnswerMount(real, f"{inside}/{soname}") for inside in INNER_DIRECTORIES)
                break


def real_path(path: str, root: Path) -> str | None:
    """The node's file behind a path of the node, links followed as the node would, if there is one."""
    for _ in range(_MOST_LINKS):
        seen = root / path.lstrip("/")
        if not seen.is_symlink():
            return path if seen.is_file() else None
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(seen)))  # noqa: PTH115, PTH118, PTH120
    return None
