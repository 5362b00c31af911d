"""The Container Device Interface: one spec a node, one device a GPU, the gate on all of them.

What the spec as a whole edits is applied once to a container, however many of its devices the container has: the
hook runs once. What CDI puts into the environment comes last and replaces what image and pod say.

Source: CDI specification, SPEC.md 0.5.0 (host paths of device nodes; containerd 1.7 and newer read it).
"""

from typing import Final

import msgspec

from tessera.wire.kube.names import CDI_KIND

VERSION: Final = "0.5.0"
FILE_NAME: Final = "tessera.dev-gpu.json"
DEVICE_VARIABLE: Final = "TESSERA_DEVICE_"
"""Begins the variables by which the gate sees what CDI really injected: ``TESSERA_DEVICE_<index>=<uuid>``."""


class DeviceNode(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A device node, on the host and in the container under one path."""

    path: str
    permissions: str = ""


class CdiMount(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Hook(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A program that the runtime starts; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    timeout: int | None = None


class Edits(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What is changed in a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[Hook, ...] = ()


class CdiDevice(msgspec.Struct, frozen=True, rename="camel"):
    """A device by its name, which is the GPU's uuid."""

    name: str
    container_edits: Edits


class CdiSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A spec file."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    container_edits: Edits = Edits()


_decoder: Final = msgspec.json.Decoder(CdiSpec)
_encoder: Final = msgspec.json.Encoder(order="deterministic")


def encode_spec(spec: CdiSpec) -> bytes:
    """The file's content. Deterministic: equal specs have equal bytes."""
    return msgspec.json.format(_encoder.encode(spec), indent=2) + b"\n"


def decode_spec(data: bytes) -> CdiSpec:
    """The spec of a file. Raises ``ValueError``."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"is no CDI spec: {error}") from error


def qualified(uuid: str) -> str:
    """The name under which a container gets a device."""
    return f"{CDI_KIND}={uuid}"


def device_variable(index: int, uuid: str) -> str:
    """What a device leaves in the environment of a container that it was injected into."""
    return f"{DEVICE_VARIABLE}{index}={uuid}"


def injected_devices(environment: tuple[str, ...]) -> frozenset[str]:
    """The uuids of the devices that were injected into a container with this environment."""
    pairs = (entry.partition("=") for entry in environment)
    return frozenset(value for name, _, value in pairs if name.startswith(DEVICE_VARIABLE))
