"""Which pod and which container a process is of, as its cgroup says, and where that cgroup is. Never derived from
anything else.

Both drivers and both versions of cgroups: ``kubepods/burstable/pod<uid>/<id>`` and
``kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope``, with whatever stands above or below.

Source: KEP-2254 and k8s.io/kubernetes v1.37 pkg/kubelet/cm/pod_container_manager_linux.go (names);
kai-gpu-fractioning's field notes (runtimes may add a level below the container's).
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.runtime.proc import PROC, all_pids

_UID: Final = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_POD: Final = re.compile(rf"(?:^|[/-])pod({_UID}|[0-9a-f]{{32}})(?:\.slice)?(?:/|$)")
_CONTAINER: Final = re.compile(r"^/?(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?(?:/|$)")


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod's uid and a runtime's container id; the id is empty for a process of the pod's own cgroup."""

    uid: str
    container_id: str


def parse_cgroup(text: str) -> Placement | None:
    """What ``/proc/<pid>/cgroup`` says; ``None`` for a process of no pod."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        pod = _POD.search(path)
        if pod is None:
            continue
        container = _CONTAINER.match(path[pod.end() :])
        return Placement(pod[1].replace("_", "-"), container[1] if container else "")
    return None


def placement_of(pid: int) -> Placement | None:
    """The pod and container of a process; ``None`` where it is of none, or gone."""
    try:
        return parse_cgroup((PROC / str(pid) / "cgroup").read_text())
    except (OSError, UnicodeDecodeError):
        return None


def running_pods() -> frozenset[str]:
    """Uids of all pods that have a process on this machine."""
    found = (placement_of(pid) for pid in all_pids())
    return frozenset(place.uid for place in found if place is not None)


def bare_id(container_id: str) -> str:
    """A container's id without the runtime's scheme: ``containerd://abc`` is ``abc``."""
    return container_id.rpartition("://")[2]


_CONTROLLERS: Final = "cgroup.controllers"
_ENABLED: Final = "cgroup.subtree_control"
_CONTROLLER: Final = "dmem"
OWN_TREE: Final = Path("/sys/fs/cgroup")
"""Where a process sees the cgroup v2 tree of its own namespace."""


def unified_path(text: str) -> str | None:
    """The path in the tree of cgroup v2, of what ``/proc/<pid>/cgroup`` says, whatever other trees it lists."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)


class CgroupTree:
    """The node's cgroup v2 tree as we see it at ``root``: which directory is whose, found and never derived.

    Paths are told as seen from the root of our own cgroup namespace, which we see at ``own_tree``; which directory
    of the node's tree that is, its number says. Without ``own_tree`` it is the root of that tree.
    """

    def __init__(self, root: Path, own_tree: Path | None = None, proc: Path = PROC) -> None:
        self.root = root
        self._own_tree, self._proc = own_tree, proc
        self._base: Path | None = None

    @property
    def is_there(self) -> bool:
        """Whether containers of this node are in a tree of cgroup v2 at all."""
        return (self.root / _CONTROLLERS).exists()

    def own(self) -> Path | None:
        """Our own cgroup; ``None`` where it cannot be told."""
        return self._directory("self")

    def group_of(self, pid: int, container_id: str) -> Path | None:
        """The cgroup of the container that a process is of; ``None`` where it is in none of its own.

        It is the topmost directory that is named after the container: runtimes may add a level below it, and
        whoever joins the container later may be put beside that. Else it is the process's own.
        """
        own = self._directory(str(pid))
        if own is None or own == self.root:
            return None
        named = (path for path in reversed((own, *own.parents)) if container_id and container_id in path.name)
        return next(named, own)

    def _directory(self, pid: str) -> Path | None:
        try:
            path = unified_path((self._proc / pid / "cgroup").read_text())
        except (OSError, UnicodeDecodeError):
            return None
        base = self._seen_from() if path is not None else None
        if path is None or base is None:
            return None
        found = Path(os.path.normpath(f"{base}{path}"))
        return found if found.is_relative_to(self.root) and found.is_dir() else None

    def _seen_from(self) -> Path | None:
        """The directory that is the root of the paths that we are told."""
        if self._base is None or not self._base.is_dir():
            self._base = self._find_base()
        return self._base

    def _find_base(self) -> Path | None:
        own = self._own_tree
        if own is None or not (own / _CONTROLLERS).exists():
            return self.root
        number = own.stat().st_ino
        below = (Path(path) for path, _, _ in os.walk(self.root))
        return next((path for path in below if path.stat().st_ino == number), None)

    def enable(self, group: Path) -> None:
        """Have the dmem controller's files in a cgroup, where the kernel has it; what cannot be is found out
        later.

        Runtimes enable it or not (runc: what there is; crun: what it needs), and systemd does not know it.
        """
        if (group / "dmem.max").exists() or not _lists(self.root / _CONTROLLERS, _CONTROLLER):
            return
        for parent in reversed([path for path in group.parents if path.is_relative_to(self.root)]):
            if not _lists(parent / _ENABLED, _CONTROLLER):
                with suppress(OSError):
                    (parent / _ENABLED).write_text(f"+{_CONTROLLER}")


def _lists(path: Path, word: str) -> bool:
    try:
        return word in path.read_text().split()
    except OSError:
        return False


def is_populated(group: Path) -> bool:
    """Whether a cgroup has a process; true as well where that is not told. Raises ``FileNotFoundError``: it is
    gone.
    """
    group.stat()
    try:
        return "populated 0" not in (group / "cgroup.events").read_text().splitlines()
    except OSError:
        return True
