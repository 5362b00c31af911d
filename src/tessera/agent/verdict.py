"""May this container start? A decision on what the runtime is about to start and on what was granted.

A ticket chooses, it cannot prove: only here stand together who the container is (its runtime says so), what it
would see (its mounts, its devices) and what it was granted. The answer is the empty text for yes, else why not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.agent.grant import ContainerGrant
from tessera.agent.layout import INNER_PRELOAD, INNER_REGION, inner_library
from tessera.agent.store import difference
from tessera.wire.kube.cdi import injected_devices
from tessera.wire.kubelet.oci import Identity, OciConfig, OciMount, mount_over
from tessera.wire.shm import Region

REMEDY: Final = "delete the pod, so that it is placed anew"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a container with this grant must see: host paths by what it sees, and its devices' nodes."""

    grant: ContainerGrant
    region: str
    library: str
    preload: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Observed:
    """What else is known at that moment.

    ``region`` is what the region file holds, or what is wrong with it; ``library`` what is wrong with the limiter;
    ``allocated`` what the pod's allocation gives the container where the pod is known (uuid to MiB of its limit);
    ``owners`` are the regions of all shares by path, to name whose it is; ``device_nodes`` all devices' nodes.
    """

    region: Region | str
    library: str = ""
    allocated: Mapping[str, int] | None = None
    owners: Mapping[str, str] | None = None
    device_nodes: Collection[str] = ()


def refusal_of(who: Identity, config: OciConfig, expected: Expected | None, seen: Observed) -> str:
    """Why the container may not start; empty where it may."""
    if expected is None:
        return _unknown(who, config, seen)
    why = (
        _misplaced(who, expected.grant)
        or _unlike_allocation(expected.grant, seen)
        or _wrong_mounts(config.mounts or (), expected, seen)
        or _wrong_region(expected.grant, seen.region)
        or (f"the limiter is not what was granted: {seen.library}" if seen.library else "")
        or _wrong_devices(config, expected, seen)
    )
    return f"{_title(who)}: {why}" if why else ""


def _title(who: Identity) -> str:
    return f"tessera: container {who.container} of pod {who.key or who.uid} is not started"


def _unknown(who: Identity, config: OciConfig, seen: Observed) -> str:
    mount = mount_over(config.mounts or (), INNER_REGION)
    owner = (seen.owners or {}).get(mount.source) if mount else None
    held = f"; it was given the share of {owner}" if owner else ""
    return f"{_title(who)}: it has a device of this node but no share was granted to it{held}; {REMEDY}"


def _misplaced(who: Identity, grant: ContainerGrant) -> str:
    if (grant.uid, grant.container) == (who.uid, who.container):
        return ""
    return f"its share was granted to {grant.title}; {REMEDY}"


def _unlike_allocation(grant: ContainerGrant, seen: Observed) -> str:
    if seen.allocated is None:
        return ""
    granted = {device.uuid: device.memory_limit_mib for device in grant.devices}
    if granted == dict(seen.allocated):
        return ""
    return f"its pod's allocation says {_devices(seen.allocated)}, its share is {_devices(granted)}; {REMEDY}"


def _devices(limits: Mapping[str, int]) -> str:
    return ", ".join(f"{uuid} ({mib} MiB)" for uuid, mib in sorted(limits.items())) or "nothing"


def _wrong_mounts(mounts: tuple[OciMount, ...], expected: Expected, seen: Observed) -> str:
    wanted = {
        INNER_REGION: expected.region,
        inner_library(expected.grant.library): expected.library,
        INNER_PRELOAD: expected.preload,
    }
    for inside, source in wanted.items():
        found = mount_over(mounts, inside)
        if found is None or (found.destination, found.source) != (inside, source):
            return _foreign_mount(inside, found, seen)
    return ""


def _foreign_mount(inside: str, found: OciMount | None, seen: Observed) -> str:
    if found is None:
        return f"nothing is mounted at {inside}, so no limit would hold; {REMEDY}"
    owner = (seen.owners or {}).get(found.source)
    if owner:
        return f"it was given the share of {owner}; {REMEDY}"
    what = f"{found.source or found.type} is mounted at {found.destination}"
    return f"{what}, over what limits the container; mount nothing at {inside} or above it"


def _wrong_region(grant: ContainerGrant, region: Region | str) -> str:
    why = region if isinstance(region, str) else difference(region, grant)
    return f"its share cannot be enforced: {why}; {REMEDY}" if why else ""


def _wrong_devices(config: OciConfig, expected: Expected, seen: Observed) -> str:
    granted = {device.uuid for device in expected.grant.devices}
    injected = injected_devices(config.process.env or ())
    if injected != granted:
        names = ", ".join(sorted(injected)) or "none"
        return f"it has the devices {names}, granted are {', '.join(sorted(granted))}; {REMEDY}"
    nodes = {device.path for device in config.linux.devices or ()} & set(seen.device_nodes)
    if nodes != expected.nodes:
        extra, missing = sorted(nodes - expected.nodes), sorted(expected.nodes - nodes)
        if extra:
            return (
                f"it would see {', '.join(extra)} of other shares; a container with a share cannot be privileged"
            )
        return f"{', '.join(missing)} of its device is missing from it; {REMEDY}"
    return ""
