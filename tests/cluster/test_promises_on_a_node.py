"""Rows of the lists of users' pains on the whole road: admitted by our webhook, bound by a real kube-scheduler,
run by a real kubelet and container runtime on a simulated machine of four devices.
"""

import asyncio
import itertools
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent_process import container_of, events_of, is_running, phase_of, status_of
from cluster.engine import binaries
from cluster.engine.api import ApiFailure
from cluster.engine.images import glibc_files, make_image
from cluster.engine.service import wait_until
from cluster.whole import IMAGE, Whole
from tessera.agent.foreign import list_pod_resources
from tessera.runtime.native import SIMULATED
from tessera.wire.kube.names import ALLOCATION

A100 = 81_920
TENANT = Path(__file__).parents[1] / "local/tenants/tenant.c"
OTHER_LOADER = "engine.test/other-loader:1"
FILL = "/usr/bin/tenant fill 64; /usr/bin/sleep 3600"

_numbers = itertools.count()


@pytest.fixture
def road(whole: Whole) -> Iterator["Road"]:
    found = Road(whole, whole.plane.new_namespace(f"promise-{next(_numbers)}"))
    yield found
    whole.plane.drop_namespace(found.namespace)


def container(name: str, memory: str = "", script: str = FILL, count: int = 1, **more: Any) -> dict[str, Any]:
    """One that asks for so much of each of ``count`` devices."""
    limits = {"tessera.dev/gpu": str(count), "tessera.dev/memory": memory} if memory else {}
    command = {"command": ["/bin/bash", "-c", script]}
    return {"name": name, "image": IMAGE, **command, "resources": {"limits": limits}, **more}


