"""Where state is kept, and files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from tessera.core.errors import UnavailableError
from tessera.runtime import state


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(state.STATE_VARIABLE, str(tmp_path))
    assert state.state_directory() == tmp_path


def test_the_system_directory_where_it_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(state.STATE_VARIABLE, raising=False)
    monkeypatch.setattr(state, "SYSTEM_STATE", tmp_path / "lib")
    assert state.state_directory() == tmp_path / "lib"


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system directory that this user may not write (root may write anything, so the answer is put there)."""
    monkeypatch.delenv(state.STATE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(state, "SYSTEM_STATE", tmp_path / "lib")
    monkeypatch.setattr(os, "access", lambda *_: False)
    return tmp_path / "lib"


def test_the_users_own_where_nobody_has_a_common_one(unwritable: Path, tmp_path: Path) -> None:
    assert state.state_directory() == tmp_path / "home" / "tessera"


def test_a_common_ledger_that_we_may_not_write_is_not_passed_by(unwritable: Path) -> None:
    (unwritable / "machine").mkdir(parents=True)
    (unwritable / "machine" / "ledger.db").touch()
    with pytest.raises(UnavailableError, match="may not write"):
        state.state_directory()


def test_the_first_writer_wins_and_no_temporary_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    state.write_once(path, "one")
    state.write_once(path, "two")
    assert path.read_text() == "one"
    temporary = state.temporary_for(path)
    temporary.write_text("three")
    state.link_once(temporary, path)
    assert path.read_text() == "one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_only_the_halves_of_the_dead_are_swept(tmp_path: Path) -> None:
    gone = 1 << 22  # above the largest PID that Linux gives
    kept = [f"a.{os.getpid()}.new", f"a.{os.getppid()}.new", "a.new", "ledger.db"]
    for name in (*kept, f"a.{gone}.new", f"a.{gone}.new-wal"):
        (tmp_path / name).touch()
    state.sweep_temporaries(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(kept)
