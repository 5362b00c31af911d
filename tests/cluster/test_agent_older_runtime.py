"""The agent on containerd 1.7, whose CDI has to be switched on."""

from cluster.agent_process import AgentProcess, phase_of, run_share, status_of, tenant_image
from cluster.engine.service import wait_until
from tessera.agent.cdi import remove_spec


def test_the_gate_lets_in_and_keeps_out_on_containerd_1_7(control_plane, older_node, native, namespace, tmp_path):
    older_node.import_image(tenant_image(tmp_path))
    agent = AgentProcess(control_plane, older_node, tmp_path / "agent").start()
    try:
        agent.await_tickets()
        run_share(control_plane, namespace, "in", "tenant fill 64", memory=512)
        wait_until(lambda: phase_of(control_plane, namespace, "in") in ("Succeeded", "Failed"), "it is over", 60)
        assert phase_of(control_plane, namespace, "in") == "Succeeded", status_of(control_plane, namespace, "in")
        assert "reached_mib 512" in older_node.log_of(namespace, "in").splitlines()
        volume = {"volumes": [{"name": "v", "hostPath": {"path": "/etc/hostname"}}]}
        mounts = {"volumeMounts": [{"name": "v", "mountPath": "/run/tessera/region"}]}
        run_share(control_plane, namespace, "out", "true", {"main": 9}, spec=volume, container=mounts)
        wait_until(lambda: phase_of(control_plane, namespace, "out") == "Failed", "it is refused", 60)
        (status,) = status_of(control_plane, namespace, "out")["containerStatuses"]
        assert "/etc/hostname is mounted at /run/tessera/region" in status["state"]["terminated"]["message"]
    finally:
        agent.service.stop()
        remove_spec(older_node.cdi)
