"""The answer to ``Allocate``: what a container gets with its share, as a value.

With CDI the device nodes, the driver and the gate come with the CDI devices; the region, the limiter and
``/etc/ld.so.preload`` are this container's own mounts in both cases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tessera.agent.grant import ContainerGrant
from tessera.agent.layout import INNER_PRELOAD, INNER_REGION, inner_library
from tessera.vendors.spec import NodeNames
from tessera.wire.kube.cdi import qualified

SHARE_VARIABLE: Final = "TESSERA_SHARE"


@dataclass(frozen=True, slots=True)
class AnswerMount:
    """A file or directory of the node in the container."""

    host: str
    inside: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What the kubelet adds to the container. ``devices`` are device nodes, one path on both sides."""

    environment: Mapping[str, str]
    mounts: tuple[AnswerMount, ...]
    cdi: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """Host paths of what a share mounts: its region, and the limiter of the version it was given."""

    region: str
    library: str
    preload: str


@dataclass(frozen=True, slots=True)
class Plain:
    """What stands in for the CDI spec where the runtime has none: nodes, mounts, environment of these devices."""

    devices: tuple[str, ...]
    mounts: tuple[AnswerMount, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def answer_of(grant: ContainerGrant, sources: Sources, names: NodeNames, plain: Plain | None) -> Answer:
    """The answer for a grant; with ``plain`` it does without CDI, and so without a gate."""
    uuids = tuple(device.uuid for device in grant.devices)
    environment = {
        names.order_env: ",".join(uuids),
        SHARE_VARIABLE: f"{grant.uid}/{grant.container}",
    }
    mounts = (
        AnswerMount(sources.region, INNER_REGION, read_only=False),
        AnswerMount(sources.library, inner_library(grant.library)),
        AnswerMount(sources.preload, INNER_PRELOAD),
    )
    if plain is None:
        return Answer(environment, mounts, cdi=tuple(map(qualified, uuids)))
    return Answer({**environment, **dict(plain.environment)}, (*mounts, *plain.mounts), devices=plain.devices)


def preload_text(digest: str) -> str:
    """The content of a container's ``/etc/ld.so.preload``."""
    return f"{inner_library(digest)}\n"


def has_cdi(runtime: str) -> bool | None:
    """Whether a container runtime, as a node's status names it, can inject CDI devices; ``None``: nobody knows.

    Source: containerd 1.7 release notes (CDI devices of the CRI; earlier versions skip them), CRI-O 1.23.
    """
    name, _, version = runtime.partition("://")
    numbers = [int(part) for part in version.lstrip("v").split("-")[0].split(".")[:2] if part.isdigit()]
    since = _CDI_SINCE.get(name)
    if since is None or len(numbers) < len(since):
        return None
    return tuple(numbers) >= since


_CDI_SINCE: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
