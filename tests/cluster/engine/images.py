"""Container images made from files: no registry, no daemon, standard library only."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cluster.engine.binaries import cache_folder
from cluster.engine.packages import unpacked

SEARCH_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUSYBOX_NAMES: Final = ("sh", "cat", "echo", "env", "grep", "ls", "sleep", "true", "false", "mount", "id", "seq")
Content = Path | bytes | str
"""A file of the host, a file's bytes, or (as text) what a symbolic link points at."""


def make_image(
    folder: Path,
    name: str,
    files: Mapping[str, Content],
    entrypoint: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Path:
    """An OCI image archive with these files in one layer, for ``ctr images import``; equal input, equal bytes."""
    layer = _layer(files)
    packed = gzip.compress(layer, mtime=0, compresslevel=1)
    variables = [SEARCH_PATH, *(f"{key}={value}" for key, value in (environment or {}).items())]
    config = _json(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Env": variables, "Entrypoint": list(entrypoint) or None},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _described("application/vnd.oci.image.config.v1+json", config),
            "layers": [_described("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
        }
    )
    path = folder / f"{re.sub('[^a-z0-9.-]', '_', name)}.tar"
    _write_archive(path, name, manifest, (config, packed))
    return path


def busybox_files() -> dict[str, Content]:
    """A static busybox and the links to it that scripts use."""
    links: dict[str, Content] = {f"/bin/{name}": "busybox" for name in BUSYBOX_NAMES}
    return {"/bin/busybox": unpacked("busybox") / "bin/busybox", **links, "/tmp/": b""}


def glibc_files(*programs: Path, at: str = "/usr/bin") -> dict[str, Content]:
    """Programs of this machine with the dynamic loader and every library that they name, at their own paths."""
    found: dict[str, Content] = {f"{at}/{program.name}": program for program in programs}
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            found[library] = Path(library).resolve()
    return found


def pause_program() -> Path:
    """The sandbox's process, compiled once."""
    source = Path(__file__).with_name("pause.c")
    path = cache_folder() / f"pause-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-Os", "-static", "-s", "-o", draft, source], check=True)
        draft.rename(path)
    return path


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _described(media: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media, "digest": _digest(content), "size": len(content)}


def _layer(files: Mapping[str, Content]) -> bytes:
    """A tar of the files and the directories above them; a path that ends in ``/`` is a directory."""
    packed = io.BytesIO()
    made: set[str] = set()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(files.items()):
            inner = path.lstrip("/")
            for parent in reversed(Path(inner if path.endswith("/") else str(Path(inner).parent)).parents):
                _add_directory(archive, made, str(parent))
            _add_directory(archive, made, inner.rstrip("/") if path.endswith("/") else str(Path(inner).parent))
            if not path.endswith("/"):
                _add_file(archive, inner, content)
    return packed.getvalue()


def _add_directory(archive: tarfile.TarFile, made: set[str], path: str) -> None:
    if path in made or path == ".":
        return
    made.add(path)
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
    archive.addfile(entry)


def _add_file(archive: tarfile.TarFile, path: str, content: Content) -> None:
    entry = tarfile.TarInfo(path)
    if isinstance(content, str):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, content, 0o777
        archive.addfile(entry)
        return
    data = content if isinstance(content, bytes) else content.read_bytes()
    entry.mode = 0o644 if isinstance(content, bytes) else content.stat().st_mode & 0o7777
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _write_archive(path: Path, name: str, manifest: bytes, blobs: Sequence[bytes]) -> None:
    """The image layout as a tar; containerd takes the image's name from the annotation."""
    described = _described("application/vnd.oci.image.manifest.v1+json", manifest)
    described["annotations"] = {"io.containerd.image.name": name}
    described["platform"] = {"architecture": _architecture(), "os": "linux"}
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [described],
    }
    made: set[str] = set()
    with tarfile.open(path, "w") as archive:
        _add_file(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add_file(archive, "index.json", _json(index))
        _add_directory(archive, made, "blobs")
        _add_directory(archive, made, "blobs/sha256")
        for blob in (manifest, *blobs):
            _add_file(archive, f"blobs/sha256/{_digest(blob)[7:]}", blob)
