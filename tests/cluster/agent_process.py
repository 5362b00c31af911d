"""An agent process on the harness's real node, and pods that a person bound by hand as our scheduler would."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.engine.images import busybox_files, glibc_files, make_image
from cluster.engine.node import PLUGINS, NodeOptions, RealNode
from cluster.engine.plane import ControlPlane
from cluster.engine.ports import free_port
from cluster.engine.service import Service, wait_until
from tessera.core.placement import Charge, Grant, Placement
from tessera.core.share import Share
from tessera.core.ticket import Ticket
from tessera.core.units import MiB, Milli
from tessera.local.machine import simulated_uuid
from tessera.runtime.native import SIMULATED
from tessera.wire.kube.allocation import encode_allocation
from tessera.wire.kube.names import ALLOCATION, MANAGED

MODEL = "NVIDIA A100-SXM4-80GB"
UUIDS = tuple(simulated_uuid(MODEL, index, NodeOptions().name) for index in range(2))
TENANT_IMAGE = "engine.test/agent-tenant:1"
CODE = "from tessera.cli.agent import command; import sys; sys.exit(command(standalone_mode=False))"


class AgentProcess:
    """One agent; its files lie below ``folder``, what must be at a fixed place is the real node's."""

    def __init__(
        self, plane: ControlPlane, node: RealNode, folder: Path, *flags: str, name: str = "agent"
    ) -> None:
        self.plane, self.node, self.folder = plane, node, folder
        self.state = folder / "tessera/agent"
        self.metrics_port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-c", CODE,
            "--kubeconfig", str(plane.kubeconfig),
            "--node", node.name,
            "--simulate", "2xA100-SXM4-80GB",
            "--state-dir", str(self.state),
            "--cdi-dir", str(node.cdi),
            "--gate-socket", str(folder / "gate.sock"),
            "--plugin-dir", str(PLUGINS),
            "--pod-resources", str(node.pod_resources),
            "--tools-socket", str(folder / "tools.sock"),
            "--metrics-bind", f"127.0.0.1:{self.metrics_port}",
            *flags,
        ]  # fmt: skip
        environment = {"TESSERA_STATE_DIR": str(folder / "machines")}
        log = folder / f"{name}.log"
        self.service = Service(name, command, log, ready=self.is_ready, environment=environment)

    def is_ready(self) -> bool:
        return self.page("/readyz")[0] == 200

    def page(self, path: str) -> tuple[int, str]:
        """Code and text of a page of the metrics port; 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def start(self) -> "AgentProcess":
        self.plane.add_service(self.service).start()
        return self

    def registrations(self) -> int:
        """How often this process was registered with a kubelet."""
        return sum(line["message"] == "registered" for line in self.log())

    def log(self) -> list[dict[str, Any]]:
        """The lines that it logged."""
        lines = self.service.log.read_text("utf-8", "replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def await_tickets(self, seconds: float = 30) -> None:
        """Return when the node offers all ticket devices."""
        path = f"/api/v1/nodes/{self.node.name}"

        def offered() -> bool:
            allocatable = self.plane.api.get(path)["status"].get("allocatable", {})
            amounts = {name: amount for name, amount in allocatable.items() if "/ticket-" in name}
            return len(amounts) == 16 and set(amounts.values()) <= {"2048", "2Ki"}

        wait_until(offered, f"node {self.node.name} offers tickets", seconds)


def tenant_image(folder: Path) -> Path:
    """A glibc image with the tenant and a shell that is dynamic as well, so that all of it can be limited."""
    return make_image(
        folder,
        TENANT_IMAGE,
        {**busybox_files(), **glibc_files(SIMULATED / "tenant", Path("/usr/bin/sleep"), Path("/usr/bin/env"))},
        ["/bin/sh", "-c"],
    )


def a_grant(uuid: str, memory: int, index: int = 0) -> Grant:
    return Grant(uuid, index, MODEL, Share(MiB(memory), MiB(memory), Milli(100), Milli(500)))


def run_share(
    plane: ControlPlane,
    namespace: str,
    name: str,
    script: str,
    tickets: Mapping[str, int] | None = None,
    *,
    memory: int = 1024,
    grants: Mapping[str, tuple[Grant, ...]] | None = None,
    container: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    init: tuple[str, ...] = (),
    node: str = "localhost",
) -> str:
    """A pod that asks with tickets, bound with its allocation in one write; its uid."""
    tickets = {"main": 37} if tickets is None else tickets
    grants = {c: (a_grant(UUIDS[0], memory),) for c in tickets} if grants is None else grants
    path = f"/api/v1/namespaces/{namespace}/pods"
    pod = plane.api.post(path, _pod(name, script, tickets, container or {}, spec or {}, init))
    uid: str = pod["metadata"]["uid"]
    charges = {g.uuid: Charge(g.uuid, g.share.memory_request, 100, 1, False) for gs in grants.values() for g in gs}
    placement = Placement(uid, f"{namespace}/{name}", node, grants, tuple(charges.values()))
    text = encode_allocation(placement, tickets)
    meta = {"name": name, "uid": uid, "annotations": {ALLOCATION: text}}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node}}
    plane.api.post(f"{path}/{name}/binding", body)
    return uid


def _pod(
    name: str,
    script: str,
    tickets: Mapping[str, int],
    container: Mapping[str, Any],
    spec: Mapping[str, Any],
    init: tuple[str, ...],
) -> dict[str, Any]:
    def one(title: str, ticket: Ticket) -> dict[str, Any]:
        limits = {ticket.resource: str(ticket.quantity)}
        return {
            "name": title, "image": TENANT_IMAGE, "args": [script], "resources": {"limits": limits}, **container,
        }  # fmt: skip

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict([MANAGED])},
        "spec": {
            "schedulerName": "nobody",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "initContainers": [one(title, Ticket(tickets[title])) for title in init],
            "containers": [one(title, Ticket(number)) for title, number in tickets.items() if title not in init],
            **spec,
        },
    }


def phase_of(plane: ControlPlane, namespace: str, name: str) -> str:
    return str(plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"].get("phase"))


def status_of(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    return dict(plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"])


def events_of(plane: ControlPlane, namespace: str, reason: str = "") -> list[str]:
    """What events say in a namespace."""
    found = plane.api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [event["note"] for event in found if not reason or event["reason"] == reason]


def container_of(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    """What the kubelet says of a pod's only container."""
    (status,) = status_of(plane, namespace, name).get("containerStatuses") or [{}]
    return dict(status)


def is_running(plane: ControlPlane, namespace: str, name: str) -> bool:
    statuses = status_of(plane, namespace, name).get("containerStatuses") or []
    return bool(statuses) and all("running" in status.get("state", {}) for status in statuses)
