"""Identity of processes, on real ones."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.runtime import proc


@contextmanager
def a_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def test_a_process_is_itself_as_long_as_it_runs() -> None:
    with a_process() as process:
        identity = proc.identity_of(process.pid)
        assert identity is not None
        assert proc.is_alive(identity)
    assert not proc.is_alive(identity)


def test_a_zombie_is_dead() -> None:
    with a_process() as process:
        identity = proc.identity_of(process.pid)
        assert identity is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (proc.PROC / str(process.pid)).exists(), "not collected yet"
        assert not proc.is_alive(identity)
        assert proc.identity_of(process.pid) is None


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot": "another"}])
def test_another_start_or_boot_is_another_process(change: dict[str, object]) -> None:
    assert not proc.is_alive(replace(proc.own_identity(), **change))  # type: ignore[arg-type]


def test_of_another_pid_namespace_we_cannot_tell_and_say_alive() -> None:
    elsewhere = replace(proc.own_identity(), namespace=1, pid=1 << 22)
    assert proc.is_alive(elsewhere)


def test_descendants_are_all_generations() -> None:
    script = "import subprocess; p = subprocess.Popen(['cat']); print(p.pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdin
        grandchild = int(parent.stdout.readline())
        assert {parent.pid, grandchild} <= set(proc.descendants(os.getpid()))
        assert proc.is_descendant(grandchild, os.getpid())
        assert not proc.is_descendant(os.getpid(), grandchild)
        parent.stdin.write(b"\n")
        parent.stdin.close()


def test_a_command_with_blanks_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/cat")
    with subprocess.Popen([odd], stdin=subprocess.PIPE) as process:
        identity = proc.identity_of(process.pid)
        assert identity is not None
        assert proc.is_descendant(process.pid, os.getpid())
        assert proc.age_seconds(identity) < 3600
        assert process.stdin
        process.stdin.close()


def test_crash_points_are_only_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(proc.CRASH_VARIABLE, "elsewhere")
    proc.crash_point("here")


def test_open_files_are_seen_by_the_beginning_of_their_path(tmp_path: Path) -> None:
    path = tmp_path / "device0"
    assert not proc.has_open(os.getpid(), (f"{tmp_path}/dev",))
    with path.open("w"):
        assert proc.has_open(os.getpid(), ("/nowhere", f"{tmp_path}/dev"))


def test_a_mapped_library_is_seen_by_its_name() -> None:
    assert proc.has_mapped(os.getpid(), "libc.so.6")
    assert not proc.has_mapped(os.getpid(), "libnowhere.so")
    assert proc.has_mapped(1 << 22, "libnowhere.so"), "of who is gone nothing bad is said"
