"""The two things behind the client port: an API server in memory, and a real one."""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from cluster.engine.binaries import CONTROL_PLANE, missing_reason
from cluster.engine.kinds import install_kinds
from cluster.engine.plane import ControlPlane, Options
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import read_kubeconfig
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import NAMESPACES, KubeClient
from tessera.runtime.kube.slim import SlimClient

PAGE = 3


@dataclass(frozen=True)
class Backend:
    """``connect`` opens a client; ``namespace`` and ``name(...)`` are this test's own."""

    connect: Callable[[], AbstractAsyncContextManager[KubeClient]]
    namespace: str
    expire: Callable[[KubeClient], str]
    """Gives a version from which no watch of ``GPU_NODES`` is possible any more."""

    def name(self, word: str) -> str:
        """A cluster-wide name of this test."""
        return f"{self.namespace}-{word}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and a real API server with our kinds."""
    reason = missing_reason(*CONTROL_PLANE)
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    options = Options(
        scheduler=False,
        controller_manager=False,  # hence no service accounts to wait for
        apiserver_flags=("--disable-admission-plugins=ServiceAccount",),
    )
    with ControlPlane(tmp_path_factory.mktemp("plane"), options) as plane:
        install_kinds(plane)
        yield plane


@pytest.fixture(params=["memory", "server"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Either side."""
    return backend_of(request)


def backend_of(request: pytest.FixtureRequest) -> Backend:
    """The one that the parameter names: ``slim`` is the real server through the agent's client."""
    namespace = f"port-{secrets.token_hex(4)}"  # a module may be imported under two names, so no count would do
    if request.param == "memory":
        return _memory(namespace)
    client = SlimClient if request.param == "slim" else ApiClient
    return _real(request.getfixturevalue("server"), namespace, client)


def _memory(namespace: str) -> Backend:
    cluster = MemoryCluster(page=PAGE)

    @asynccontextmanager
    async def connect() -> AsyncIterator[KubeClient]:
        yield cluster
        await cluster.close()

    def expire(_: KubeClient) -> str:
        version = str(cluster.history.revision)
        cluster.compact()
        return version

    return Backend(connect, namespace, expire)


def _real(plane: ControlPlane, namespace: str, make: type[ApiClient] | type[SlimClient]) -> Backend:
    @asynccontextmanager
    async def connect() -> AsyncIterator[KubeClient]:
        client = make(read_kubeconfig([plane.kubeconfig]), page=PAGE)
        try:
            await client.create(NAMESPACES, {"metadata": {"name": namespace}}, dict)
            yield client
        finally:
            await client.close()

    # The server keeps no history of a kind from before the kind was made, and that was not version 1.
    return Backend(connect, namespace, lambda _: "1")
