"""`kubectl tessera` and `tessera plan --cluster` on a real API server, with nodes and bound pods by hand."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from cluster.engine.binaries import program
from cluster.engine.nodes import SimulatedNode, add_nodes, remove_nodes
from cluster.engine.plane import ControlPlane
from cluster_view.world import WHOLE, bind, place, pod_body, put_pod, request_of
from tessera.cli import kubectl
from tessera.cli.main import cli
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import load_config
from tessera.runtime.kube.port import PODS

NODES = [
    SimulatedNode("look-a", 2, labels={"look": "yes"}),
    SimulatedNode("look-b", 1, "T4", labels={"look": "yes"}),
]
MINE = ("-l", "look=yes")


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[None]:
    """Two nodes: two A100 with 40,960 MiB each, and one T4 with 15,360."""
    add_nodes(control_plane, NODES)
    yield
    remove_nodes(control_plane, [node.name for node in NODES])


@pytest.fixture
def filled(control_plane: ControlPlane, namespace: str, nodes: None) -> str:
    """The namespace in which `train` and `whole` hold shares, `big` waits and `stray` never met the webhook."""

    async def fill() -> None:
        client = client_of(control_plane)
        first, second = NODES[0].inventory
        await place(client, (namespace, "train"), (25_600, 500), "look-a", [first], 1)
        await place(client, (namespace, "whole"), WHOLE, "look-a", [second], 2)
        await put_pod(client, namespace, pod_body("big", request_of((20_480, 100), uuids_allowed=MINE_ONLY), 3))
        await put_pod(client, namespace, pod_body("stray", resources={"nvidia.com/gpu": "1"}))
        await client.close()

    asyncio.run(fill())
    return namespace


MINE_ONLY = frozenset(device.uuid for node in NODES for device in node.inventory)
"""Other tests may have nodes on the same plane."""


def client_of(plane: ControlPlane) -> ApiClient:
    return ApiClient(load_config(plane.kubeconfig, {}))


def call(plane: ControlPlane | Path, *args: str, command: click.Command = kubectl.command) -> Result:
    """Call the plugin in this process."""
    path = plane if isinstance(plane, Path) else plane.kubeconfig
    return CliRunner().invoke(command, [*args, "--kubeconfig", str(path)])


def document(plane: ControlPlane, *args: str, command: click.Command = kubectl.command, code: int = 0) -> Any:
    result = call(plane, *args, "-o", "json", command=command)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_devices_shows_what_bound_pods_hold(control_plane, filled):
    found = document(control_plane, "devices", *MINE)
    assert [(d["node"], d["index"], d["memory_free_mib"], d["shares"]) for d in found["devices"]] == [
        ("look-a", 0, 15_360, 1),  # 40,960 - 25,600
        ("look-a", 1, 0, 1),
        ("look-b", 0, 15_360, 0),
    ]
    assert found["devices"][0]["holders"][0]["pod"] == f"{filled}/train"
    assert [d["node"] for d in document(control_plane, "devices", "look-b")["devices"]] == ["look-b"]
    as_yaml = yaml.safe_load(call(control_plane, "devices", *MINE, "-o", "yaml").stdout)
    assert as_yaml == found


def test_explain_tells_of_a_placed_a_waiting_and_an_unadmitted_pod(control_plane, filled):
    placed = document(control_plane, "explain", "train", "-n", filled)
    assert (placed["state"], placed["node"]) == ("placed", "look-a")
    assert placed["containers"][0]["devices"][0]["memory_limit_mib"] == 25_600
    waiting = call(control_plane, "explain", f"{filled}/big").stdout
    assert "1 device short of memory (asked 20,480 MiB, largest free 15,360 MiB)" in waiting
    assert "lower memory to 15,360 MiB" in waiting
    assert f"{filled}/train on node look-a, device 0: 25,600 MiB, 50% compute" in waiting
    assert "helps: it fits when those who hold devices now have ended" in waiting
    stray = document(control_plane, "-n", filled, "explain", "pod/stray")
    assert stray["state"] == "not-admitted"


def test_what_kube_scheduler_says_of_a_pod_that_it_cannot_place_is_shown(control_plane, namespace, nodes):
    body = pod_body("it", request_of((1024, 100)), 7, scheduler="default-scheduler", nodeSelector={"no": "such"})

    async def put() -> None:
        client = client_of(control_plane)
        await put_pod(client, namespace, body)
        for _ in range(200):
            pod: Mapping[str, Any] = await client.get(PODS, "it", dict, namespace=namespace)
            if any(c["type"] == "PodScheduled" for c in pod["status"].get("conditions", ())):
                break
            await asyncio.sleep(0.1)
        await client.close()

    asyncio.run(put())
    text = call(control_plane, "explain", "it", "-n", namespace).stdout
    assert "default-scheduler says: 0/" in text
    assert "didn't match Pod's node affinity/selector" in text
    assert "unless Tessera runs as that, nobody who knows of shares places it" in text


def test_scheduling_gates_are_named(control_plane, namespace, nodes):
    async def put() -> None:
        client = client_of(control_plane)
        body = pod_body("held", request_of((1024, 100)), 7, schedulingGates=[{"name": "example.com/quota"}])
        await put_pod(client, namespace, body)
        await client.close()

    asyncio.run(put())
    assert (
        "scheduling gates hold it (example.com/quota)"
        in call(control_plane, "explain", "held", "-n", namespace).stdout
    )


def test_a_plan_on_the_cluster_counts_what_is_held(control_plane, filled, tmp_path):
    for mib, node in ((15_360, "look-a"), (15_361, None)):
        path = tmp_path / "pod.yaml"
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        selector = {"kubernetes.io/hostname": "look-a"}
        spec = {"containers": [container], "nodeSelector": selector}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}, "spec": spec}
        path.write_text(yaml.safe_dump(body))
        made = document(control_plane, "plan", "--cluster", "-f", str(path), command=cli, code=0 if node else 1)
        assert made["pods"][0]["node"] == node


def test_a_plan_of_the_cluster_explains_its_waiting_pods(control_plane, filled):
    made = document(control_plane, "plan", "--cluster", command=cli, code=1)
    (big,) = [pod for pod in made["pods"] if pod["namespace"] == filled]
    assert (big["name"], big["outcome"], big["object"]) == ("big", "rejected", f"Pod/{filled}/big")
    assert any(note.startswith(f"pod {filled}/stray was created before") for note in made["fleet"]["notes"])


def test_nothing_is_written(control_plane, filled):
    def versions() -> dict[str, str]:
        lists = (f"/api/v1/namespaces/{filled}/pods", "/api/v1/nodes", "/apis/tessera.dev/v1alpha1/gpunodes")
        items = (item for path in lists for item in control_plane.api.get(path)["items"])
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}

    before = versions()
    for args in (("devices",), ("explain", "big", "-n", filled), ("top", "-A", "--once")):
        assert call(control_plane, *args).exit_code == 0
    assert versions() == before


def test_rights_that_are_missing_are_named_until_the_role_has_all_of_them(control_plane, filled):
    path = control_plane.kubeconfig_for(f"viewer-{filled}")
    rules: list[dict[str, Any]] = []
    for resource, group in (("gpunodes", "tessera.dev"), ("nodes", ""), ("pods", "")):
        result = CliRunner().invoke(kubectl.command, ["devices", "--kubeconfig", str(path)])
        assert isinstance(result.exception, Exception)
        name = f"{resource}.{group}" if group else resource
        assert f"kubectl auth can-i list {name}" in str(result.exception)
        rules.append({"apiGroups": [group], "resources": [resource], "verbs": ["list"]})
        grant(control_plane, filled, f"viewer-{filled}", rules)
    assert CliRunner().invoke(kubectl.command, ["devices", "--kubeconfig", str(path)]).exit_code == 0


def grant(plane: ControlPlane, name: str, user: str, rules: list[dict[str, Any]]) -> None:
    """A cluster role with these rules, bound to the user."""
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    subject = {"kind": "User", "name": user, "apiGroup": group}
    reference = {"kind": "ClusterRole", "name": name, "apiGroup": group}
    binding = {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    del binding["rules"]
    text = yaml.safe_dump_all([role, binding])
    plane.kubectl("apply", "-f", "-", stdin=text)
    wait = ["auth", "can-i", "list", rules[-1]["resources"][0], "--as", user, "-A"]
    for _ in range(100):
        if plane.kubectl(*wait, check=False).startswith("yes"):
            return
    raise AssertionError("the role does not take effect")


# through kubectl itself


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which kubectl finds the plugin, as an installed package puts it there."""
    for name, entry in (("kubectl-tessera", "main"), ("kubectl_complete-tessera", "complete")):
        script = tmp_path / name
        script.write_text(f"#!{sys.executable}\nfrom tessera.cli.kubectl import {entry}\n{entry}()\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_kubectl_runs_the_plugin_and_passes_its_exit_code_on(control_plane, filled, on_path):
    run = partial(
        subprocess.run, env={**on_path, "KUBECONFIG": str(control_plane.kubeconfig)}, capture_output=True
    )
    tool = str(program("kubectl"))
    found = run([tool, "tessera", "devices", "look-b", "-o", "json"], check=True)
    assert [d["model"] for d in json.loads(found.stdout)["devices"]] == ["T4"]
    wrong = run([tool, "tessera", "explain", "strai", "-n", filled], check=False)
    assert wrong.returncode == 2
    assert f"is no pod in namespace {filled}" in wrong.stderr.decode()
    away = run([tool, "tessera", "devices", "--context", "nowhere"], check=False)
    assert away.returncode == 2
    assert b"has no context of this name" in away.stderr


def test_kubectl_is_told_what_completes(control_plane, filled, on_path):
    env = {**on_path, "KUBECONFIG": str(control_plane.kubeconfig)}
    script = f"{on_path['PATH'].partition(':')[0]}/kubectl_complete-tessera"

    def words(*args: str) -> list[str]:
        run = subprocess.run([script, *args], env=env, capture_output=True, check=True, text=True)
        return run.stdout.split()

    assert words("") == ["devices", "explain", "resize", "top", ":4"]
    assert words("devices", "look-") == ["look-a", "look-b", ":4"]
    assert words("explain", "-n", filled, "t") == ["train", ":4"]


# use, through the API server's proxy


@pytest.fixture
def agent(control_plane: ControlPlane, nodes: None) -> Iterator[Callable[[str], None]]:
    """An agent of node look-a that exposes whatever it is given, behind an address that the API server reaches."""
    page = [""]

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page[0].encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("0.0.0.0", 0), Pages)  # noqa: S104 - the API server proxies to no loopback address
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    asyncio.run(agent_pod(control_plane, server.server_address[1]))
    yield lambda text: page.__setitem__(0, text)
    server.shutdown()
    server.server_close()
    thread.join()
    control_plane.drop_namespace("tessera-system")


