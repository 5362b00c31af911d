"""Real runs on the simulated driver: a state directory of their own, and compiled tenants."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.world import World

TENANT = Path(__file__).parent / "tenants" / "tenant.c"


@pytest.fixture
def world(tmp_path: Path, native: Path) -> Iterator[World]:
    """An empty state directory; everything started in it is ended after the test."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    environment["TESSERA_STATE_DIR"] = str(tmp_path / "state")
    made = World(tmp_path / "state", "1xA100-SXM4-80GB", environment, [])
    yield made
    for call in made.calls:
        if call.process.poll() is None:
            os.killpg(call.pid, signal.SIGKILL)
        call.process.communicate()


@pytest.fixture(scope="session")
def tenant(tmp_path_factory: pytest.TempPathFactory, native: Path) -> Path:
    """The tenant as programs usually are: linked against libcuda.so.1."""
    made = tmp_path_factory.mktemp("tenant") / "tenant"
    library = native / "sim" / "libcuda.so.1"
    subprocess.run(["cc", "-O1", "-o", made, TENANT, library], check=True)
    return made


@pytest.fixture(scope="session")
def static_tenant(tmp_path_factory: pytest.TempPathFactory, native: Path) -> Path:
    """The tenant with the driver in itself: a program that no preload library can reach."""
    made = tmp_path_factory.mktemp("static-tenant") / "static-tenant"
    archive = native / "sim" / "libcuda_sim.a"
    subprocess.run(["cc", "-O1", "-static", "-o", made, TENANT, archive, "-lpthread"], check=True)
    return made
