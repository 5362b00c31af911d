"""Fixtures that more than one part needs."""

import fcntl
import subprocess
from pathlib import Path

import pytest

import tessera

ROOT = Path(__file__).parent.parent
NATIVE = Path(tessera.__file__).parent / "_native"
LIBRARIES = ("libtessera.so", "libtessera_region.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1")


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled libraries, which are built where one is missing: no test is left out."""
    with (tmp_path_factory.getbasetemp().parent / "native.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((NATIVE / name).exists() for name in LIBRARIES):
            subprocess.run(["make", "-C", ROOT / "limiter", "all"], check=True)
    return NATIVE
