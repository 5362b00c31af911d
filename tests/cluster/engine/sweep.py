"""Takes away what a node leaves on a machine: containers, shims, mounts, network namespaces, cgroups.

Only what is the node's own is touched: cgroups below ``kubepods`` (one kubelet a machine, under a lock), shims
whose command line names the node's socket, mounts below its folder, network namespaces that its network's records
name.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cluster.engine.service import wait_until

CGROUPS: Final = Path("/sys/fs/cgroup")
PODS: Final = "kubepods"
NETWORK: Final = "tessera-node"
NAMESPACE: Final = re.compile(r"/var/run/netns/cni-[0-9a-f-]+")
RECORDS: Final = Path("/var/lib/cni/results")


def pod_cgroups() -> tuple[Path, ...]:
    """The root of the pods' cgroups in every hierarchy (one in the unified one)."""
    return tuple(path for path in (CGROUPS / PODS, *CGROUPS.glob(f"*/{PODS}")) if path.is_dir())


def pod_processes() -> set[int]:
    """Every process in a pod's cgroup, also while cgroups come and go."""
    found: set[int] = set()
    for root in pod_cgroups():
        for folder, _, _ in os.walk(root):  # passes over what has gone
            with suppress(OSError):
                found.update(int(word) for word in Path(folder, "cgroup.procs").read_text().split())
    return found


def shims(folder: Path) -> set[int]:
    """The runtime's shims of this node: they outlive it."""
    socket = f"{folder}/containerd.sock".encode()
    return {
        pid
        for pid, words in command_lines()
        if words[0].rsplit(b"/", 1)[-1].startswith(b"containerd-shim") and socket in words
    }


def command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """Every process and the words of its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


def sweep_containers(folder: Path) -> None:
    """End the containers and shims of the node in ``folder`` and remove their cgroups and namespaces."""

    def left() -> set[int]:
        return pod_processes() | shims(folder)

    def killed() -> bool:
        for pid in left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left()

    wait_until(killed, "the containers end", 60)
    for root in pod_cgroups():
        for group, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                Path(group).rmdir()
    _remove_networks()


def _remove_networks() -> None:
    """Remove the network namespaces of this node's sandboxes and the network plugins' records of them.

    A sandbox has one record a network: ours, by which it is known, and the loopback's; one names the namespace.
    """
    texts = {path: path.read_text("utf-8", "replace") for path in RECORDS.glob("*")}
    ours = [path.name.split("-")[-2] for path in texts if path.name.startswith(f"{NETWORK}-")]
    for path, text in texts.items():
        if not any(sandbox in path.name for sandbox in ours):
            continue
        for namespace in set(NAMESPACE.findall(text)):
            subprocess.run(["umount", "--lazy", namespace], check=False, capture_output=True)
            Path(namespace).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def mounts_below(folder: Path) -> list[str]:
    """Mount points in the folder, the deepest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((p for p in points if p == str(folder) or p.startswith(f"{folder}/")), key=len, reverse=True)


def remove_folder(folder: Path) -> None:
    """Unmount everything below the folder and delete it."""
    for point in mounts_below(folder):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
