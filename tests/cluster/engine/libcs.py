"""Images by their C library: glibc of several ages without a shell, musl, and none at all.

The tenant and the simulated driver in them are compiled against the oldest glibc of the archive, as a vendor's
driver is, so that they run on all. The program finds that driver by its own run path, before the one that the
agent mounts, which is built for this machine.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cluster.engine.binaries import cache_folder
from cluster.engine.images import Content, busybox_files
from cluster.engine.packages import UBUNTU, unpacked

ROOT: Final = Path(__file__).parents[3]
LIMITER: Final = ROOT / "limiter"
OLDEST: Final = {True: "xenial", False: "bullseye"}
"""glibc 2.23 of Ubuntu's archive (``True``), 2.31 of Debian's: older ones are in neither any more."""
INNER_DRIVER: Final = "/opt/driver"
_TRIPLE: Final = "x86_64-linux-gnu"
_LIBRARIES: Final = ("libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6")
_LOADER: Final = "ld-linux-x86-64.so.2"
_DRIVER: Final = ("libcuda.so.1", "libnvidia-ml.so.1")


def glibc_image_files(suite: str) -> dict[str, Content]:
    """A glibc, the tenant and the driver, and nothing else: no shell. Raises ``PackageError``."""
    root = unpacked(f"libc-{suite}")
    files: dict[str, Content] = {f"/lib64/{_LOADER}": _library(root, _LOADER)}
    files |= {f"/lib/{_TRIPLE}/{name}": _library(root, name) for name in _LIBRARIES}
    oldest = OLDEST[suite in UBUNTU]
    built = _built(f"glibc-{oldest}", lambda folder: _build_glibc(folder, oldest))
    files |= {f"{INNER_DRIVER}/{name}": built / "sim" / name for name in _DRIVER}
    return files | {"/usr/bin/tenant": built / "tenant"}


def glibc_version(suite: str) -> str:
    """The version that the library itself tells, as ``2.23``."""
    text = _library(unpacked(f"libc-{suite}"), "libc.so.6").read_bytes()
    found = re.search(rb"GNU C Library [^\n]*version (\d+\.\d+)", text)
    assert found is not None, suite
    return found[1].decode()


def musl_image_files() -> dict[str, Content]:
    """musl, and a tenant for it that has the driver in itself. Raises ``PackageError``."""
    loader = next(unpacked("musl").glob("lib/*/libc.so"), None) or next(unpacked("musl").glob("usr/lib/*/libc.so"))
    return {
        **busybox_files(),
        "/lib/ld-musl-x86_64.so.1": loader,
        "/bin/tenant": _built("musl", _build_musl) / "tenant",
    }


def static_image_files() -> dict[str, Content]:
    """A static tenant with the driver in itself."""
    return {**busybox_files(), "/bin/tenant": _built("static", _build_static) / "tenant"}


def _library(root: Path, name: str) -> Path:
    """A library of an unpacked package; links in packages may be absolute."""
    for folder in (f"lib/{_TRIPLE}", f"usr/lib/{_TRIPLE}", "lib64", "usr/lib64"):
        path = root / folder / name
        if path.is_symlink():
            target = path.readlink()
            path = root / str(target).lstrip("/") if target.is_absolute() else path.parent / target
        if path.is_file():
            return path
    raise FileNotFoundError(f"{root} has no {name}")


def _built(name: str, build: Callable[[Path], None]) -> Path:
    """What ``build`` makes of the sources as they are, made once and kept."""
    sources = [
        LIMITER / "sim.mk",
        ROOT / "examples/tenant.c",
        ROOT / "tests/local/tenants/tenant.c",
        Path(__file__),
    ]
    sources += sorted(path for folder in ("sim", "abi") for path in (LIMITER / folder).glob("*.*"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache_folder() / f"tenant-{name}-{digest}"
    if not folder.exists():
        draft = folder.with_suffix(f".{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        build(draft)
        draft.rename(folder)
    return folder


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)


def _make_driver(folder: Path, compiler: str, *names: str) -> None:
    command: list[str | Path] = [
        "make",
        "-s",
        "-j2",
        "-C",
        LIMITER,
        "-f",
        "sim.mk",
        f"CC={compiler}",
        "SIM_CFLAGS=-O1",
    ]
    _run([*command, f"OUT={folder}", f"OBJ={folder}/obj", *(f"{folder}/sim/{name}" for name in names)])


def _build_glibc(folder: Path, oldest: str) -> None:
    root = folder / "root"
    for package in (f"libc-{oldest}", f"libc-dev-{oldest}", f"kernel-headers-{oldest}"):
        shutil.copytree(unpacked(package), root, symlinks=True, dirs_exist_ok=True)
    _lead_inside(root)
    compiler = f"gcc --sysroot={root} -B{root}/usr/lib/{_TRIPLE}"
    _make_driver(folder, compiler, *_DRIVER)
    # The C library's own dlopen stands in another library there, and its development link is an absolute one.
    link = [f"-L{root}/lib/{_TRIPLE}", "-l:libdl.so.2", "-Wl,--allow-shlib-undefined"]
    link += [f"-Wl,--disable-new-dtags,-rpath,{INNER_DRIVER}"]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1"]
    _run([*compiler.split(), *flags, ROOT / "examples/tenant.c", "-o", folder / "tenant", *link])
    shutil.rmtree(root)


def _lead_inside(root: Path) -> None:
    """Make absolute links lead into ``root``: a linker looks for what they name outside of it."""
    for path in root.rglob("*"):
        if path.is_symlink() and path.readlink().is_absolute():
            target = root / str(path.readlink()).lstrip("/")
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))


def _build_musl(folder: Path) -> None:
    """With a specification of the compiler that names where musl is unpacked, and not where it is installed."""
    root = folder / "root"
    for package in ("musl", "musl-dev", "musl-tools"):
        shutil.copytree(unpacked(package), root, symlinks=True, dirs_exist_ok=True)
    (specs,) = root.glob("usr/lib/*/musl-gcc.specs")
    text = (
        specs.read_text().replace("/usr/lib/", f"{root}/usr/lib/").replace("/usr/include/", f"{root}/usr/include/")
    )
    specs.write_text(text)
    _make_driver(folder, f"gcc -specs {specs}", "libcuda_sim.a")
    _link_tenant(folder, ["gcc", "-specs", str(specs)])
    shutil.rmtree(root)


def _build_static(folder: Path) -> None:
    _make_driver(folder, "gcc", "libcuda_sim.a")
    _link_tenant(folder, ["gcc", "-static"])


def _link_tenant(folder: Path, compiler: Sequence[str]) -> None:
    """The tenant that does as its standard input says, with the driver in itself."""
    source = ROOT / "tests/local/tenants/tenant.c"
    _run([*compiler, "-O1", source, folder / "sim/libcuda_sim.a", "-o", folder / "tenant", "-lpthread"])
