"""The engine's programs: where they are, and how they are built where they are not.

``KUBEBUILDER_ASSETS`` wins: whoever has envtest's binaries builds nothing, but then has no kubelet and no helm
unless they lie there too. Otherwise ``tools/engine`` is built once per content of its sources into a cache folder.
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
CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
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


def assets_folder() -> Path:
    """The folder that holds the programs, or will once they are built."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(given) if given else cache_folder() / source_hash()


def program(name: str) -> Path:
    """The path of one program. Raises :class:`EngineMissingError`."""
    path = assets_folder() / name
    if not path.exists():
        raise EngineMissingError(missing_reason(name))
    return path


def missing_reason(*names: str) -> str:
    """Why these programs are not there and what to do; empty where they are."""
    lacking = [name for name in names if not (assets_folder() / name).exists()]
    if not lacking:
        return ""
    if os.environ.get("KUBEBUILDER_ASSETS"):
        return f"{', '.join(lacking)} not in KUBEBUILDER_ASSETS={assets_folder()}; unset it to build our own"
    return f"the engine is not built ({', '.join(lacking)} not in {assets_folder()}): run `make engine`, needs go"


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
    """The folder with all programs, built first where it is not there. Raises :class:`EngineMissingError`."""
    folder = assets_folder()
    if os.environ.get("KUBEBUILDER_ASSETS"):
        if reason := missing_reason(*CONTROL_PLANE):
            raise EngineMissingError(reason)
        return folder
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
