"""What is struck: a control plane, two webhooks behind one address, two scheduler pairs with an election,
simulated nodes, and where the machine allows a real node with its agent.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster.agent_process import TENANT_IMAGE, AgentProcess, tenant_image
from cluster.chaos.history import APISERVER_FLAGS, Etcd
from cluster.chaos.load import NAMESPACE
from cluster.chaos.manifests import HOLLOW
from cluster.engine.kinds import install_kinds
from cluster.engine.node import RealNode
from cluster.engine.nodes import SimulatedNode, add_nodes, node_names
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.ports import free_port
from cluster.engine.service import Service, wait_until
from cluster.scheduling import Pair, start_pair
from cluster.webhook_process import Webhook, install

PREFIX: Final = "sim"
LEASE: Final = "default/tessera-scheduler"
ELECTION: Final = {"leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s"}
"""Shorter than kube-scheduler's own 15 s, so that more of a run is spent with a leader."""

REVIVE_SECONDS: Final = 1.0


@dataclass(slots=True)
class World:
    """Everything that runs. ``down``: victims that are not to be started by :meth:`revive`."""

    plane: ControlPlane
    etcd: Etcd
    pairs: tuple[Pair, ...]
    webhooks: tuple[Webhook, ...]
    nodes: tuple[str, ...]
    inventories: dict[str, dict[str, Any]]
    node: RealNode | None = None
    agent: AgentProcess | None = None
    down: set[str] = field(default_factory=set)
    revived: dict[str, int] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)

    @property
    def victims(self) -> dict[str, Service]:
        """What may be struck, by name; never etcd, which is what the judge believes."""
        spared = ("etcd", "service")
        found = {name: service for name, service in self.plane.services.items() if name not in spared}
        if self.node is not None:
            found |= {"kubelet": self.node.kubelet, "containerd": self.node.containerd}
        return found

    @property
    def ours(self) -> list[str]:
        """The victims that are Tessera's own."""
        return [n for n in self.victims if n.startswith("webhook") or n.endswith("-extender") or n == "agent"]

    @property
    def image(self) -> str:
        """Of the real node's pods; empty where there is none."""
        return TENANT_IMAGE if self.node is not None else ""

    def strike(self, name: str, *, stall: bool) -> None:
        """Kill or stop a program."""
        if not stall:
            self.down.add(name)
        self.victims[name].kill(signal.SIGSTOP if stall else signal.SIGKILL)

    def restore(self, name: str, *, stall: bool) -> None:
        """Start it again, or let it go on; nobody waits until it is ready."""
        if stall:
            self.victims[name].kill(signal.SIGCONT)
            return
        self.down.discard(name)
        self._start(name)

    def revive(self) -> None:
        """Start what ended by itself, as a kubelet or an init system does, once a second at most."""
        for name, service in self.victims.items():
            if service.alive or name in self.down:
                continue
            if time.monotonic() - self._started.get(name, 0.0) >= REVIVE_SECONDS:
                self.revived[name] = self.revived.get(name, 0) + 1
                self._start(name)

    def _start(self, name: str) -> None:
        self._started[name] = time.monotonic()
        if not self.victims[name].alive:
            self.victims[name].start(wait=False)

    def await_ready(self, seconds: float) -> None:
        """Return once everything is up, started again where it ends meanwhile. Raises :class:`TimeoutError`."""
        ready = {name: service.ready for name, service in self.victims.items() if not name.endswith("-extender")}

        def missing() -> list[str]:
            self.revive()
            leads = [] if self.leader() else ["a scheduler that leads"]
            return [name for name, check in ready.items() if not check()] + leads

        try:
            wait_until(lambda: not missing(), "everything is up again", seconds)
        except TimeoutError as late:
            raise TimeoutError(f"{late}: {', '.join(missing())} is not") from None
        if self.node is not None and self.agent is not None:
            self.node.await_ready()
            self.agent.await_tickets(60)

    def leader(self) -> Pair | None:
        """The pair whose extender acts."""
        return next((pair for pair in self.pairs if pair.get("/readyz")[0] == 200), None)


@contextmanager
def a_world(folder: Path, nodes: int, *, real: bool) -> Iterator[World]:
    """Start everything, and end it."""
    # Services are started again by this process from its main thread, as they have to be.
    with ExitStack() as stack:
        options = Options(scheduler=False, apiserver_flags=APISERVER_FLAGS)
        plane = stack.enter_context(ControlPlane(folder / "plane", options))
        install_kinds(plane)
        plane.new_namespace(NAMESPACE)
        _let_schedulers_elect(plane)
        simulated = tuple(SimulatedNode(name, labels=HOLLOW) for name in node_names(nodes, PREFIX))
        add_nodes(plane, simulated)
        world = World(
            plane=plane,
            etcd=Etcd(plane.etcd_port),
            webhooks=_start_webhooks(plane, folder),
            pairs=tuple(_start_pair(plane, name) for name in ("one", "two")),
            nodes=tuple(node.name for node in simulated),
            inventories={
                node.name: {"devices": [msgspec.to_builtins(device) for device in node.inventory]}
                for node in simulated
            },
        )
        if real:
            world.node = stack.enter_context(RealNode(plane))
            world.node.import_image(tenant_image(folder))
            world.agent = AgentProcess(plane, world.node, folder / "agent").start()
        # What is stopped cannot end when it is asked to.
        stack.callback(_go_on, world)
        world.await_ready(120)
        yield world


def _go_on(world: World) -> None:
    for service in world.victims.values():
        with suppress(ProcessLookupError):
            service.kill(signal.SIGCONT)


def _let_schedulers_elect(plane: ControlPlane) -> None:
    """The built-in role allows one lease, by name; a chart's allows ours."""
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
    ]
    base, kind = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    plane.api.post(f"{base}/clusterroles", {"metadata": {"name": "chaos-elect"}, "rules": rules})
    for name, role, subject in (
        ("chaos-elect", "chaos-elect", {"kind": "User", "name": "system:kube-scheduler", "apiGroup": kind}),
        ("chaos-debug", "cluster-admin", {"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}),
    ):
        reference = {"apiGroup": kind, "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        plane.api.post(f"{base}/clusterrolebindings", body)


def _start_pair(plane: ControlPlane, name: str) -> Pair:
    pair = start_pair(plane, name, lease=LEASE, hostname=f"host-{name}")
    path = plane.folder / f"{name}-kube.json"
    config = json.loads(path.read_text())
    config["leaderElection"] |= ELECTION
    path.write_text(json.dumps(config))
    pair.stock.restart()
    return pair


def _start_webhooks(plane: ControlPlane, folder: Path) -> tuple[Webhook, ...]:
    """Two replicas behind one address, as behind a Service."""
    webhooks = tuple(Webhook(plane, folder, name=f"webhook-{name}") for name in "ab")
    port = free_port()
    install(plane, f"https://127.0.0.1:{port}", policy=True)
    pairs = [f"{webhook.port}:{webhook.metrics_port}" for webhook in webhooks]
    script = Path(__file__).parents[1] / "service_proxy.py"

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    command = [sys.executable, str(script), str(port), *pairs]
    for webhook in webhooks:
        webhook.start()
    plane.add_service(Service("service", command, folder / "service.log", ready=listens)).start()
    return webhooks


def resident_mib(pid: int) -> float:
    """Memory of a process; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def open_files(pid: int) -> int:
    """Descriptors of a process."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0
