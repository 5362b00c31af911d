"""The driver tier on a real node: the simulated driver limits the cgroup that a real runtime made, and a driver
that is replaced is let go of on a label of the real API server.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent_process import MODEL, UUIDS, AgentProcess, is_running, phase_of, run_share
from cluster.engine.images import busybox_files, make_image
from cluster.engine.node import RealNode
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from tessera.agent.cdi import remove_spec
from tessera.runtime.native import SIMULATED

ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
STATE = "nvidia.com/gpu-driver-upgrade-state"
TENANT = Path(__file__).parents[1] / "local/tenants/tenant.c"
IMAGE = "engine.test/tier-static:1"


@pytest.fixture(scope="module")
def agent(
    control_plane: ControlPlane, real_node: RealNode, native: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    root = next((root for root in ROOTS if (root / "cgroup.controllers").exists()), None)
    if root is None:
        pytest.skip("this machine has no cgroup v2, beside version 1 or alone")
    folder = tmp_path_factory.mktemp("tier")
    real_node.import_image(static_image(folder))
    machine = folder / "machine/machine.conf"
    machine.parent.mkdir()
    cards = "".join(f'device uuid={uuid} name="{MODEL}" memory_mib=81920\n' for uuid in UUIDS)
    machine.write_text(f"driver version=13.0 driver=615.71.09\n{cards}")
    flags = ("--simulate", str(machine), "--cgroup-root", str(root))
    process = AgentProcess(control_plane, real_node, folder, *flags).start()
    process.await_tickets()
    yield process
    process.service.stop()
    remove_spec(real_node.cdi)


def static_image(folder: Path) -> Path:
    """A program that no preloaded library reaches, with the simulated driver in it."""
    binary = folder / "static"
    command = ["cc", "-static", "-o", binary, TENANT, SIMULATED / "libcuda_sim.a", "-lpthread"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return make_image(folder, IMAGE, {**busybox_files(), "/bin/tenant": binary}, ["/bin/sh", "-c"])


def test_the_driver_holds_a_static_program_that_no_limiter_reaches(control_plane, real_node, agent, namespace):
    """Row 26: it took what it wanted, and was told of or ended. 513 MiB of 512 are refused with the driver's own
    code.
    """
    script = "{ echo alloc 513; echo alloc 512; echo alloc 1; sleep 5; } | tenant"
    uid = run_share(control_plane, namespace, "p", script, memory=512, container={"image": IMAGE})
    wait_until(lambda: is_running(control_plane, namespace, "p"), "p runs", 60)
    assert status_of_node(control_plane, real_node)["isolation"] == "driver"
    who = f'namespace="{namespace}",pod="p",container="main"'
    wait_until(lambda: f'tessera_container_tier{{{who},tier="driver"}} 1' in metrics(agent), "its tier", 30)
    assert f'tessera_container_driver_limit_bytes{{{who},device="{UUIDS[0]}"}} {512 << 20}' in metrics(agent)
    wait_until(lambda: phase_of(control_plane, namespace, "p") == "Succeeded", "p is over", 60)
    assert real_node.log_of(namespace, "p", "main").split() == ["2", "0", "2"]
    fence = agent.state / "containers" / uid / "main/fence"
    wait_until(lambda: not fence.exists(), "nothing is left of its limit", 30)


def test_a_limit_outlives_an_agent_that_is_killed_and_the_next_one_undoes_it(
    control_plane, real_node, agent, namespace
):
    """kai 5, agent dead: what runs goes on under its limit, and nothing of it is left behind."""
    script = "sleep 2; { echo alloc 513; echo alloc 512; } | tenant"
    uid = run_share(control_plane, namespace, "p", script, memory=512, container={"image": IMAGE})
    wait_until(lambda: is_running(control_plane, namespace, "p"), "p runs", 60)
    agent.service.kill()
    wait_until(lambda: phase_of(control_plane, namespace, "p") == "Succeeded", "p is over", 60)
    assert real_node.log_of(namespace, "p", "main").split() == ["2", "0"]
    fence = agent.state / "containers" / uid / "main/fence"
    assert fence.exists(), "nobody was there to undo it"
    agent.service.start()
    wait_until(lambda: not fence.exists(), "nothing is left of its limit", 30)
    agent.await_tickets()


def metrics(agent: AgentProcess) -> str:
    return agent.page("/metrics")[1]


def status_of_node(plane: ControlPlane, node: RealNode) -> dict[str, Any]:
    found: dict[str, Any] = plane.api.get(f"/apis/tessera.dev/v1alpha1/gpunodes/{node.name}")["status"]
    return found


def test_a_driver_that_is_replaced_is_let_go_of_and_taken_again(control_plane, real_node, agent, namespace):
    """kai 6, row 13. What is held of a simulated driver is its machine's state, mapped."""
    maps = Path(f"/proc/{agent.service.pid}/maps")

    def holds() -> bool:
        return "machine.conf.state" in maps.read_text()

    assert holds()
    control_plane.kubectl("label", "node", real_node.name, f"{STATE}=pod-restart-required")
    try:
        wait_until(lambda: not holds(), "the agent lets go", 10)
        wait_until(
            lambda: "being replaced" in status_of_node(control_plane, real_node).get("message", ""), "it is said"
        )
        wait_until(lambda: agent.page("/readyz")[0] == 503, "it is not ready", 10)
    finally:
        control_plane.kubectl("label", "node", real_node.name, f"{STATE}-")
    wait_until(holds, "the agent is back", 10)
    agent.await_tickets()
    run_share(control_plane, namespace, "p", "echo alloc 64 | tenant", memory=512, container={"image": IMAGE})
    wait_until(lambda: phase_of(control_plane, namespace, "p") == "Succeeded", "p is over", 60)
    assert real_node.log_of(namespace, "p", "main").split() == ["0"]