async def agent_pod(plane: ControlPlane, port: int) -> None:
    plane.new_namespace("tessera-system")
    client = client_of(plane)
    body = pod_body("agent-a", scheduler="none")
    body["metadata"]["labels"] = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    body["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": port}]
    uid = await put_pod(client, "tessera-system", body)
    await bind(client, "tessera-system", "agent-a", uid, "look-a")
    status = {"status": {"phase": "Running", "podIP": own_address(), "podIPs": [{"ip": own_address()}]}}
    await client.patch(PODS, "agent-a", status, dict, namespace="tessera-system", subresource="status")
    await client.close()


def own_address() -> str:
    """An address of this machine that is not the loopback's; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_top_shows_what_an_agent_tells_and_dashes_for_the_rest(control_plane, filled, agent):
    where = f'namespace="{filled}",pod="train",container="main",device="GPU-look-a-0"'
    agent(f"tessera_container_memory_used_bytes{{{where}}} {12_800 * 2**20}\n")
    found = document(control_plane, "top", "pods", "-n", filled)
    train, whole = found["pods"]
    assert (train["memory_used_mib"], train["memory_limit_mib"], train["refused"]) == (12_800, 25_600, None)
    assert (whole["memory_used_mib"], whole["memory_limit_mib"]) == (None, 40_960)
    line = call(control_plane, "top", "-n", filled, "--once").stdout.splitlines()[1]
    assert line.split()[5:8] == ["12.5Gi", "25Gi", "50%"]
    devices = document(control_plane, "top", "devices")
    silent = {silence["node"]: silence["why"] for silence in devices["silent"]}
    assert silent["look-b"] == "no agent runs on it"
    assert "look-a" not in silent
