"""The device of these tests: the first of this machine's own driver. Without one they are left out, and say so."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import limiter_report  # noqa: E402 - the benches are no package that is installed


@pytest.fixture(scope="session")
def bench() -> ModuleType:
    """The program that ``make bench-limiter`` runs."""
    return limiter_report


@pytest.fixture(scope="session")
def device(native: Path) -> dict[str, str]:
    """The environment under which the benches run on the device."""
    found = limiter_report.find_hardware()
    if found.environment is None:
        pytest.skip(f"needs an NVIDIA device and its driver. {found.text}")
    return dict(found.environment)