class Road:
    """A namespace of the whole, and what becomes of its pods."""

    def __init__(self, whole: Whole, namespace: str) -> None:
        self.whole, self.plane, self.namespace = whole, whole.plane, namespace

    def create(self, name: str, *containers: dict[str, Any], **spec: Any) -> None:
        body = {
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "containers": list(containers),
            **spec,
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
        self.plane.api.post(f"/api/v1/namespaces/{self.namespace}/pods", pod)

    def running(self, name: str, seconds: float = 90) -> None:
        def runs_or_failed() -> bool:
            return is_running(self.plane, self.namespace, name) or self.phase(name) == "Failed"

        wait_until(runs_or_failed, f"{name} runs", seconds)
        assert self.phase(name) != "Failed", status_of(self.plane, self.namespace, name)

    def phase(self, name: str) -> str:
        return phase_of(self.plane, self.namespace, name)

    def pod(self, name: str) -> dict[str, Any]:
        return dict(self.plane.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}"))

    def said(self, name: str, container: str = "main") -> str:
        return self.whole.node.log_of(self.namespace, name, container)

    def reached(self, name: str, container: str = "main") -> list[int]:
        """MiB at which a container was refused, once it was."""
        wait_until(lambda: "refused" in self.said(name, container), f"{name}/{container} is refused", 30)
        return [
            int(value) for value in re.findall(r"^reached_mib (\d+)$", self.said(name, container), re.MULTILINE)
        ]

    def allocation(self, name: str) -> dict[str, list[str]]:
        """The devices of each container, by the record on the pod."""
        record = json.loads(self.pod(name)["metadata"]["annotations"][ALLOCATION])
        return {container: [g["uuid"] for g in grants] for container, grants in record["containers"].items()}


def test_kai_5_init_two_containers_and_a_sidecar_each_have_a_limit_of_their_own(road: Road) -> None:
    """Rows 75, 80, 81, 82 where they happen: four shares of one pod, told apart from each other by their sizes."""
    road.create(
        "p",
        container("a", "512Mi"),
        container("plain", script="/usr/bin/tenant show; echo shown; /usr/bin/sleep 3600"),
        container("b", "768Mi"),
        initContainers=[
            container("side", "256Mi", restartPolicy="Always"),
            container("first", "1024Mi", script="/usr/bin/tenant fill 64"),
        ],
    )
    road.running("p")
    sizes = {"first": 1024, "side": 256, "a": 512, "b": 768}
    assert {name: road.reached("p", name) for name in sizes} == {name: [size] for name, size in sizes.items()}
    wait_until(lambda: "shown" in road.said("p", "plain"), "the plain container has looked", 30)
    assert "cuda_total_mib" not in road.said("p", "plain")
    record = json.loads(road.pod("p")["metadata"]["annotations"][ALLOCATION])
    assert set(record["containers"]) == set(sizes)
    # The sidecar with the init container after it takes 1,280; with both others, 1,536.
    assert [charge["memory"] for charge in record["charges"]] == [1536]


def test_row_4_annotation_container_tools_and_metrics_name_the_same_devices(road: Road) -> None:
    road.create("p", container("main", "1Gi", script="/usr/bin/tenant show; /usr/bin/sleep 3600", count=3))
    road.running("p")
    (chosen,) = road.allocation("p").values()
    assert len(set(chosen)) == 3
    devices = road.whole.inside(road.namespace, "p", "main", "/usr/bin/env")
    inside = [devices.split(f"TESSERA_DEVICE_{i}=")[1].split()[0] for i in range(3)]
    assert inside == chosen
    assert [int(n) for n in re.findall(r"^cuda_total_mib (\d+)$", road.said("p"), re.MULTILINE)] == [1024] * 3
    listed = asyncio.run(list_pod_resources(road.whole.agent.folder / "tools.sock"))
    (mine,) = [pod for pod in listed.pod_resources if pod.namespace == road.namespace]
    assert [sorted(d.device_ids) for d in mine.containers[0].devices] == [sorted(chosen)]
    page = road.whole.agent.page("/metrics")[1]
    rows = [line for line in page.splitlines() if line.startswith("tessera_container_memory_limit_bytes{")]
    told = {line.split('device="')[1].split('"')[0] for line in rows if f'namespace="{road.namespace}"' in line}
    assert told == set(chosen)


def test_row_85_and_kai_5_nothing_starts_while_the_agent_stalls_and_then_each_has_its_own(road: Road) -> None:
    """Ten pods of different sizes are bound while the agent hangs in the middle of everything."""
    agent = road.whole.agent.service
    sizes = {f"p{i}": 128 * (i + 1) for i in range(10)}
    agent.kill(signal.SIGSTOP)
    try:
        for name, size in sizes.items():
            road.create(name, container("main", f"{size}Mi"))
        wait_until(lambda: all(road.pod(name)["spec"].get("nodeName") for name in sizes), "all are bound", 60)
        assert not [name for name in sizes if container_of_or_none(road, name)]
    finally:
        agent.kill(signal.SIGCONT)
    for name in sizes:
        road.running(name)
    assert {name: road.reached(name) for name in sizes} == {name: [size] for name, size in sizes.items()}


def container_of_or_none(road: Road, name: str) -> bool:
    """Whether any container of a pod ever began."""
    statuses = status_of(road.plane, road.namespace, name).get("containerStatuses") or []
    return any({"running", "terminated"} & set(status.get("state", {})) for status in statuses)


def test_kai_5_a_container_that_starts_while_the_gate_gets_no_answer_is_refused(road: Road) -> None:
    """Agent slower than the gate waits: the start fails with a message, and succeeds once the agent goes on."""
    agent = road.whole.agent.service
    again = "/usr/bin/tenant fill 64; while ! [ -e /tmp/end ]; do /usr/bin/sleep 0.1; done"
    road.create("p", container("main", "384Mi", script=again), restartPolicy="Always")
    road.running("p")
    assert road.reached("p") == [384]
    agent.kill(signal.SIGSTOP)
    try:
        road.whole.inside(road.namespace, "p", "main", "/bin/bash", "-c", "echo > /tmp/end")
        wait_until(lambda: "does not answer" in str(_status(road)), "the gate refuses", 60)
        assert "running" not in _status(road)["state"]
    finally:
        agent.kill(signal.SIGCONT)
    wait_until(lambda: is_running(road.plane, road.namespace, "p"), "it runs again", 90)
    assert road.reached("p") == [384]


def _status(road: Road) -> dict[str, Any]:
    found = container_of(road.plane, road.namespace, "p")
    return {"state": found.get("state", {}), "last": found.get("lastState", {})}


def test_kai_15_two_processes_of_one_container_have_one_share_together(road: Road) -> None:
    road.create("p", container("main", "1Gi", script="/usr/bin/sleep 3600"))
    road.running("p")
    command = [
        str(binaries.program("kubectl")), "--kubeconfig", str(road.plane.kubeconfig), "exec", "-n", road.namespace,
        "p", "--", "/usr/bin/tenant", "hold", "640", "600",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "held_mib 640\n"
        filled = road.whole.inside(road.namespace, "p", "main", "/usr/bin/tenant", "fill", "64")
        holding.kill()
    assert "reached_mib 384" in filled.splitlines(), filled


# row 26: what no limit reaches


def other_loader(folder: Path) -> Path:
    """An image of a program whose loader knows no preload file, as musl's: glibc's, with another name for it."""
    program, loader = folder / "tenant", folder / "loader"
    command = [
        "cc",
        "-o",
        program,
        TENANT,
        SIMULATED / "libcuda_sim.a",
        "-lpthread",
        "-Wl,--dynamic-linker=/lib/ld-other.so",
    ]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    text = Path("/lib64/ld-linux-x86-64.so.2").read_bytes()
    assert text.count(b"/etc/ld.so.preload") == 1
    loader.write_bytes(text.replace(b"/etc/ld.so.preload", b"/etc/ld.so.elsewhr"))
    loader.chmod(0o755)
    files = glibc_files(Path("/bin/bash"), Path("/usr/bin/sleep"), Path("/usr/bin/env"))
    files |= {
        "/bin/bash": Path("/bin/bash").resolve(),
        "/usr/bin/sleep": Path("/usr/bin/sleep"),
        "/bin/tenant": program,
        "/lib/ld-other.so": loader,
    }
    return make_image(folder, OTHER_LOADER, files, ["/bin/bash", "-c"])


def test_row_26_a_loader_that_knows_no_preload_file_is_noticed_within_seconds(road: Road, tmp_path: Path) -> None:
    road.whole.node.import_image(other_loader(tmp_path))
    script = "(echo alloc 32; /usr/bin/sleep 600) | /bin/tenant"
    road.create("p", container("main", "64Mi") | {"image": OTHER_LOADER, "command": ["/bin/bash", "-c", script]})
    road.running("p")
    wait_until(lambda: road.said("p"), "it has its memory", 15)
    assert road.said("p") == "0\n"
    wait_until(lambda: events_of(road.plane, road.namespace, "IsolationAbsent"), "an event", 15)
    assert (
        f'namespace="{road.namespace}",pod="p",container="main",state="absent"'
        in road.whole.agent.page("/metrics")[1]
    )


def node_says(road: Road) -> str:
    """What the agent publishes of its node beside the devices."""
    found = road.plane.api.get(f"/apis/tessera.dev/v1alpha1/gpunodes/{road.whole.node.name}")
    return str(found["status"].get("message"))


def test_row_26_a_limiter_that_was_cut_short_on_the_node_lets_nothing_start_until_it_is_whole(road: Road) -> None:
    (library,) = (road.whole.agent.state.parent / "lib").glob("*/libtessera.so")
    whole_text, aside = library.read_bytes(), library.with_name("aside")
    library.rename(aside)
    library.write_bytes(whole_text[:4096])
    try:
        road.create("cut", container("main", "256Mi"))
        wait_until(lambda: "libtessera.so is damaged" in node_says(road), "the node is said to be damaged", 60)
        assert not container_of_or_none(road, "cut")
    finally:
        aside.rename(library)
    wait_until(lambda: "damaged" not in node_says(road), "the node is said to be whole", 60)
    road.whole.agent.await_tickets(60)
    road.create("whole", container("main", "256Mi"))
    road.running("whole")
    assert road.reached("whole") == [256]


# rows 33 and 14, as people meet them


def test_row_33_a_privileged_container_with_a_fraction_is_refused_at_its_creation(road: Road) -> None:
    with pytest.raises(ApiFailure, match="privileged"):
        road.create("p", container("main", "1Gi", securityContext={"privileged": True}))


@pytest.mark.parametrize("text", ["NaN", "1e-400", "inf"])
def test_kai_8_what_is_no_amount_is_refused_at_its_creation(road: Road, text: str) -> None:
    metadata = {
        "name": "p",
        "labels": {"tensor-fusion.ai/enabled": "true"},
        "annotations": {"tensor-fusion.ai/tflops-request": text, "tensor-fusion.ai/vram-request": "1Gi"},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container("main")]}}
    with pytest.raises(ApiFailure, match="tflops-request"):
        road.plane.api.post(f"/api/v1/namespaces/{road.namespace}/pods", pod)


