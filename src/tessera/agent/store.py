"""The shares of this node on disk: written whole or not at all, kept across restarts of everything.

The disk is what the gate, the sweeper and the next agent believe. A region is never replaced under a container:
the same share is found again and left as it is, and between two lives of a container it is only emptied.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.agent.grant import ContainerGrant, decode_grant, encode_grant
from tessera.agent.layout import Layout
from tessera.core.errors import UnavailableError
from tessera.runtime.governing import set_policy, set_standing
from tessera.runtime.native import DeviceLimits, LiveRegion, create_region
from tessera.runtime.proc import pid_namespace, runs_since
from tessera.runtime.region import load_region
from tessera.wire.shm import FIELDS, SIZES, Region, RegionError, RegionProcess

_RECORD: Final = "share.json"
_GATED: Final = "gated"
_SHARE_ID_LENGTH: Final = 63
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class StoredShare:
    """A share that lies on disk; ``gated`` is the runtime's id of the container that passed the gate last."""

    grant: ContainerGrant
    region: Path
    gated: str


class ShareStore:
    """See the module.

    ``policy`` is what new regions say of the node: see :func:`~tessera.runtime.governing.set_policy`.
    ``context_bytes`` is what a process's first context on a device is charged where it cannot measure it.
    """

    def __init__(self, layout: Layout, policy: int = 0, *, context_bytes: int = 0) -> None:
        self._layout, self.policy, self._context_bytes = layout, policy, context_bytes

    def has(self, uid: str, container: str) -> bool:
        """Whether a container was given a share."""
        return (self._layout.share(uid, container) / _RECORD).exists()

    def find(self, uid: str, container: str) -> StoredShare | None:
        """A container's share, if it has one. Raises ``ValueError`` for a record that cannot be read."""
        directory = self._layout.share(uid, container)
        data = _read(directory / _RECORD)
        if data is None:
            return None
        gated = _read(directory / _GATED) or b""
        return StoredShare(decode_grant(data), directory / "region", gated.decode(errors="replace"))

    def shares(self) -> Iterator[StoredShare]:
        """All shares, by path. What cannot be read is left out: the gate says so when its container starts."""
        for path in sorted(self._layout.containers.glob(f"*/*/{_RECORD}")):
            with suppress(ValueError):
                share = self.find(path.parts[-3], path.parts[-2])
                if share is not None:
                    yield share

    def pod_directories(self) -> dict[str, float]:
        """The pods that have a directory, by uid, with when it was last changed (seconds since 1970)."""
        found = {}
        with suppress(FileNotFoundError):
            for path in self._layout.containers.iterdir():
                with suppress(FileNotFoundError):
                    found[path.name] = path.stat().st_mtime
        return found

    def put(self, grant: ContainerGrant) -> StoredShare:
        """Write a share, or find it as it is. The region comes before the record, so that a record has a region.

        Raises:
            UnavailableError: the region cannot be written, or another share lies there that is in use.
        """
        directory = self._layout.share(grant.uid, grant.container)
        region = directory / "region"
        if self._holds(region, grant):
            if self.find(grant.uid, grant.container) is None:
                write_whole(directory / _RECORD, encode_grant(grant))
            return StoredShare(grant, region, (_read(directory / _GATED) or b"").decode(errors="replace"))
        known = self._started(grant)
        if known is not None:
            return known
        if living(region):
            what = f"{grant.title} is given another share than its running processes hold"
            raise UnavailableError(what, "delete the pod, so that it starts anew")
        try:
            self._layout.containers.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(parents=True, exist_ok=True)
            create_region(region, f"{grant.uid}/{grant.container}"[:_SHARE_ID_LENGTH], limits_of(grant))
            _set_standing(region, grant, self.policy)
            self._expect_contexts(region, len(grant.devices))
            region.chmod(0o666)  # processes of any user in the container write what they use
            write_whole(directory / _RECORD, encode_grant(grant))
        except OSError as error:
            what = f"the share of {grant.title} cannot be written to {directory}: {error.strerror}"
            raise UnavailableError(what, "see that the node's disk has room and can be written") from error
        return StoredShare(grant, region, "")

    def _expect_contexts(self, region: Path, devices: int) -> None:
        if self._context_bytes:
            with LiveRegion(region, devices) as live:
                for device in range(devices):
                    live.expect_context(device, self._context_bytes)

    def _started(self, grant: ContainerGrant) -> StoredShare | None:
        """A share of the same devices that a container passed the gate with: it goes on until it is resized."""
        try:
            known = self.find(grant.uid, grant.container)
        except (OSError, ValueError):
            return None
        if known is None or not known.gated or not self._holds(known.region, known.grant):
            return None
        return known if [d.uuid for d in known.grant.devices] == [d.uuid for d in grant.devices] else None

    def rewrite(self, grant: ContainerGrant) -> None:
        """A container that has a share was granted another one. Raises ``OSError``."""
        write_whole(self._layout.share(grant.uid, grant.container) / _RECORD, encode_grant(grant))

    def _holds(self, region: Path, grant: ContainerGrant) -> bool:
        found = read_region(region)
        return isinstance(found, Region) and difference(found, grant) == ""

    def admit(self, share: StoredShare, container_id: str) -> None:
        """Note that a container of this share passed the gate; its predecessor's books are closed first."""
        if share.gated == container_id:
            return
        if share.gated and not living(share.region):
            _empty(share.region)
        write_whole(share.region.parent / _GATED, container_id.encode())

    def gated_at(self, share: StoredShare) -> float:
        """When a container of this share passed the gate last, in seconds since 1970; 0 where none ever did."""
        try:
            return (share.region.parent / _GATED).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def remove(self, uid: str) -> None:
        """Remove everything of a pod."""
        shutil.rmtree(self._layout.share(uid, "x").parent, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """Let ``path`` hold ``data``, whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def copy_whole(source: Path, path: Path) -> None:
    """Let ``path`` hold what ``source`` holds, whole or not at all, without ever having all of it in memory."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_region(path: Path) -> Region | str:
    """The region of a file, or what is wrong with it."""
    try:
        return load_region(path)
    except FileNotFoundError:
        return f"{path} is not there"
    except (OSError, RegionError) as error:
        return f"{path}: {error}"


def living(path: Path) -> tuple[RegionProcess, ...]:
    """The processes of a region that live as far as we can tell: those of our own PID namespace."""
    region = read_region(path)
    if isinstance(region, str):
        return ()
    own = pid_namespace()
    return tuple(p for p in region.processes if p.pid_namespace == own and runs_since(p.pid, p.start_ticks))


def limits_of(grant: ContainerGrant) -> list[DeviceLimits]:
    """The region's devices, in the grant's order."""
    return [
        DeviceLimits(
            uuid=device.uuid,
            memory_limit=device.memory_limit,
            memory_request=device.memory_request_mib << 20,
            compute_limit_milli=device.compute_limit_milli,
            compute_request_milli=device.compute_request_milli,
        )
        for device in grant.devices
    ]


def _set_standing(path: Path, grant: ContainerGrant, policy: int) -> None:
    """Say in a new region who it goes before, what may lie in host memory, and what the node does."""
    with LiveRegion(path, len(grant.devices)) as region:
        for index, device in enumerate(grant.devices):
            set_standing(region, index, device.priority, device.spill_mib << 20)
        set_policy(region, policy)


def difference(region: Region, grant: ContainerGrant) -> str:
    """In what a region enforces something else than was granted; empty where it does not."""
    for device, found in zip(grant.devices, region.devices, strict=False):
        if found.uuid != device.uuid:
            return f"the region lists device {found.uuid} where {device.uuid} was granted"
        if found.memory_limit != device.memory_limit:
            return f"the region allows {found.memory_limit} bytes of {device.uuid}, not {device.memory_limit}"
        if found.compute_limit_milli != device.compute_limit_milli:
            milli = device.compute_limit_milli
            return f"the region allows {found.compute_limit_milli} milli of {device.uuid}, not {milli}"
    if len(region.devices) != len(grant.devices):
        return f"the region lists {len(region.devices)} devices where {len(grant.devices)} were granted"
    return ""


def _empty(path: Path) -> None:
    """Let nothing be used of a region whose processes are all gone; limits and file stay what they are."""
    start, _ = FIELDS["region.usage"]
    with path.open("r+b") as file:
        file.seek(start)
        left = SIZES["region"] - start
        while left:
            page = file.read(min(_PAGE, left))
            if not page:
                return
            if page.strip(b"\0"):
                file.seek(-len(page), os.SEEK_CUR)
                file.write(bytes(len(page)))
            left -= len(page)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
