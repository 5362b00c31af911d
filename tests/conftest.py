"""Fixtures that more than one part needs."""

import fcntl
import subprocess
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import tessera

# The same examples on every machine and every day, so that a red build is a change's fault. To look for new ones:
# pytest --hypothesis-profile explore
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=1000, deadline=None, database=None)
# For tools/mutants.py, which wants to know whether a law objects, not the smallest world in which it does.
settings.register_profile(
    "mutants", derandomize=True, deadline=None, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("fixed")

ROOT = Path(__file__).parent.parent
NATIVE = Path(tessera.__file__).parent / "_native"
LIBRARIES = (
    "libtessera.so",
    "libtessera_region.so",
    "libtessera_place.so",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
)


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled libraries, which are built where one is missing: no test is left out."""
    with (tmp_path_factory.getbasetemp().parent / "native.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((NATIVE / name).exists() for name in LIBRARIES):
            subprocess.run(["make", "-C", ROOT / "limiter", "all"], check=True)
    return NATIVE
