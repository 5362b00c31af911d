"""The programs that containers get, installed on the node: one directory a version, never replaced in place.

A library that running processes have mapped keeps its inode for as long as anybody uses it: another version is
another directory. Versions that no share was given and no process maps are removed when an agent starts.

Source of the trap: HAMi#727, HAMi#753 (a library replaced in place ends every process that has it mapped).
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.agent.answer import preload_text
from tessera.agent.cgroups import placement_of
from tessera.agent.driver import SIMULATED_LIBRARIES
from tessera.agent.layout import GATE_NAME, LIBRARY_NAME, Layout
from tessera.agent.store import copy_whole, write_whole
from tessera.core.errors import UnavailableError
from tessera.runtime.native import require_library
from tessera.runtime.proc import PROC, all_pids

_DIGEST_LENGTH: Final = 16
_PRELOAD: Final = "ld.so.preload"
REMEDY: Final = (
    "the tessera agent installs within 10 s what is missing; a damaged file may be in use: "
    "end the pods of this node that hold shares, and remove it"
)
_BLOCK: Final = 64 * 1024
"""Bytes that are read at once: a whole library in memory would stay there as free pieces."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One file and one content of it, as far as a look without reading tells."""

    device: int
    inode: int
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Payload:
    """What was installed: the limiter's digest, and host paths. ``library_is`` tells the file from others."""

    digest: str
    library: Path
    preload: Path
    gate: Path
    library_is: FileIdentity


def install(layout: Layout, library: Path, gate: Path) -> Payload:
    """The limiter and the gate of this version on the node; found or written.

    Raises :class:`UnavailableError` where one is missing or cannot be written.
    """
    digest, inside = _installed(require_library(library), layout.libraries, LIBRARY_NAME, 0o644)
    _, program = _installed(require_library(gate), layout.programs, GATE_NAME, 0o755)
    preload = inside.with_name(_PRELOAD)
    text = preload_text(digest).encode()
    if not preload.exists() or preload.read_bytes() != text:
        write_whole(preload, text)
        preload.chmod(0o644)
    return Payload(digest, inside, preload, program, identity(inside))


def install_simulator(layout: Layout) -> Path:
    """The simulated driver on the node, for containers of a simulated machine; where it lies."""
    folder = layout.simulators / digest_of(*map(require_library, SIMULATED_LIBRARIES))
    for path in SIMULATED_LIBRARIES:
        if not (folder / path.name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            copy_whole(path, folder / path.name)
    return folder


def _installed(source: Path, folder: Path, name: str, mode: int) -> tuple[str, Path]:
    """The digest and the place of a file's version. One that lies there damaged is an error: it may be in use."""
    try:
        digest = digest_of(source)
        place = folder / digest / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            copy_whole(source, place)
            place.chmod(mode)
        if digest_of(place) != digest:
            raise damaged(place)
    except OSError as error:
        what = f"{name} cannot be installed in {folder}: {error.strerror}"
        raise UnavailableError(what, "see that the node's disk has room and can be written") from error
    return digest, place


def digest_of(*paths: Path) -> str:
    """What a version is called: the digest of its files, one after the other. Raises ``OSError``."""
    found = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    return found.hexdigest()[:_DIGEST_LENGTH]


def damaged(place: Path) -> UnavailableError:
    """The error of a file that is not on the node as it was installed: whoever sees it says the same."""
    return UnavailableError(f"{place} is {'damaged' if place.exists() else 'missing'}", REMEDY)


def unsound(payload: Payload) -> Path | None:
    """What of the installed limiter is not the file that it was; ``None`` where everything is."""
    try:
        if identity(payload.library) != payload.library_is:
            return payload.library
    except OSError:
        return payload.library
    try:
        return None if payload.preload.read_bytes() == preload_text(payload.digest).encode() else payload.preload
    except OSError:
        return payload.preload


def identity(path: Path) -> FileIdentity:
    """What tells a file from every other one. Raises ``OSError``."""
    found = path.stat()
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def versions(layout: Layout) -> tuple[str, ...]:
    """Digests of the limiters that are installed."""
    return tuple(sorted(path.name for path in layout.libraries.glob("*") if path.is_dir()))


def sweep_versions(layout: Layout, wanted: Iterable[str], is_mapped: Callable[[Path], bool]) -> tuple[str, ...]:
    """Remove the limiters that are neither ``wanted`` nor mapped by anybody; which were removed."""
    keep = set(wanted)
    unused = [digest for digest in versions(layout) if digest not in keep]
    removed = [digest for digest in unused if not is_mapped(layout.libraries / digest / LIBRARY_NAME)]
    for digest in removed:
        shutil.rmtree(layout.libraries / digest, ignore_errors=True)
    return tuple(removed)


def is_mapped(path: Path) -> bool:
    """Whether any process has this very file mapped; true as well where we may not look into one of a pod."""
    try:
        found = path.stat()
    except OSError:
        return False
    mark = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino} ".encode()
    for pid in all_pids():
        try:
            maps = (PROC / str(pid) / "maps").read_bytes()
        except PermissionError:
            if placement_of(pid) is not None:
                return True
            continue
        except OSError:
            continue
        if mark in maps:
            return True
    return False


class LibraryChecks:
    """Whether installed limiters still are what their names say: read once, then only looked at."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sound: dict[str, FileIdentity] = {}

    def fault(self, digest: str) -> str:
        """What is wrong with the limiter of this digest; empty where nothing is."""
        path = self._layout.libraries / digest / LIBRARY_NAME
        try:
            found = identity(path)
            if self._sound.get(digest) == found:
                return ""
            if digest_of(path) != digest:
                return f"{path} was changed"
        except OSError as error:
            return f"{path}: {error.strerror}"
        self._sound[digest] = found
        return ""
