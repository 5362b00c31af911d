"""The node agent's figures: memory with 8 devices and 60 shares, time of Allocate and of the gate, idle traffic.

Usage: ``PYTHONPATH=tests python bench/node_agent.py`` with the engine's programs (``make engine``). A real API
server, a kubelet of a few lines, the agent as a process of its own, the real gate program.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from agent.world import MODEL, MiniKubelet, a_grant, an_allocation
from cluster.engine.kinds import install_kinds
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.ports import free_port
from tessera.core.ticket import Ticket
from tessera.local.machine import simulated_uuid
from tessera.runtime.native import NATIVE
from tessera.wire.kube.names import ALLOCATION

NODE = "bench"
DEVICES, SHARES, STARTS = 8, 60, 300
IDLE_SECONDS = 20
CODE = "from tessera.cli.agent import command; import sys; sys.exit(command(standalone_mode=False))"


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def memory_of(pid: int) -> dict[str, float]:
    """MiB by kind, as the kernel counts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def bind(plane: ControlPlane, number: int) -> dict:
    """A pod of one container with a share, bound."""
    ticket, name = Ticket(number), f"p{number}"
    container = {"name": "main", "image": "x", "resources": {"limits": {ticket.resource: str(ticket.quantity)}}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    pod = plane.api.post("/api/v1/namespaces/default/pods", body)
    uid = pod["metadata"]["uid"]
    index = number % DEVICES
    grants = {"main": (a_grant(simulated_uuid(MODEL, index), 1024, index),)}
    meta = {
        "name": name,
        "uid": uid,
        "annotations": {ALLOCATION: an_allocation(uid, grants, {"main": number}, NODE)},
    }
    target = {"kind": "Node", "name": NODE}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    plane.api.post(f"/api/v1/namespaces/default/pods/{name}/binding", binding)
    return {"uid": uid, "name": name, "ticket": ticket}


def bundle_of(folder: Path, spec: dict, pod: dict, answer: object) -> bytes:
    """A bundle as a runtime makes it, and the state that it tells a hook."""
    folder.mkdir()
    uuid = answer.cdi_devices[0].name.partition("=")[2]
    edits = [spec["containerEdits"], *(d["containerEdits"] for d in spec["devices"] if d["name"] == uuid)]
    mounts = [{"destination": m.container_path, "source": m.host_path} for m in answer.mounts]
    environment = [variable for edit in edits for variable in edit.get("env", [])]
    (folder / "config.json").write_text(json.dumps({"process": {"env": environment}, "mounts": mounts}))
    names = {"sandbox-uid": pod["uid"], "sandbox-name": pod["name"], "sandbox-namespace": "default"}
    annotations = {f"io.kubernetes.cri.{key}": value for key, value in {**names, "container-name": "main"}.items()}
    return json.dumps({"id": pod["uid"], "bundle": str(folder), "pid": 1, "annotations": annotations}).encode()


def writes(plane: ControlPlane) -> int:
    """Requests that change something, as the API server counts them, without leases."""
    text = plane.kubectl("get", "--raw", "/metrics")
    rows = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    changing = [row for row in rows if any(f'verb="{v}"' in row for v in ("POST", "PUT", "PATCH", "DELETE"))]
    return sum(int(float(row.rsplit(" ", 1)[1])) for row in changing if '"tessera.dev"' in row)


async def measure(plane: ControlPlane, folder: Path) -> dict[str, object]:
    """Everything, on a running control plane."""
    kubelet = await MiniKubelet(folder / "plugins").start()
    plane.api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    status = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.9"}}}
    plane.api.merge(f"/api/v1/nodes/{NODE}/status", status)
    port = free_port()
    command = [
        sys.executable, "-c", CODE, "--kubeconfig", plane.kubeconfig, "--node", NODE,
        "--simulate", f"{DEVICES}xA100-SXM4-80GB",
        "--state-dir", folder / "tessera/agent", "--cdi-dir", folder / "cdi",
        "--gate-socket", folder / "gate.sock", "--plugin-dir", folder / "plugins",
        "--pod-resources", folder / "none.sock", "--metrics-bind", f"127.0.0.1:{port}", "--log-level", "warning",
    ]  # fmt: skip
    environment = {**os.environ, "TESSERA_STATE_DIR": str(folder / "machines")}
    process = await asyncio.create_subprocess_exec(*map(str, command), env=environment)
    while len(kubelet.healthy) < 16:
        await asyncio.sleep(0.1)
    pods = [bind(plane, number) for number in range(SHARES)]
    spec = json.loads((folder / "cdi/tessera.dev-gpu.json").read_text())
    took, states = [], []
    for pod in pods:
        began = time.perf_counter()
        answer = await kubelet.allocate(pod["ticket"].resource, pod["ticket"].quantity)
        took.append((time.perf_counter() - began) * 1000)
        states.append(bundle_of(folder / pod["name"], spec, pod, answer))
    gate = []
    for start in range(STARTS):
        began = time.perf_counter()
        asked = await asyncio.to_thread(
            subprocess.run,
            [NATIVE / "tessera-gate", "--socket", folder / "gate.sock"],
            input=states[start % SHARES],
        )
        assert asked.returncode == 0
        gate.append((time.perf_counter() - began) * 1000)
    await asyncio.to_thread(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read)
    before = writes(plane)
    await asyncio.sleep(IDLE_SECONDS)
    idle = writes(plane) - before
    memory = memory_of(process.pid)
    process.terminate()
    await process.wait()
    await kubelet.stop()
    return {
        "devices": DEVICES,
        "shares": SHARES,
        "rss_mib": round(memory["Rss"], 1),
        "pss_mib": round(memory["Pss"], 1),
        "anonymous_mib": round(memory["Anonymous"], 1),
        "allocate_ms_p50": round(percentile(took, 0.5), 2),
        "allocate_ms_p99": round(percentile(took, 0.99), 2),
        "gate_ms_p50": round(percentile(gate, 0.5), 2),
        "gate_ms_p99": round(percentile(gate, 0.99), 2),
        "idle_writes": idle,
        "idle_seconds": IDLE_SECONDS,
    }


def main() -> None:
    """Print the figures as JSON."""
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as name:
        folder = Path(name)
        (folder / "plane").mkdir()
        with ControlPlane(folder / "plane", Options(scheduler=False, controller_manager=False)) as plane:
            install_kinds(plane)
            print(json.dumps(asyncio.run(measure(plane, folder)), indent=2))


if __name__ == "__main__":
    main()
