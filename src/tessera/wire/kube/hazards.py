"""What in a pod's spec weakens the isolation of its share, or of its neighbours': told, or refused."""

from collections.abc import Collection
from typing import Final

from tessera.wire.fields import Findings
from tessera.wire.kube.podview import VISIBLE_DEVICES, ContainerView, SpecView

_FLAGS: Final = (
    ("host_pid", "hostPID", "lets the pod reach the node's processes, and so other pods' limits"),
    ("host_ipc", "hostIPC", "lets the pod reach memory that processes of other pods share"),
    (
        "share_process_namespace",
        "shareProcessNamespace",
        "lets each container of the pod reach the others' files, and so their limits",
    ),
)
_SENSITIVE: Final = (
    "/dev",
    "/proc",
    "/run/tessera",
    "/var/run/tessera",
    "/var/lib/tessera",
    "/var/run/cdi",
    "/etc/cdi",
    "/run/containerd",
    "/var/lib/kubelet/device-plugins",
)
"""Places of a node where devices, limits or the records of who holds what can be reached."""


def find_hazards(
    spec: SpecView, fractions: Collection[str], findings: Findings, *, refuse_privileged: bool
) -> None:
    """Note what lets the pod past its share. ``fractions`` are the containers that hold a part of a device.

    A privileged container that holds a fraction is an error with ``refuse_privileged``, else a warning: it reaches
    every device of its node, and no limit in its process can be relied on.
    """
    for attribute, name, message in _FLAGS:
        if getattr(spec, attribute):
            findings.warn(f"spec.{name}", "true", message, "leave it out unless the pod is trusted")
    for volume in spec.volumes or ():
        path = volume.host_path.path if volume.host_path else ""
        if path and _reaches(path):
            message = "reaches devices or records of the node, past the pod's share"
            findings.warn("spec.volumes[].hostPath", path, message, "mount less, unless the pod is trusted")
    for _, _, container in spec.located():
        _find_in(container, container.name in fractions and refuse_privileged, findings)


def _find_in(container: ContainerView, refuse: bool, findings: Findings) -> None:
    for entry in container.env or ():
        if entry.name in VISIBLE_DEVICES:
            message = "makes some container runtimes hand out devices past the pod's share"
            where = f"containers[{container.name}].env[{entry.name}]"
            findings.warn(where, entry.value or "", message, "leave it out: the allocation decides")
    if not container.privileged:
        return
    field = f"containers[{container.name}].securityContext.privileged"
    if refuse:
        message = "lets the container reach every device of the node, so that its share cannot be enforced"
        remedy = "drop the privilege, or ask for whole devices"
        findings.found[:] = [problem for problem in findings.found if problem.field != field]
        findings.error(field, "true", message, remedy)
    elif all(problem.field != field for problem in findings.found):
        message = "lets the container reach every device of the node, whatever its share"
        findings.warn(field, "true", message, "drop the privilege")


def _reaches(path: str) -> bool:
    """Whether ``path`` holds, or lies in, a place that is not the pod's business."""
    clean = f"/{'/'.join(part for part in path.split('/') if part and part != '.')}/".replace("//", "/")
    return any(clean.startswith(f"{place}/") or f"{place}/".startswith(clean) for place in _SENSITIVE)
