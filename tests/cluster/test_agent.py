"""The agent on a real node: a real kubelet asks it, a real container runtime starts through its gate."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.agent_process import (
    TENANT_IMAGE,
    UUIDS,
    AgentProcess,
    a_grant,
    container_of,
    events_of,
    is_running,
    phase_of,
    run_share,
    status_of,
    tenant_image,
)
from cluster.engine.images import busybox_files, make_image
from cluster.engine.node import PLUGINS, RealNode
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from tessera.agent.cdi import remove_spec
from tessera.agent.cgroups import bare_id
from tessera.agent.foreign import list_pod_resources
from tessera.agent.store import read_region
from tessera.runtime.native import SIMULATED
from tessera.wire.shm import Region

TENANT = Path(__file__).parents[1] / "local/tenants/tenant.c"
STATIC_IMAGE = "engine.test/agent-static:1"
HOLD = "tenant hold 64 600"


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
    remove_spec(real_node.cdi)


@pytest.fixture
def share(control_plane, real_node, agent, namespace):
    """Runs pods with shares and says how they are."""
    return Shares(control_plane, real_node, agent, namespace)


class Shares:
    def __init__(self, plane: ControlPlane, node: RealNode, agent: AgentProcess, namespace: str) -> None:
        self.plane, self.node, self.agent, self.namespace = plane, node, agent, namespace

    def run(self, name, script, tickets=None, **facts):
        return run_share(self.plane, self.namespace, name, script, tickets, **facts)

    def run_plain(self, name, script):
        """A pod of the node that asks for nothing."""
        container = {"name": "main", "image": TENANT_IMAGE, "args": [script]}
        spec = {"nodeName": self.node.name, "restartPolicy": "Never", "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.plane.api.post(f"/api/v1/namespaces/{self.namespace}/pods", body)

    def over(self, name):
        """The phase in which a pod ended."""
        wait_until(lambda: self.phase(name) in ("Succeeded", "Failed"), f"{name} is over", 60)
        return self.phase(name)

    def phase(self, name):
        return phase_of(self.plane, self.namespace, name)

    def running(self, name):
        wait_until(lambda: is_running(self.plane, self.namespace, name) or self.ended(name), f"{name} runs", 60)
        assert not self.ended(name), self.status(name)
        return container_of(self.plane, self.namespace, name)["containerID"]

    def ended(self, name):
        return self.phase(name) in ("Succeeded", "Failed")

    def said(self, name, container="main"):
        return self.node.log_of(self.namespace, name, container)

    def status(self, name):
        return status_of(self.plane, self.namespace, name)

    def region(self, uid, container="main"):
        return self.agent.state / "containers" / uid / container / "region"

    def used(self, uid):
        found = read_region(self.region(uid))
        return found.devices[0].used_bytes if isinstance(found, Region) else None

    def holders(self, uid):
        """The bytes that each process holds, by when it began."""
        found = read_region(self.region(uid))
        processes = found.processes if isinstance(found, Region) else ()
        return {one.start_ticks: one.used_bytes[0] for one in processes if one.used_bytes[0]}


def test_a_container_sees_its_share_and_is_refused_past_it(share):
    uid = share.run("p", "tenant show; tenant fill 64; cat /etc/ld.so.preload", memory=1024)
    assert share.over("p") == "Succeeded", (share.said("p"), share.status("p"))
    said = share.said("p").splitlines()
    for fact in ("cuda_devices 1", "cuda_total_mib 1024", "nvml_total_mib 1024", "reached_mib 1024"):
        assert fact in said
    assert "refused 2 CUDA_ERROR_OUT_OF_MEMORY" in said
    assert said[-1].startswith("/run/tessera/lib/")
    region = read_region(share.region(uid))
    assert (region.devices[0].peak_bytes, region.devices[0].refused) == (1024 << 20, 1)


def test_an_environment_of_the_pods_own_lifts_no_limit(share):
    """kai 5, "tampering from the pod"."""
    script = (
        "unset LD_PRELOAD LD_LIBRARY_PATH; env -i LD_LIBRARY_PATH=/run/tessera/driver TESSERA_REGION=/dev/null "
        "TESSERA_SIM_MACHINE=/run/tessera/machine/machine.conf /usr/bin/tenant fill 64"
    )
    environment = [{"name": "TESSERA_REGION", "value": "/tmp/x"}, {"name": "LD_PRELOAD", "value": ""}]
    share.run("p", script, memory=512, container={"env": environment})
    assert share.over("p") == "Succeeded", (share.said("p"), share.status("p"))
    assert "reached_mib 512" in share.said("p").splitlines()


def test_each_container_has_a_share_of_its_own(share):
    """An init container and two others: three tickets, three limits."""
    tickets = {"first": 3, "a": 40, "b": 511}
    grants = {
        "first": (a_grant(UUIDS[0], 256),),
        "a": (a_grant(UUIDS[0], 512),),
        "b": (a_grant(UUIDS[1], 768, 1),),
    }
    share.run("p", "tenant fill 64", tickets, grants=grants, init=("first",))
    assert share.over("p") == "Succeeded", share.status("p")
    reached = {c: [li for li in share.said("p", c).splitlines() if li.startswith("reached")] for c in tickets}
    assert reached == {"first": ["reached_mib 256"], "a": ["reached_mib 512"], "b": ["reached_mib 768"]}


def test_a_pod_that_asks_for_nothing_gets_nothing(share):
    """Row 32: no library, no device, no variable."""
    share.run_plain("plain", "ls /run/tessera /etc/ld.so.preload; env; tenant show")
    assert share.over("plain") == "Failed"
    said = share.said("plain")
    assert "TESSERA" not in said
    assert "cuda_total_mib" not in said
    assert said.count("No such file or directory") >= 2


def test_a_container_without_an_allocation_fails_and_says_why(share):
    share.run("p", "true", grants={"main": (a_grant("GPU-elsewhere", 64),)})
    assert share.over("p") == "Failed"
    status = share.status("p")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "tessera: container main of pod" in status["message"]
    assert "device GPU-elsewhere is not on node localhost; delete the pod" in status["message"]


def test_a_volume_over_the_limiter_is_refused_by_the_gate_for_all_to_read(share):
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/run/tessera/lib"}]}
    share.run("harmless", "tenant fill 64", memory=256, spec=volume, container=mounts)
    assert share.over("harmless") == "Succeeded", share.status("harmless")
    empty = {"volumes": [{"name": "v", "hostPath": {"path": "/etc/hostname"}}]}
    preload = {"volumeMounts": [{"name": "v", "mountPath": "/etc/ld.so.preload"}]}
    share.run("hides", "tenant fill 64", {"main": 9}, spec=empty, container=preload)
    assert share.over("hides") == "Failed"
    (status,) = share.status("hides")["containerStatuses"]
    message = status["state"]["terminated"]["message"]
    described = share.plane.kubectl("describe", "pod", "hides", "-n", share.namespace)
    for text in (message, described):
        assert "tessera: container main of pod" in text
        assert "is mounted at /etc/ld.so.preload, over what limits the container" in text


def test_a_privileged_container_with_a_share_still_has_its_limit(share):
    share.run("p", "tenant fill 64", memory=256, container={"securityContext": {"privileged": True}})
    assert share.over("p") == "Succeeded", share.status("p")
    assert "reached_mib 256" in share.said("p").splitlines()


def test_restarts_of_agent_kubelet_and_runtime_touch_no_running_pod(share):
    """Rows 62, 66, 28: library and region keep their inodes, the container its id; the next is limited too."""
    uid = share.run("p", HOLD)
    before = share.running("p")
    wait_until(lambda: share.used(uid) == 64 << 20, "64 MiB are held")
    library = next((share.agent.state.parent / "lib").glob("*/libtessera.so"))
    inodes = [path.stat().st_ino for path in (share.region(uid), library)]
    for _ in range(3):
        share.agent.service.restart()
    told = share.agent.registrations()
    share.node.kubelet.restart()
    share.node.await_ready()
    # The kubelet admits its pods anew while it starts and asks the runtime whether they run: it must answer then.
    wait_until(lambda: share.agent.registrations() > told, "the plugins are registered again", 30)
    assert share.running("p") == before
    share.node.containerd.restart()
    share.node.await_ready()
    share.agent.await_tickets()
    assert share.running("p") == before
    assert container_of(share.plane, share.namespace, "p")["restartCount"] == 0
    assert [path.stat().st_ino for path in (share.region(uid), library)] == inodes
    assert share.used(uid) == 64 << 20
    share.run("next", "tenant fill 64", {"main": 38}, memory=256)
    assert share.over("next") == "Succeeded", share.status("next")
    assert "reached_mib 256" in share.said("next").splitlines()


def test_row_66_a_kubelet_that_restarts_without_an_agent_leaves_running_pods_alone(share):
    """With the kubelet of 1.37: it admits anew what runs, and lets it be although nobody offers its tickets."""
    uid = share.run("p", HOLD)
    before = share.running("p")
    wait_until(lambda: share.used(uid) == 64 << 20, "64 MiB are held")
    share.agent.service.kill(signal.SIGKILL)
    share.node.kubelet.restart()
    share.node.await_ready()
    share.run_plain("after", "true")  # pods are taken in by their age: with the other one it is through then
    assert share.over("after") == "Succeeded"
    assert share.running("p") == before
    share.agent.service.start()
    share.agent.await_tickets()
    assert share.running("p") == before
    assert container_of(share.plane, share.namespace, "p")["restartCount"] == 0
    assert share.used(uid) == 64 << 20


def test_without_an_agent_a_container_does_not_start_again_until_it_is_back(share):
    """kai 5, "agent dead at create", with a real runtime: refused with a message, then limited from zero."""
    uid = share.run("p", HOLD, spec={"restartPolicy": "Always"})
    first = bare_id(share.running("p"))
    wait_until(lambda: share.used(uid) == 64 << 20, "64 MiB are held")
    before = share.holders(uid)
    share.agent.service.kill(signal.SIGKILL)
    kill_container(share.node, first)

    def refused():
        status = container_of(share.plane, share.namespace, "p")
        states = [status.get("state", {}), status.get("lastState", {})]
        return any("the node agent does not answer" in str(state) for state in states)

    wait_until(refused, "the gate refuses", 60)
    share.agent.service.start()
    wait_until(lambda: is_running(share.plane, share.namespace, "p"), "it runs again", 90)
    assert bare_id(container_of(share.plane, share.namespace, "p")["containerID"]) != first
    wait_until(
        lambda: [*share.holders(uid).values()] == [64 << 20] and share.holders(uid).keys().isdisjoint(before),
        "64 MiB are held by the new program, and none by the old",
    )
    assert share.used(uid) == 64 << 20
    share.agent.await_tickets()


def kill_container(node, container_id):
    rows = [line.split() for line in node.ctr("tasks", "ls").splitlines()]
    os.kill(next(int(row[1]) for row in rows if row[0] == container_id), signal.SIGKILL)


def test_while_the_agent_is_killed_again_and_again_nothing_starts_unlimited(share):
    """kai 5: agent dead while containers start. Whatever ran was limited; what did not run says why."""
    chance = random.Random(7)
    names = [f"p{number}" for number in range(16)]
    for number, name in enumerate(names):
        share.run(name, "tenant fill 64", {"main": 100 + number}, memory=256)
        if number % 4 == 2:
            share.agent.service.kill(signal.SIGKILL)
            time.sleep(chance.uniform(0, 0.5))  # the moment of the kill is what is drawn, nothing waits for it
            share.agent.service.start(wait=False)
    for name in names:
        wait_until(lambda name=name: share.ended(name), f"{name} is over", 90)
    for name in names:
        reached = [line for line in share.said(name).splitlines() if line.startswith("reached")]
        status = share.status(name)
        if status["phase"] == "Succeeded":
            assert reached == ["reached_mib 256"]
        else:
            # Refused by the gate, or by the kubelet that found the plugin away: never started, and it says why.
            refused = "tessera" in f"{status.get('containerStatuses')}"
            assert reached == []
            assert refused or status["reason"] == "UnexpectedAdmissionError", status
    share.agent.service.await_ready()
    share.agent.await_tickets()


@pytest.fixture(scope="module")
def static_image(real_node, native, tmp_path_factory):
    """A program with the driver in itself: no preload library reaches it."""
    tmp_path = tmp_path_factory.mktemp("static")
    binary = tmp_path / "static"
    command = ["cc", "-static", "-o", binary, TENANT, SIMULATED / "libcuda_sim.a", "-lpthread"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    files = {**busybox_files(), "/bin/tenant": binary}
    real_node.import_image(make_image(tmp_path, STATIC_IMAGE, files, ["/bin/sh", "-c"]))


def test_a_program_that_no_limit_reaches_is_told_within_seconds(share, static_image):
    """Row 26: a static program cannot be limited; its pod says so."""
    share.run("p", "(echo alloc 32; sleep 600) | tenant", container={"image": STATIC_IMAGE})
    share.running("p")
    wait_until(lambda: events_of(share.plane, share.namespace, "IsolationAbsent"), "an event", 15)
    notes = events_of(share.plane, share.namespace, "IsolationAbsent")
    assert len(notes) == 1, notes
    (note,) = notes
    assert "without the limiter (a static program" in note
    page = share.agent.page("/metrics")[1]
    assert 'tessera_isolation_absent{breach="unregistered"} 1' in page
    assert f'namespace="{share.namespace}",pod="p",container="main",state="absent"' in page


def test_such_a_program_is_ended_where_that_is_the_policy(share, static_image):
    share.agent.service.stop()
    killer = AgentProcess(share.plane, share.node, share.agent.folder, "--escapes", "kill", name="killer")
    try:
        killer.start().await_tickets()
        script = '(echo alloc 32; sleep 600) | { tenant; echo "status $?"; }'
        share.run("p", script, container={"image": STATIC_IMAGE})
        wait_until(lambda: "status 137" in share.said("p"), "the program is ended", 60)
        wait_until(lambda: events_of(share.plane, share.namespace, "IsolationAbsent"), "an event", 15)
        (note,) = events_of(share.plane, share.namespace, "IsolationAbsent")
        assert "was stopped: it used" in note
        assert "tessera_killed_processes 1" in killer.page("/metrics")[1]
    finally:
        killer.service.stop()
        share.agent.service.start()
    share.agent.await_tickets()


def test_tools_see_devices_where_the_kubelet_has_tickets(share):
    share.run("p", HOLD)
    share.running("p")
    found = asyncio.run(list_pod_resources(share.agent.folder / "tools.sock"))
    held = {
        (pod.name, container.name): [(d.resource_name, list(d.device_ids)) for d in container.devices]
        for pod in found.pod_resources if pod.namespace == share.namespace for container in pod.containers
    }  # fmt: skip
    assert held == {("p", "main"): [("nvidia.com/gpu", [UUIDS[0]])]}
    raw = asyncio.run(list_pod_resources(share.node.pod_resources))
    (mine,) = [pod for pod in raw.pod_resources if pod.namespace == share.namespace]
    devices = mine.containers[0].devices
    assert {device.resource_name for device in devices} == {"tessera.dev/ticket-1"}
    assert sum(len(device.device_ids) for device in devices) == 6


def test_a_faulty_device_is_published_and_told_to_the_pods_that_use_it(share):
    """Row 69: within a minute; row 63: a transient fault is over by itself."""
    share.run("p", HOLD)
    share.running("p")
    (description,) = (share.agent.folder / "machines").glob("sim/*/machine.conf")
    with Path(f"{description}.faults").open("a") as file:
        file.write(f"{UUIDS[0]} 54\n{UUIDS[1]} 31\n")
    path = f"/apis/tessera.dev/v1alpha1/gpunodes/{share.node.name}"

    def reasons():
        devices = share.plane.api.get(path)["status"]["devices"]
        return {d["index"]: d["reason"] for d in devices if d.get("healthy") is False}

    wait_until(lambda: 0 in reasons(), "device 0 is not healthy", 30)
    assert list(reasons()) == [0]
    assert "XID 54" in reasons()[0]
    wait_until(lambda: events_of(share.plane, share.namespace, "DeviceFault"), "an event", 30)
    wait_until(lambda: reasons() == {}, "device 0 is healthy again", 60)


def test_the_sockets_of_the_plugins_stand_beside_the_kubelets(agent):
    assert len(list(PLUGINS.glob("tessera-ticket-*.sock"))) == 16
