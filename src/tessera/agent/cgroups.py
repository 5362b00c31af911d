"""Which pod and which container a process is of, as its cgroup says. Never derived from anything else.

Both drivers and both versions of cgroups: ``kubepods/burstable/pod<uid>/<id>`` and
``kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope``, with whatever stands above or below.

Source: KEP-2254 and k8s.io/kubernetes v1.37 pkg/kubelet/cm/pod_container_manager_linux.go (names);
kai-gpu-fractioning's field notes (runtimes may add a level below the container's).
"""

import re
from dataclasses import dataclass
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
