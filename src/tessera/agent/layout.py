"""Where things lie on the node and in a container.

::

    <state>/containers/<pod uid>/<container>/region       the shared region, mounted into the container
    <state>/containers/<pod uid>/<container>/share.json   what was granted to it
    <state>/containers/<pod uid>/<container>/gated        which runtime container passed the gate last
    <state>/faults.json                                   device faults that outlive an agent
    <state>/../lib/<hash>/{libtessera.so,ld.so.preload}   the limiter, one directory a version, never replaced
    <state>/../bin/<hash>/tessera-gate                    the gate program, the same way
    <state>/../sim-driver/<hash>/                         the driver of a simulated machine

The agent sees all of these under the node's own paths: they go into mounts of other containers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATE: Final = Path("/var/lib/tessera/agent")
CDI_DIRECTORY: Final = Path("/var/run/cdi")
GATE_SOCKET: Final = Path("/run/tessera/gate.sock")
PLUGIN_DIRECTORY: Final = Path("/var/lib/kubelet/device-plugins")
"""Fixed by the kubelet whatever its root directory. Source: k8s.io/kubelet deviceplugin/v1beta1 constants.go."""
POD_RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

INNER_REGION: Final = "/run/tessera/region"
INNER_PRELOAD: Final = "/etc/ld.so.preload"
INNER_DRIVER: Final = "/run/tessera/driver"
"""Libraries of a simulated driver, in the container."""
INNER_MACHINE: Final = "/run/tessera/machine"
"""State of a simulated machine, in the container."""

LIBRARY_NAME: Final = "libtessera.so"
GATE_NAME: Final = "tessera-gate"


def inner_library(digest: str) -> str:
    """The limiter of one version, in the container: a path of its own, so that versions live side by side."""
    return f"/run/tessera/lib/{digest}/{LIBRARY_NAME}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Host paths, from the state directory."""

    state: Path

    @property
    def containers(self) -> Path:
        """One directory a pod, in it one a container."""
        return self.state / "containers"

    @property
    def libraries(self) -> Path:
        """One directory a version of the limiter."""
        return self.state.parent / "lib"

    @property
    def programs(self) -> Path:
        """One directory a version of the gate."""
        return self.state.parent / "bin"

    @property
    def simulators(self) -> Path:
        """One directory a version of the simulated driver."""
        return self.state.parent / "sim-driver"

    @property
    def faults(self) -> Path:
        """Device faults that outlive an agent."""
        return self.state / "faults.json"

    def share(self, uid: str, container: str) -> Path:
        """The directory of a container's share. Raises ``ValueError`` for what is no name of an object."""
        for part in (uid, container):
            if not part or part.startswith(".") or "/" in part:
                raise ValueError(f"{part!r} is no name of a pod or container")
        return self.containers / uid / container

    def region(self, uid: str, container: str) -> Path:
        """A container's region."""
        return self.share(uid, container) / "region"
