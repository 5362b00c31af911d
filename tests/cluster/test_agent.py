"""The agent on a real node: a real kubelet asks it, a real container runtime starts through its gate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.agent_process import AgentProcess, phase_of, run_share, status_of, tenant_image
from cluster.engine.node import RealNode
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until


@pytest.fixture(scope="module")
def agent(
    control_plane: ControlPlane, real_node: RealNode, native: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    folder = tmp_path_factory.mktemp("agent")
    real_node.import_image(tenant_image(folder))
    process = AgentProcess(control_plane, real_node, folder).start()
    process.await_tickets()
    yield process
    process.service.stop()


def test_a_container_sees_its_share_and_is_refused_past_it(control_plane, real_node, agent, namespace):
    run_share(control_plane, namespace, "p", "tenant show; tenant fill 64", memory=1024)
    wait_until(lambda: phase_of(control_plane, namespace, "p") in ("Succeeded", "Failed"), "p is over", 60)
    said = real_node.log_of(namespace, "p")
    assert phase_of(control_plane, namespace, "p") == "Succeeded", (said, status_of(control_plane, namespace, "p"))
    print(said)
    assert "1073741824" in said or "1024" in said
