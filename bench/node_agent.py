"""The node agent's figures: memory with 8 devices and 60 shares, time of Allocate and of the gate, idle traffic.

Usage: ``PYTHONPATH=tests python bench/node_agent.py`` with the engine's programs (``make engine``). A real API
server, a kubelet of a few lines, agents as processes of their own, the real gate program.

Idle traffic is measured of one agent and of :data:`AGENTS` side by side, by the API server's own count of
requests. 1,000 nodes are 1,000 of the same process: an agent knows of no other, writes only the ``GPUNode`` and
``GPU`` objects of its own node, and those only when a fact changed (``publish.plan``); it holds no lease. So what
N idle agents write is N times what one writes, and 0 of twenty is 0 of a thousand. What they read does grow with
N: three watches that are begun anew every 300 to 450 s, the own objects once in 480 to 720 s.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from agent.world import MODEL, MiniKubelet, a_grant, an_allocation
from cluster.engine.kinds import install_kinds
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.ports import free_port
from tessera.core.ticket import Ticket
from tessera.local.machine import simulated_machine, simulated_uuid
from tessera.runtime.native import NATIVE
from tessera.wire.kube.names import ALLOCATION

DEVICES, SHARES, STARTS = 8, 60, 300
AGENTS = 20
IDLE_SECONDS = 20
SETTLE_SECONDS = 35
"""Longer than the agent's round that gives free memory back."""
READY_SECONDS = 120
CODE = "from tessera.cli.main import main; main()"
CHANGING = ("POST", "PUT", "PATCH", "DELETE", "APPLY")


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


