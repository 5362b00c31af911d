"""What must hold once the load has stopped and everything is up again: asked of the processes and of the API."""

import json
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from cluster.chaos.judge import REQUEST, Violation, read_pod
from cluster.chaos.load import DEPLOYMENTS, NAMESPACE, PODS
from cluster.chaos.manifests import HOLLOW, REAL
from cluster.chaos.world import World, open_files, resident_mib
from cluster.engine.node import PLUGINS
from cluster.engine.sweep import pod_processes
from cluster.scheduling import Pair
from tessera.scheduler.facts import MARK

SETTLE_SECONDS: Final = 90.0
FRESH_SECONDS: Final = 30.0
REMOVAL_SECONDS: Final = 180.0
"""The agent removes a share once its pod has been over for a minute, in rounds of half a minute."""

MOST_MIB: Final = 400
MOST_FILES: Final = 200
POLL_SECONDS: Final = 0.3

Rule = tuple[str, Callable[[], Iterable[str]]]


class Settled:
    """The checks; what they find is in ``violations``, in the order of :meth:`check`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plane = world.plane
        self._token = world.plane.token_for(NAMESPACE, "default")
        self.violations: list[Violation] = []
        self.waits: dict[str, float] = {}

    def check(self) -> None:
        """Everything: with the pods that are left, with fresh ones, and after the last is gone."""
        world = self._world
        self._eventually("every pod is bound or told why", self._untold, SETTLE_SECONDS)
        self._eventually("no pod bears the mark of a waking", self._marked, SETTLE_SECONDS)
        self._eventually("the ledger is what the pods say", self._ledger_differs, SETTLE_SECONDS)
        self._eventually("no drift", self._drifts, SETTLE_SECONDS)
        self._eventually("no reservation is left", lambda: self._left("reservations"), SETTLE_SECONDS)
        self._eventually("no ticket is left", lambda: self._left("tickets"), SETTLE_SECONDS)
        self._clear()
        self._eventually("every pod is gone when it is deleted", self._pods_left, SETTLE_SECONDS)
        self._eventually("an empty cluster has an empty ledger", self._ledger_differs, SETTLE_SECONDS)
        self._fresh("a fresh pod is placed", HOLLOW)
        if world.node is not None:
            self._fresh("a fresh pod is placed on the real node", REAL)
        self._clear()
        self._eventually("every pod is gone in the end", self._pods_left, SETTLE_SECONDS)
        self._eventually("no process grows", self._big, 1)
        if world.node is not None:
            self._eventually("no process of a pod is left", self._processes_left, SETTLE_SECONDS)
            self._eventually("no share is left on the node", self._shares_left, REMOVAL_SECONDS)
            self._eventually("the node's files are whole", self._files_wrong, 10)

    def _eventually(self, rule: str, look: Callable[[], list[str]], seconds: float) -> None:
        """Ask until nothing is wrong; what still is at the end of the time is a violation each."""
        begin = time.monotonic()
        while True:
            try:
                wrong = look()
            except (OSError, ValueError) as error:
                wrong = [f"cannot be asked: {error}"]
            if not wrong or time.monotonic() - begin > seconds:
                break
            time.sleep(POLL_SECONDS)
            self._world.revive()
        self.waits[rule] = time.monotonic() - begin
        self.violations += [Violation(rule, _subject(text), text) for text in wrong[:20]]

    # pods

    def _pods(self) -> list[dict[str, Any]]:
        return list(self._plane.api.get(PODS)["items"])

    def _untold(self) -> list[str]:
        found = []
        for pod in self._pods():
            if pod["spec"].get("nodeName") or REQUEST not in pod["metadata"].get("annotations", {}):
                continue
            told = [c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
            if not any(c["status"] == "False" and c.get("message") for c in told):
                found.append(f"{NAMESPACE}/{pod['metadata']['name']} waits and nobody says why: {told}")
        return found

    def _marked(self) -> list[str]:
        marked = [pod for pod in self._pods() if pod["status"].get("nominatedNodeName") == MARK]
        return [f"{NAMESPACE}/{pod['metadata']['name']} is nominated for {MARK}" for pod in marked]

    def _pods_left(self) -> list[str]:
        return [f"{NAMESPACE}/{pod['metadata']['name']} is still there: {pod['status']}" for pod in self._pods()]

    def _clear(self) -> None:
        self._plane.api.delete(DEPLOYMENTS)
        self._plane.api.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets")
        self._plane.api.delete(PODS)

    def _fresh(self, rule: str, selector: dict[str, str]) -> None:
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "256"}
        container: dict[str, Any] = {"name": "main", "image": "none", "resources": {"limits": limits}}
        if selector is REAL:
            container |= {"image": self._world.image, "args": ["exec tenant hold 64 600"]}
        name = f"fresh-{'real' if selector is REAL else 'hollow'}"
        spec = {"nodeSelector": selector, "terminationGracePeriodSeconds": 0, "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self._plane.api.call("POST", PODS, body, accepts=(409,))

        def not_running() -> list[str]:
            pod = self._plane.api.get(f"{PODS}/{name}")
            phase = pod["status"].get("phase")
            return [] if phase == "Running" else [f"{NAMESPACE}/{name} is {phase}: {pod['status']}"]

        self._eventually(rule, not_running, FRESH_SECONDS)

    # the scheduler

    def _leader(self) -> Pair:
        leader = self._world.leader()
        if leader is None:
            raise ValueError("no scheduler leads")
        return leader

    def _page(self, name: str) -> Any:
        status, text = self._leader().get(f"/debug/{name}", self._token)
        if status != 200:
            raise ValueError(f"/debug/{name}: {status} {text[:200]}")
        return json.loads(text)

    def _ledger_differs(self) -> list[str]:
        """The books by the API's pods against the leader's."""
        booked: dict[str, list[int]] = {}
        for obj in self._pods():
            for charge in read_pod(obj["metadata"]["name"], obj).charges:
                sums = booked.setdefault(charge["uuid"], [0, 0])
                sums[0] += charge["memory"]
                sums[1] += charge["compute"]
        found = []
        for row in self._page("ledger"):
            mine = booked.pop(row["device"], [0, 0])
            theirs = [row["memoryMib"]["booked"], row["computeMilli"]["booked"]]
            if mine != theirs:
                found.append(f"{row['device']}: {mine} by the pods, {theirs} in the ledger, {row['pods']}")
        return found + [f"{uuid}: {sums} by the pods, not in the ledger" for uuid, sums in booked.items()]

    def _drifts(self) -> list[str]:
        drift = self._leader().metric("tessera_ledger_drift")
        return [f"tessera_ledger_drift is {drift:g}"] if drift else []

    def _left(self, page: str) -> list[str]:
        rows = self._page(page)
        bound = {pod["metadata"]["uid"] for pod in self._pods() if pod["spec"].get("nodeName")}
        if page == "tickets":
            rows = [
                f"{node}: ticket {ticket} waits for {uid}, {'bound' if uid in bound else 'not bound'}"
                for node, tickets in rows.items()
                for ticket, uids in tickets.items()
                for uid in uids
            ]
        return [json.dumps(row) for row in rows]

    # what leaks

    def _big(self) -> list[str]:
        found = []
        for name in self._world.ours:
            pid = self._world.victims[name].pid
            memory, files = resident_mib(pid), open_files(pid)
            if memory > MOST_MIB or files > MOST_FILES:
                found.append(f"{name}: {memory:.0f} MiB, {files} open files")
        return found

    def _processes_left(self) -> list[str]:
        return [f"process {pid} of a pod" for pid in sorted(pod_processes())]

    def _shares_left(self) -> list[str]:
        assert self._world.agent is not None
        return [str(path) for path in self._world.agent.state.glob("containers/*")]

    def _files_wrong(self) -> list[str]:
        """One CDI spec with every device, sixteen sockets, nothing half-written."""
        agent, node = self._world.agent, self._world.node
        assert agent is not None
        assert node is not None
        found = [f"{path} was left" for path in (*agent.state.parent.rglob("*.new"), *node.cdi.glob("*.new"))]
        specs = list(node.cdi.glob("tessera.dev-*.json"))
        devices = [device["name"] for spec in specs for device in json.loads(spec.read_text())["devices"]]
        if len(specs) != 1 or len(devices) != 2:
            found.append(f"CDI: {[spec.name for spec in specs]} with {devices}")
        sockets = len(list(PLUGINS.glob("tessera-ticket-*.sock")))
        if sockets != 16:
            found.append(f"{sockets} plugin sockets")
        return found


def _subject(text: str) -> str:
    """The pod or device that a finding begins with."""
    words = re.split(r"[:\s]", text, maxsplit=1)
    return words[0]
