"""A made-up cgroup v2 tree: directories with the files that a kernel would show; and cgroups of the real one."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 1 << 20
REGION = "drm/0000:07:00.0/vram"
POD = "0f6bbb37-9a8e-4f3a-9d5e-1a7c0f6bbb37"


class Tree:
    """See the module. With ``dmem`` every cgroup but the root has the controller's files."""

    def __init__(self, root: Path, *, dmem: bool = False, capacity: Mapping[str, int] | None = None) -> None:
        self.root, self.dmem = root, dmem
        root.mkdir(parents=True)
        (root / "cgroup.controllers").write_text("cpu dmem\n" if dmem else "cpu\n")
        (root / "cgroup.subtree_control").write_text("")
        for region, size in (capacity or {}).items():
            with (root / "dmem.capacity").open("a") as file:
                file.write(f"{region} {size}\n")

    def group(self, *names: str, dmem: bool | None = None) -> Path:
        """A cgroup below the root, with all those above it; its processes are all there."""
        path = self.root
        for name in names:
            path = path / name
            if not path.exists():
                path.mkdir()
                (path / "cgroup.controllers").write_text("cpu\n")
                (path / "cgroup.subtree_control").write_text("")
                self.populate(path, populated=True)
                if self.dmem if dmem is None else dmem:
                    self.add_files(path)
        return path

    def add_files(self, path: Path) -> None:
        for name in ("dmem.max", "dmem.current", "dmem.min", "dmem.low"):
            (path / name).write_text("")

    def container(self, container_id: str, uid: str = POD) -> Path:
        """A container's cgroup as kubelet and containerd call it."""
        return self.group("kubepods.slice", f"kubepods-pod{uid}.slice", f"cri-containerd-{container_id}.scope")

    def populate(self, path: Path, *, populated: bool) -> None:
        (path / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    def remove(self, path: Path) -> None:
        """What the kernel does: the files are no obstacle."""
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


REAL_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def real_root() -> Path | None:
    """Where this machine has cgroup v2, if cgroups can be made there."""
    found = next((root for root in REAL_ROOTS if (root / "cgroup.controllers").exists()), None)
    return found if found is not None and os.access(found, os.W_OK) and os.geteuid() == 0 else None


@contextmanager
def real_container(root: Path, uid: str, container_id: str) -> Iterator[Path]:
    """A container's cgroup in the kernel's own tree; whoever is left in it when it ends is killed."""
    top = root / f"tessera-test-{os.getpid()}-{time.monotonic_ns()}"
    group = top / f"pod{uid}" / container_id
    group.mkdir(parents=True)
    try:
        yield group
    finally:
        with suppress(FileNotFoundError):
            (group / "cgroup.kill").write_text("1")
        remove_real(group)
        for path in (group.parent, top):
            path.rmdir()


def remove_real(group: Path) -> None:
    """Take a cgroup of the kernel's tree away, once its processes are gone."""
    deadline = time.monotonic() + 30
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < deadline, f"{group} stays in use"
            time.sleep(0.01)


def run_in(group: Path, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a program in a cgroup: it is in there before its first instruction."""
    script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    full = ["/bin/sh", "-c", script, str(group), *command]
    return subprocess.Popen(full, env=dict(environment), stdout=subprocess.PIPE, text=True)
