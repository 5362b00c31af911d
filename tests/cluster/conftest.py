"""Fixtures on the real engine: a control plane that tests share, and one that a test may break."""

import itertools
import os
from collections.abc import Iterator

import pytest

from cluster.engine import binaries
from cluster.engine.kinds import install_kinds
from cluster.engine.node import RealNode, missing_node_reason
from cluster.engine.plane import ControlPlane, Options

_numbers = itertools.count()


def require_engine(*names: str) -> None:
    """Skip with the reason where programs are missing; in continuous integration that is a failure."""
    _leave_out(binaries.missing_reason(*names))


def require_node() -> None:
    """The same for what a real node needs."""
    _leave_out(missing_node_reason())


def _leave_out(reason: str) -> None:
    if not reason:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def engine() -> None:
    """The programs of a control plane are there."""
    require_engine(*binaries.CONTROL_PLANE)


@pytest.fixture(scope="session")
def control_plane(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with our kinds that all tests share: nobody kills its programs. See ``namespace``."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        install_kinds(plane)
        yield plane


@pytest.fixture
def fresh_control_plane(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with our kinds for one test, which may kill and restart its programs."""
    with ControlPlane(tmp_path_factory.mktemp("plane"), Options()) as plane:
        install_kinds(plane)
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the shared control plane for one test; it and its pods are deleted afterwards."""
    name = control_plane.new_namespace(f"t{os.getpid()}-{next(_numbers)}")
    yield name
    control_plane.drop_namespace(name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where a test that used a control plane failed, the ends of the logs go into its report."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed and call.when == "call":
        for used in getattr(item, "funcargs", {}).values():
            if isinstance(used, ControlPlane | RealNode):
                report.sections.append(("engine logs", used.tails()))


@pytest.fixture(scope="module")
def real_node(control_plane: ControlPlane) -> Iterator[RealNode]:
    """A node on which pods really run, with containerd 2, for the tests of one module."""
    require_node()
    with RealNode(control_plane) as node:
        yield node
