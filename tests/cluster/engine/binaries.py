"""The engine's programs: where they are, and how they are built where they are not.

``tools/engine`` is built once per content of its sources into a cache folder. ``KUBEBUILDER_ASSETS`` wins over
that, program by program: whoever has envtest's three builds nothing, and goes without what they lack.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[3] / "tools/engine"
ENVTEST: Final = ("etcd", "kube-apiserver", "kubectl")
CONTROL_PLANE: Final = (*ENVTEST, "kube-controller-manager", "kube-scheduler")
NAMES: Final = (*CONTROL_PLANE, "kubelet", "helm")


class EngineMissingError(Exception):
    """A program of the engine is not there; the text says which, where it was looked for and what to do."""


def cache_folder() -> Path:
    """Where everything that takes long to make or fetch is kept between runs."""
    return Path(os.environ.get("TESSERA_ENGINE_CACHE") or Path.home() / ".cache/tessera/engine")


def source_hash() -> str:
    """Names the sources; another hash is another build."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((SOURCES / name).read_bytes())
    digest.update(version_flags().encode())
    return digest.hexdigest()[:16]


def given_folder() -> Path | None:
    """The folder that ``KUBEBUILDER_ASSETS`` names."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(given) if given else None


def built_folder() -> Path:
    """The folder of our own build, there or not."""
    return cache_folder() / source_hash()


def find_program(name: str) -> Path | None:
    """The path of one program, or ``None``."""
    folders = [folder for folder in (given_folder(), built_folder()) if folder is not None]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def program(name: str) -> Path:
    """The path of one program. Raises :class:`EngineMissingError`."""
    path = find_program(name)
    if path is None:
        raise EngineMissingError(missing_reason(name))
    return path


def missing_reason(*names: str) -> str:
    """Why these programs are not there and what to do; empty where they are."""
    lacking = ", ".join(name for name in names if find_program(name) is None)
    if not lacking:
        return ""
    if given := given_folder():
        return f"{lacking}: not in KUBEBUILDER_ASSETS={given}; unset it and run `make engine` for all programs"
    return f"{lacking}: the engine is not built in {built_folder()}; run `make engine`, which needs go"


@contextmanager
def _building(folder: Path) -> Iterator[Path]:
    """A folder beside the final one that takes its place only when the build was a success."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        with suppress(OSError):  # somebody else was faster: equal sources, equal programs
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def build() -> Path:
    """The folder with the programs, built first where none is there. Raises :class:`EngineMissingError`."""
    if given := given_folder():
        if reason := missing_reason(*ENVTEST):
            raise EngineMissingError(reason)
        return given
    folder = built_folder()
    if not missing_reason(*NAMES):
        return folder
    if shutil.which("go") is None:
        raise EngineMissingError(
            "go is not on PATH and the engine is not built: install Go (its version is in tools/engine/go.mod), "
            "or point KUBEBUILDER_ASSETS at a folder with envtest's binaries"
        )
    with _building(folder) as draft:
        subprocess.run(
            ["go", "build", "-trimpath", "-ldflags", version_flags(), "-o", draft / "engine", "."],
            cwd=SOURCES,
            env={**os.environ, "CGO_ENABLED": "0"},
            check=True,
        )
        for name in NAMES:
            (draft / name).symlink_to("engine")
    return folder


def pinned_version(module: str) -> str:
    """The version of a module that ``go.mod`` requires, as ``1.37.2``. Raises :class:`EngineMissingError`."""
    for line in (SOURCES / "go.mod").read_text().splitlines():
        match line.split():
            case [name, version, *_] if name == module:
                return version.removeprefix("v")
    raise EngineMissingError(f"{SOURCES / 'go.mod'} requires no {module}")


def version_flags() -> str:
    """Linker flags that tell the programs their version, which clients look at; ``-s -w`` halve the file."""
    version = pinned_version("k8s.io/kubernetes")
    major, minor, _ = version.split(".")
    facts = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    helm = f"-X helm.sh/helm/v4/internal/version.version=v{pinned_version('helm.sh/helm/v4')}"
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{k}={v}" for k, v in facts.items()), helm])
