"""Fixtures on the real engine: what tests share (a control plane, a real node, all of Tessera), and a control
plane that a test may break.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar, cast

import pytest

from cluster.engine import binaries
from cluster.engine.kinds import install_kinds
from cluster.engine.node import NodeOptions, RealNode, missing_node_reason
from cluster.engine.plane import ControlPlane, Options
from cluster.whole import Whole, install_profiles, whole_tessera

Running = TypeVar("Running")
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
            if isinstance(used, ControlPlane | RealNode | Whole):
                report.sections.append(("engine logs", used.tails()))


# Real nodes. A machine has room for one at a time, so those that tests share are fixtures of one machine.


class Machine:
    """What runs on this machine's only place for a real node. It stays up for whoever asks for the same again, and
    is ended for whoever asks for something else.
    """

    def __init__(self) -> None:
        self._running: tuple[str, object] | None = None
        self._stack = ExitStack()

    def hold(self, name: str, begin: Callable[[], AbstractContextManager[Running]]) -> Running:
        """What runs under ``name``, started by ``begin`` where it does not run yet."""
        if self._running is None or self._running[0] != name:
            self.clear()
            self._running = (name, self._stack.enter_context(begin()))
        return cast("Running", self._running[1])

    def clear(self) -> None:
        """End what runs."""
        self._running = None
        self._stack.close()


@pytest.fixture(scope="session")
def machine(engine: None) -> Iterator[Machine]:
    """The machine of the real nodes. Tests of it are marked ``node`` and run one set-up after another."""
    require_node()
    found = Machine()
    yield found
    found.clear()


@pytest.fixture(scope="module")
def real_node(control_plane: ControlPlane, machine: Machine) -> RealNode:
    """A node of the shared plane on which pods really run, with containerd 2."""
    return machine.hold("containerd 2", lambda: RealNode(control_plane))


@pytest.fixture(scope="module")
def older_node(control_plane: ControlPlane, machine: Machine) -> RealNode:
    """The same with containerd 1.7."""
    options = NodeOptions(containerd="1.7")
    return machine.hold("containerd 1.7", lambda: RealNode(control_plane, options))


@pytest.fixture(scope="module")
def whole(machine: Machine, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """All of Tessera and a real node on a control plane of their own."""

    @contextmanager
    def begin() -> Iterator[Whole]:
        with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
            install_kinds(plane)
            install_profiles(plane)
            with whole_tessera(plane, tmp_path_factory.mktemp("whole")) as everything:
                yield everything

    return machine.hold("whole", begin)


@pytest.fixture
def bare_machine(machine: Machine) -> None:
    """The machine has no real node: the test starts its own, and ends it."""
    machine.clear()


SETUPS: Final = ("real_node", "older_node", "whole", "bare_machine")
"""Fixtures of the machine, in the order in which their tests run."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a real node, and put those of one set-up together, after all others."""

    def place(item: pytest.Item) -> int:
        used = getattr(item, "fixturenames", ())
        return next((at for at, name in enumerate(SETUPS, 1) if name in used), 0)

    for item in items:
        if place(item):
            item.add_marker("node")
    items.sort(key=place)
