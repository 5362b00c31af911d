"""Programs of a node from Debian's packages, of suites that the machine itself need not run.

Package lists of their own, checked by the archive's signature as always; packages are unpacked, never installed,
so the machine's own packages stay as they are. What was fetched once is kept in the cache folder.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cluster.engine.binaries import cache_folder

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NODE: Final = ("containerd-2", "containerd-1.7", "runc", "cni", "busybox")
"""What a real node is made of."""
WANTED: Final = {
    "containerd-2": ("sid", "containerd"),
    "containerd-1.7": ("trixie", "containerd"),
    # runc of sid and trixie want a newer C library than bookworm's; bookworm's works with both containerds.
    "runc": ("bookworm", "runc"),
    "cni": ("bookworm", "containernetworking-plugins"),
    "busybox": ("bookworm", "busybox-static"),
    # C libraries for images, and what a program for the oldest of either archive is compiled with.
    "ubuntu-keyring": ("trixie", "ubuntu-keyring"),
    "libc-xenial": ("xenial", "libc6"),
    "libc-dev-xenial": ("xenial", "libc6-dev"),
    "kernel-headers-xenial": ("xenial", "linux-libc-dev"),
    "libc-bionic": ("bionic", "libc6"),
    "libc-bullseye": ("bullseye", "libc6"),
    "libc-dev-bullseye": ("bullseye", "libc6-dev"),
    "kernel-headers-bullseye": ("bullseye", "linux-libc-dev"),
    "libc-bookworm": ("bookworm", "libc6"),
    "libc-trixie": ("trixie", "libc6"),
    "libc-sid": ("sid", "libc6"),
    "musl": ("bookworm", "musl"),
    "musl-dev": ("bookworm", "musl-dev"),
    "musl-tools": ("bookworm", "musl-tools"),
}
UBUNTU: Final = frozenset({"xenial", "bionic"})
"""Suites of Ubuntu's archive. Its keys are a package of Debian's, so that Debian's signature vouches for them."""


class PackageError(Exception):
    """A package could not be had; the text says which and why."""


def unpacked(name: str) -> Path:
    """The root of an unpacked package of :data:`WANTED`, fetched first where it is not there.

    Raises :class:`PackageError`.
    """
    folder = cache_folder() / "packages"
    root = folder / name
    if root.exists():
        return root
    if WANTED[name][0] in UBUNTU:
        unpacked("ubuntu-keyring")
    with _lock(folder):
        if not root.exists():
            _fetch(folder, name, *WANTED[name])
    return root


def missing_package_reason() -> str:
    """Why packages can be neither found nor fetched here; empty where they can."""
    if all((cache_folder() / "packages" / name).exists() for name in NODE):
        return ""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH: containerd and runc come from Debian's packages"
    if not KEYRING.exists():
        return f"{KEYRING} is not there: Debian's packages could not be verified (package debian-archive-keyring)"
    return ""


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path, name: str, suite: str, package: str) -> None:
    lists = folder / f"apt-{suite}"
    options = _apt_options(lists, suite)
    if not (lists / "updated").exists():
        _run(["apt-get", *options, "update", "-qq"], f"the package lists of {suite}")
        (lists / "updated").touch()
    download = folder / f"{name}.download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir()
    # `download` checks the file against the signed list; apt's sandbox user cannot write here, hence root's.
    _run(["apt-get", *options, "download", "-qq", package], f"{package} of {suite}", download)
    (file,) = download.glob("*.deb")
    draft = folder / f"{name}.unpacked"
    shutil.rmtree(draft, ignore_errors=True)
    _run(["dpkg-deb", "-x", str(file), str(draft)], f"{file.name}")
    (draft / "package").write_text(file.name + "\n")
    shutil.rmtree(download)
    draft.rename(folder / name)


def _apt_options(lists: Path, suite: str) -> list[str]:
    """Options that keep apt away from the machine's own lists, sources and cache."""
    for path in ("lists/partial", "cache/archives/partial"):
        (lists / path).mkdir(parents=True, exist_ok=True)
    sources = lists / "sources.list"
    keys, archive = KEYRING, "debian"
    if suite in UBUNTU:
        keys = cache_folder() / "packages/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"
        archive = "ubuntu"
    sources.write_text(f"deb [signed-by={keys}] {_mirror(archive)} {suite} main\n")
    given = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::State::lists": lists / "lists",
        "Dir::Cache": lists / "cache",
        "Dir::State::status": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": 3,
        "APT::Update::Post-Invoke-Success::": "true",
    }
    return [word for key, value in given.items() for word in ("-o", f"{key}={value}")]


def _mirror(archive: str) -> str:
    """The mirror of ``debian`` or ``ubuntu`` that ``TESSERA_DEBIAN_MIRROR`` names, or the one of this machine."""
    variable = f"TESSERA_{archive.upper()}_MIRROR"
    if given := os.environ.get(variable):
        return given
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for address in listed.split():
        if address.rstrip("/").endswith(f"/{archive}"):
            return address
    raise PackageError(f"this machine's apt has no mirror of {archive.capitalize()}: set {variable} to one")


def _run(command: Sequence[str], what: str, folder: Path | None = None) -> None:
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=300,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if run.returncode:
        raise PackageError(f"{what}: {' '.join(command[:1])} failed: {run.stderr.strip()[-800:]}")
