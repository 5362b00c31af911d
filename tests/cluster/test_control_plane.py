"""The harness itself: a control plane comes up, survives what tests do to it, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cluster.engine.api import Api, ApiFailure
from cluster.engine.nodes import SimulatedNode, add_nodes, node_names, remove_nodes, some_nodes
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.service import ServiceError, wait_until

PLAIN = Options(controller_manager=False, scheduler=False)


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def a_pod(name: str, node: str = "") -> dict[str, object]:
    """A pod that asks for nothing."""
    spec: dict[str, object] = {"containers": [{"name": "main", "image": "none"}]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def node_of(plane: ControlPlane, namespace: str, pod: str) -> str:
    """Where the pod is bound; empty while it is not."""
    return str(plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["spec"].get("nodeName", ""))


def test_a_pod_is_bound_on_a_simulated_node(control_plane, namespace):
    add_nodes(control_plane, [SimulatedNode("bound-here")])
    control_plane.api.post(f"/api/v1/namespaces/{namespace}/pods", a_pod("p", "bound-here"))
    wait_until(lambda: node_of(control_plane, namespace, "p") == "bound-here", "the pod is bound", 120)
    remove_nodes(control_plane, ["bound-here"])


def test_nodes_come_by_the_hundred_with_tickets_and_devices(control_plane):
    add_nodes(control_plane, some_nodes(200, "many", devices=8, model="H200"))
    nodes = control_plane.api.get("/api/v1/nodes?labelSelector=kubernetes.io/hostname")["items"]
    ours = [node for node in nodes if node["metadata"]["name"].startswith("many-")]
    assert len(ours) == 200
    assert not [node for node in ours if node["spec"].get("taints")]
    assert {node["status"]["allocatable"]["tessera.dev/ticket-f"] for node in ours} == {"2048"}
    devices = control_plane.api.get("/apis/tessera.dev/v1alpha1/gpunodes/many-0199")["status"]["devices"]
    assert [device["index"] for device in devices] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len({device["uuid"] for device in devices}) == 8
    remove_nodes(control_plane, node_names(200, "many"))


def test_a_user_without_a_role_reads_nothing_and_a_bad_certificate_is_nobody(control_plane):
    user = control_plane.client_certificate("stranger")
    with (
        closing(Api(control_plane.server, control_plane.authority.certificate, user)) as stranger,
        pytest.raises(ApiFailure) as refused,
    ):
        stranger.get("/api/v1/nodes")
    assert refused.value.code == 403
    assert b'User \\"stranger\\"' in refused.value.body


def test_a_node_changes_itself_and_no_other_node(control_plane):
    add_nodes(control_plane, some_nodes(2, "pair", devices=0))
    user = control_plane.client_certificate("system:node:pair-0000", ("system:nodes",))
    change = {"metadata": {"annotations": {"by": "a node"}}}
    with closing(Api(control_plane.server, control_plane.authority.certificate, user)) as kubelet:
        kubelet.merge("/api/v1/nodes/pair-0000", change)
        with pytest.raises(ApiFailure, match="is not allowed to modify node") as refused:
            kubelet.merge("/api/v1/nodes/pair-0001", change)
    assert refused.value.code == 403
    remove_nodes(control_plane, node_names(2, "pair"))


def test_a_service_account_token_is_its_account(control_plane, namespace):
    token = control_plane.token_for(namespace, "default")
    review = control_plane.api.post(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
    )
    assert review["status"]["user"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_every_program_is_killed_and_comes_back_with_its_state(fresh_control_plane):
    plane = fresh_control_plane
    plane.new_namespace("kept")
    add_nodes(plane, [SimulatedNode("n")])
    for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
        before = plane.services[name].pid
        plane.restart(name)
        assert plane.services[name].pid != before
    wait_until(lambda: plane.api.answers("/readyz"), "the API server is ready", 120)
    plane.api.post("/api/v1/namespaces/kept/pods", a_pod("p"))
    wait_until(lambda: node_of(plane, "kept", "p") == "n", "the pod is bound", 120)


def test_schedulers_on_hosts_of_their_own_hold_leases_under_different_names(fresh_control_plane):
    plane = fresh_control_plane
    times = {"leaseDuration": "8s", "renewDeadline": "6s", "retryPeriod": "500ms"}
    election = {"leaderElect": True, "resourceName": "pair", "resourceNamespace": "kube-system", **times}
    for host in ("node-1", "node-10"):
        plane.start_scheduler(
            f"scheduler-{host}", config={"leaderElection": election}, hostname=host, kubeconfig=plane.kubeconfig
        )
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/pair"
    wait_until(lambda: plane.api.answers(lease), "somebody holds the lease", 120)
    first = plane.api.get(lease)["spec"]["holderIdentity"].split("_")[0]
    other = {"node-1": "node-10", "node-10": "node-1"}[first]
    plane.kill(f"scheduler-{first}")

    def other_holds() -> bool:
        return plane.api.get(lease)["spec"]["holderIdentity"].split("_")[0] == other

    wait_until(other_holds, f"{other} holds the lease", 120)


def test_stopping_leaves_no_process(engine, tmp_path):
    with ControlPlane(tmp_path, PLAIN) as plane:
        pids = [service.pid for service in plane.services.values()]
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))


def test_a_failing_body_stops_the_programs_too(engine, tmp_path):
    pids: list[int] = []

    def fails() -> None:
        with ControlPlane(tmp_path, PLAIN) as plane:
            pids.extend(service.pid for service in plane.services.values())
            raise RuntimeError("a test fails")

    with pytest.raises(RuntimeError, match="a test fails"):
        fails()
    assert len(pids) == 2
    assert not any(map(is_running, pids))


STARTER = """
import sys, time
from pathlib import Path
from cluster.engine.plane import ControlPlane, Options
plane = ControlPlane(Path(sys.argv[1]), Options(controller_manager=False, scheduler=False))
plane.start()
print(*(service.pid for service in plane.services.values()), flush=True)
time.sleep(600)
"""


def test_a_killed_test_run_takes_the_programs_with_it(engine, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        pids = [int(word) for word in run.stdout.readline().split()]
        assert len(pids) == 2
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), "the programs end", 120)


def test_a_program_that_ends_at_once_is_reported_with_its_log(engine, tmp_path):
    options = Options(controller_manager=False, scheduler=False, apiserver_flags=("--no-such-flag=1",))
    with pytest.raises(ServiceError, match="unknown flag: --no-such-flag"), ControlPlane(tmp_path, options):
        pass
