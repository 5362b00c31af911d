"""The node's CDI spec: made of the devices, the driver and the gate, written when it changes.

It is in place before the first share is handed out: a CDI name that ``Allocate`` answers resolves on this node.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from tessera.agent.answer import AnswerMount
from tessera.agent.driver import DriverFiles
from tessera.agent.store import write_whole
from tessera.core.errors import UnavailableError
from tessera.wire.kube.cdi import (
    FILE_NAME,
    VERSION,
    CdiDevice,
    CdiMount,
    CdiSpec,
    DeviceNode,
    Edits,
    Hook,
    device_variable,
    encode_spec,
)
from tessera.wire.kube.names import CDI_KIND

GATE_SECONDS: Final = 5
HOOK_SECONDS: Final = 10
"""The runtime's own patience with the gate: longer than the gate's, whose message would be lost otherwise."""


def spec_of(files: DriverFiles, gate: Path, socket: Path) -> CdiSpec:
    """The spec: a device a GPU; driver and gate once for all of them."""
    return CdiSpec(
        cdi_version=VERSION,
        kind=CDI_KIND,
        devices=tuple(
            CdiDevice(
                name=device.uuid,
                container_edits=Edits(
                    env=(device_variable(device.index, device.uuid),),
                    device_nodes=tuple(DeviceNode(node, "rw") for node in device.nodes),
                ),
            )
            for device in files.devices
        ),
        container_edits=Edits(
            env=tuple(f"{name}={value}" for name, value in files.environment),
            device_nodes=tuple(DeviceNode(node, "rw") for node in files.shared_nodes),
            mounts=tuple(map(_mount, files.mounts)),
            hooks=(_hook(gate, socket),),
        ),
    )


def _mount(mount: AnswerMount) -> CdiMount:
    options = ("ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind")
    return CdiMount(mount.host, mount.inside, options)


def _hook(gate: Path, socket: Path) -> Hook:
    arguments = (gate.name, "--socket", str(socket), "--timeout", str(GATE_SECONDS))
    return Hook("createRuntime", str(gate), arguments, HOOK_SECONDS)


def write_spec(directory: Path, spec: CdiSpec) -> bool:
    """Let the directory hold this spec; whether it had to be written. Raises :class:`UnavailableError`."""
    path, data = directory / FILE_NAME, encode_spec(spec)
    try:
        if path.exists() and path.read_bytes() == data:
            return False
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        what = f"the CDI spec {path} cannot be written: {error.strerror}"
        raise UnavailableError(
            what, "mount the directory into the agent, or name another with --cdi-dir"
        ) from error
    return True


def remove_spec(directory: Path) -> None:
    """Take the spec away, when the agent is uninstalled."""
    with suppress(FileNotFoundError):
        (directory / FILE_NAME).unlink()