class NodeProcess:
    """One agent as the container starts it, with a kubelet of its own. Close it when done."""

    def __init__(self, plane: ControlPlane, folder: Path, node: str) -> None:
        self.plane, self.folder, self.node = plane, folder, node
        self.port = free_port()
        self.kubelet = MiniKubelet(folder / "plugins")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> "NodeProcess":
        """Returns once every ticket resource is offered."""
        folder = self.folder
        folder.mkdir(parents=True)
        await self.kubelet.start()
        self.plane.api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}})
        status = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.9"}}}
        self.plane.api.merge(f"/api/v1/nodes/{self.node}/status", status)
        command = [
            sys.executable, "-c", CODE, "agent", "--kubeconfig", self.plane.kubeconfig, "--node", self.node,
            "--simulate", self.machine(),
            "--state-dir", folder / "tessera/agent", "--cdi-dir", folder / "cdi",
            "--gate-socket", folder / "gate.sock", "--plugin-dir", folder / "plugins",
            "--pod-resources", folder / "none.sock", "--metrics-bind", f"127.0.0.1:{self.port}",
            "--log-level", "warning",
        ]  # fmt: skip
        environment = {**os.environ, "TESSERA_STATE_DIR": str(folder / "machines")}
        self.process = await asyncio.create_subprocess_exec(*map(str, command), env=environment)
        async with asyncio.timeout(READY_SECONDS):
            while len(self.kubelet.healthy) < 16 or not self.is_ready():
                await asyncio.sleep(0.1)
        return self

    def machine(self) -> Path:
        """The description of a machine whose devices no other node has."""
        simulated = simulated_machine(f"{DEVICES}xA100-SXM4-80GB").description
        assert simulated is not None
        text = simulated.read_text()
        for index in range(DEVICES):
            text = text.replace(simulated_uuid(MODEL, index), self.uuid(index))
        path = self.folder / "machine" / "description"
        path.parent.mkdir()
        path.write_text(text)
        return path

    def uuid(self, index: int) -> str:
        """One device of this node."""
        return f"GPU-{uuid5(NAMESPACE_DNS, f'{self.node}/{index}')}"

    def is_ready(self) -> bool:
        try:
            return self.page("/readyz") != ""
        except OSError:
            return False

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def memory(self) -> dict[str, float]:
        """MiB by kind, as the kernel counts."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()[1:]
        return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}

    async def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            await self.process.wait()
        await self.kubelet.stop()


def bind(agent: NodeProcess, number: int) -> dict:
    """A pod of one container with a share, bound."""
    ticket, name = Ticket(number), f"p{number}"
    container = {"name": "main", "image": "x", "resources": {"limits": {ticket.resource: str(ticket.quantity)}}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    plane = agent.plane
    pod = plane.api.post("/api/v1/namespaces/default/pods", body)
    uid = pod["metadata"]["uid"]
    index = number % DEVICES
    grants = {"main": (a_grant(agent.uuid(index), 1024, index),)}
    meta = {
        "name": name,
        "uid": uid,
        "annotations": {ALLOCATION: an_allocation(uid, grants, {"main": number}, agent.node)},
    }
    target = {"kind": "Node", "name": agent.node}
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


def requests(plane: ControlPlane) -> Counter[tuple[str, str]]:
    """Requests so far by verb and resource, as the API server counts them; a watch counts when it ends."""
    text = plane.kubectl("get", "--raw", "/metrics")
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{"):
            labels, _, value = line.partition("{")[2].rpartition("} ")
            named = dict(pair.split("=", 1) for pair in labels.replace('"', "").split(",") if "=" in pair)
            resource = ".".join(part for part in (named["resource"], named["group"]) if part)
            found[named["verb"], resource] += int(float(value))
    return found


async def idle(plane: ControlPlane, seconds: float) -> dict[str, object]:
    """What was asked of the API server while nothing happened: all writes but those of leases, and reads."""
    before = requests(plane)
    await asyncio.sleep(seconds)
    asked = requests(plane) - before
    told = {f"{verb} {resource}": count for (verb, resource), count in sorted(asked.items())}
    writes = {what: count for what, count in told.items() if what.split()[0] in CHANGING}
    leases = {what: count for what, count in writes.items() if what.endswith("leases.coordination.k8s.io")}
    return {
        "seconds": seconds,
        "writes_other_than_leases": sum(writes.values()) - sum(leases.values()),
        "writes_by_kind": {what: count for what, count in writes.items() if what not in leases},
        "leases": sum(leases.values()),
        "reads_by_kind": {what: count for what, count in told.items() if what not in writes},
    }


async def starts(agent: NodeProcess) -> dict[str, float]:
    """Time of Allocate for every share, and of the gate for many starts of them, in milliseconds."""
    pods = [bind(agent, number) for number in range(SHARES)]
    spec = json.loads((agent.folder / "cdi/tessera.dev-gpu.json").read_text())
    took, states, gate = [], [], []
    for pod in pods:
        began = time.perf_counter()
        answer = await agent.kubelet.allocate(pod["ticket"].resource, pod["ticket"].quantity)
        took.append((time.perf_counter() - began) * 1000)
        states.append(bundle_of(agent.folder / pod["name"], spec, pod, answer))
    program = [NATIVE / "tessera-gate", "--socket", agent.folder / "gate.sock"]
    for start in range(STARTS):
        began = time.perf_counter()
        asked = await asyncio.to_thread(subprocess.run, program, input=states[start % SHARES])
        assert asked.returncode == 0
        gate.append((time.perf_counter() - began) * 1000)
    return {
        "allocate_ms_p50": round(percentile(took, 0.5), 2),
        "allocate_ms_p99": round(percentile(took, 0.99), 2),
        "gate_ms_p50": round(percentile(gate, 0.5), 2),
        "gate_ms_p99": round(percentile(gate, 0.99), 2),
    }


async def one(plane: ControlPlane, folder: Path) -> dict[str, object]:
    """One agent with all of its shares: times, idle traffic, and memory after that."""
    agent = await NodeProcess(plane, folder / "one", "bench").start()
    try:
        times = await starts(agent)
        await asyncio.to_thread(agent.page, "/metrics")
        await asyncio.sleep(SETTLE_SECONDS - IDLE_SECONDS)
        quiet = await idle(plane, IDLE_SECONDS)
        memory = agent.memory()
    finally:
        await agent.close()
    return {
        "devices": DEVICES,
        "shares": SHARES,
        "rss_mib": round(memory["Rss"], 1),
        "rss_million_bytes": round(memory["Rss"] * 1.048576, 1),
        "pss_mib": round(memory["Pss"], 1),
        "anonymous_mib": round(memory["Anonymous"], 1),
        **times,
        "idle": quiet,
    }


async def many(plane: ControlPlane, folder: Path) -> dict[str, object]:
    """Agents side by side, idle, and their memory."""
    agents: list[NodeProcess] = []
    try:
        for number in range(AGENTS):
            agents.append(await NodeProcess(plane, folder / f"many-{number}", f"bench-{number:03d}").start())
        await asyncio.sleep(SETTLE_SECONDS)
        quiet = await idle(plane, IDLE_SECONDS)
        resident = [agent.memory()["Rss"] for agent in agents]
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))
    return {
        "agents": AGENTS,
        "rss_mib_least_and_most": [round(min(resident), 1), round(max(resident), 1)],
        "idle": quiet,
    }


async def measure(plane: ControlPlane, folder: Path) -> dict[str, object]:
    """Everything, on a running control plane."""
    return {
        "without_agents": await idle(plane, IDLE_SECONDS),
        "one": await one(plane, folder),
        "side_by_side": await many(plane, folder),
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
