"""What a container runtime tells a hook: the OCI state, and the bundle's configuration; only what the gate reads.

Source: OCI runtime specification 1.2, ``runtime.md`` (state) and ``config.md``. Annotation names: containerd
pkg/cri/annotations (``io.kubernetes.cri.*``); CRI-O internal/factory/container (``io.kubernetes.*``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

_UID: Final = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
_CONTAINER: Final = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_POD: Final = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
_NAMESPACE: Final = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")


class OciState(msgspec.Struct, frozen=True):
    """A container about to start. ``pid`` is its init process, already in its final cgroup."""

    id: str
    bundle: str
    pid: int = 0
    annotations: dict[str, str] = {}


class OciMount(msgspec.Struct, frozen=True):
    """A mount; they are applied in the order of the list."""

    destination: str
    source: str = ""
    type: str = ""
    options: tuple[str, ...] = ()


class OciProcess(msgspec.Struct, frozen=True):
    """The process to start."""

    env: tuple[str, ...] | None = None


class OciDevice(msgspec.Struct, frozen=True):
    """A device node that is made in the container."""

    path: str


class OciLinux(msgspec.Struct, frozen=True):
    """The Linux part."""

    devices: tuple[OciDevice, ...] | None = None


class OciConfig(msgspec.Struct, frozen=True):
    """A bundle's ``config.json``."""

    process: OciProcess = OciProcess()
    mounts: tuple[OciMount, ...] | None = None
    linux: OciLinux = OciLinux()


@dataclass(frozen=True, slots=True)
class Identity:
    """Which container of which pod the runtime says it is starting."""

    uid: str
    namespace: str
    pod: str
    container: str

    @property
    def key(self) -> str:
        """``namespace/pod``, as people write it."""
        return f"{self.namespace}/{self.pod}"


_state: Final = msgspec.json.Decoder(OciState)
_config: Final = msgspec.json.Decoder(OciConfig)


def decode_state(data: bytes) -> OciState:
    """The state of a hook's standard input. Raises ``ValueError``."""
    try:
        return _state.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"is no OCI state: {error}") from error


def decode_config(data: bytes) -> OciConfig:
    """A bundle's configuration. Raises ``ValueError``."""
    try:
        return _config.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"is no OCI configuration: {error}") from error


def identity_of(annotations: Mapping[str, str]) -> Identity | None:
    """Who the container is; ``None`` where its runtime does not say (pod uid and container name are needed)."""
    uid, container = _first(annotations, _UID), _first(annotations, _CONTAINER)
    if not uid or not container:
        return None
    return Identity(uid, _first(annotations, _NAMESPACE), _first(annotations, _POD), container)


def _first(annotations: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((annotations[name] for name in names if annotations.get(name)), "")


def mount_over(mounts: tuple[OciMount, ...], path: str) -> OciMount | None:
    """The mount through which ``path`` is seen in the container: the last one on it or above it."""
    covering = [m for m in mounts if path == m.destination or path.startswith(m.destination.rstrip("/") + "/")]
    return covering[-1] if covering else None