def deployment(replicas: int, version: str) -> dict[str, Any]:
    """Pods of a whole device each, with the default strategy."""
    whole = {"limits": {"tessera.dev/gpu": "1"}}
    one = {"name": "main", "image": IMAGE, "command": ["/usr/bin/sleep", "3600"], "resources": whole}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [one | {"env": [{"name": "V", "value": version}]}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "full"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "full"}},
            "template": {"metadata": {"labels": {"app": "full"}}, "spec": spec},
        },
    }


def test_kai_14_a_rollout_ends_on_a_cluster_that_is_full(road: Road) -> None:
    """Four pods hold all devices; the default strategy lets one be missing, so that one at a time is replaced."""
    path = f"/apis/apps/v1/namespaces/{road.namespace}/deployments"
    road.plane.api.post(path, deployment(4, "old"))
    wait_until(lambda: rolled_out(road, 4), "the first four run", 90)
    road.plane.api.merge(f"{path}/full", deployment(4, "new"))
    wait_until(lambda: rolled_out(road, 4), "the rollout ends", 180)
    names = road.plane.kubectl(
        "get", "pods", "-n", road.namespace, "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}"
    )
    assert set(names.split()) == {"new"}


def rolled_out(road: Road, replicas: int) -> bool:
    found = road.plane.api.get(f"/apis/apps/v1/namespaces/{road.namespace}/deployments/full")
    status = found["status"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
    return status.get("observedGeneration") == found["metadata"]["generation"] and counts == [replicas] * 3


def test_kai_14_a_rollout_that_cannot_end_says_what_it_waits_for(road: Road) -> None:
    """One pod of four devices may not be missing for a moment: the next waits for it, and is told so."""
    path = f"/apis/apps/v1/namespaces/{road.namespace}/deployments"
    body = deployment(1, "old")
    body["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["tessera.dev/gpu"] = "4"
    road.plane.api.post(path, body)
    wait_until(lambda: rolled_out(road, 1), "the first runs", 90)
    body["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = "new"
    road.plane.api.merge(f"{path}/full", body)
    # The first may have waited too, for what ran here before.
    told = r"held exclusively by another pod.*the rollout waits for itself\.$"
    wait_until(
        lambda: any(re.search(told, note) for note in events_of(road.plane, road.namespace, "NotPlaced")),
        "the new one is told",
        60,
    )
    assert rolled_out(road, 1) is False
