"""Every test has a state directory of its own for simulated machines, and the compiled parts."""

import subprocess
from pathlib import Path

import pytest

from tessera.runtime.native import NATIVE

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_machines(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (NATIVE / "tessera-gate").exists():
        subprocess.run(["make", "-C", ROOT / "limiter", "gate"], check=True)
    monkeypatch.setenv("TESSERA_STATE_DIR", str(tmp_path / "machines"))
