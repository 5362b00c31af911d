"""The scheduler on the real engine: our process beside a real kube-scheduler, pods as admission leaves them, and
what the API objects say of who holds what.
"""

import itertools
import json
import math
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from builders import a_claim, a_share, whole
from cluster.engine.plane import ControlPlane
from cluster.engine.ports import free_port
from cluster.engine.service import Service, wait_until
from tessera.core.request import Claim, Constraints, Dialect, Preference, Request
from tessera.core.ticket import TICKETS, Ticket
from tessera.scheduler.stock import Settings, configuration
from tessera.wire.kube.names import ALLOCATION, MANAGED, REQUEST, SCHEDULER_NAME
from tessera.wire.kube.request import encode_request

_numbers = itertools.count()
PROGRAM = "from tessera.cli.main import main; main()"


@dataclass(slots=True)
class Pair:
    """Our scheduler and the kube-scheduler beside it."""

    plane: ControlPlane
    name: str
    url: str
    metrics: str
    ours: Service
    stock: Service
    profiles: tuple[str, ...] = (SCHEDULER_NAME,)

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        """Status and body of one of our own endpoints."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        call = urllib.request.Request(self.metrics + path, headers=headers)  # noqa: S310 - http, and our own
        try:
            with urllib.request.urlopen(call, timeout=5) as answer:  # noqa: S310 - ditto
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str) -> float:
        """A metric's value; where it is absent or nobody answers NaN, which equals nothing."""
        _, text = self.get("/metrics")
        lines = (line for line in text.splitlines() if line.startswith(f"{name} "))
        return next((float(line.split()[-1]) for line in lines), math.nan)

    def lacks(self, text: str) -> bool:
        """Whether the page of metrics is there and does not have this; not where nobody answers."""
        status, page = self.get("/metrics")
        return status == 200 and text not in page

    def stop(self) -> None:
        """Both programs."""
        for service in (self.stock, self.ours):
            service.stop()
            self.plane.services.pop(service.name, None)


def start_pair(
    plane: ControlPlane,
    name: str = "tessera",
    *,
    lease: str = "",
    hostname: str = "",
    profiles: tuple[str, ...] = (SCHEDULER_NAME,),
    flags: Iterable[str] = (),
    before: str = "",
) -> Pair:
    """Start both; without a lease they are the only ones. ``before`` is run in our process before it starts."""
    port, metrics_port = free_port(), free_port()
    url, metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}"
    command = [
        sys.executable, "-c", f"{before}\n{PROGRAM}", "scheduler",
        "--kubeconfig", str(plane.kubeconfig), "--bind", f"127.0.0.1:{port}",
        "--metrics-bind", f"127.0.0.1:{metrics_port}", "--namespace", "default",
        *(("--lease", lease, "--holder", hostname) if lease else ("--leader-elect", "false")), *flags,
    ]  # fmt: skip
    pair = Pair(plane, name, url, metrics, None, None, profiles)  # type: ignore[arg-type]

    def ready() -> bool:
        return pair.get("/healthz" if lease else "/readyz")[0] == 200

    ours = Service(f"{name}-extender", command, plane.logs / f"{name}-extender.log", ready)
    pair.ours = plane.add_service(ours).start(wait=not lease)
    config = configuration(Settings(profiles, url, lease))
    # The rights of system:kube-scheduler are for the lease kube-system/kube-scheduler alone.
    rights = plane.kubeconfig if lease else None
    pair.stock = plane.start_scheduler(f"{name}-kube", config=config, hostname=hostname, kubeconfig=rights)
    return pair


def a_request(*claims: Claim, constraints: Constraints | None = None) -> str:
    """The annotation that admission writes."""
    return encode_request(Request(claims, constraints or Constraints(), Preference()), Dialect.NATIVE)


def admitted_pod(
    name: str,
    claims: Iterable[Claim],
    *,
    namespace: str,
    ticket: int | None = None,
    constraints: Constraints | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod as our webhook leaves it: request, label, scheduler, a ticket for each container of a claim."""
    claims = tuple(claims)
    first = next(_numbers) * 7 if ticket is None else ticket
    containers = dict.fromkeys(c for claim in claims for c in claim.containers)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {REQUEST: a_request(*claims, constraints=constraints)},
            "labels": {MANAGED[0]: MANAGED[1], **(labels or {})},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": container, "image": "none", "resources": _ticket((first + at) % TICKETS)}
                for at, container in enumerate(containers)
            ],
            **spec,
        },
    }


def _ticket(number: int) -> dict[str, Any]:
    ticket = Ticket(number)
    amount = {ticket.resource: str(ticket.quantity)}
    return {"limits": amount, "requests": amount}


def quarter(memory: int = 10_240, compute: int = 250) -> tuple[Claim, ...]:
    """A quarter of a 40 GiB device."""
    return (a_claim(a_share(memory, compute)),)


def whole_devices(count: int = 1) -> tuple[Claim, ...]:
    """Devices of one's own."""
    return (a_claim(whole(), count),)


@dataclass(slots=True)
class Books:
    """Who holds what, from the pods that the API server has, and from nothing of ours."""

    memory: dict[str, int] = field(default_factory=dict)
    compute: dict[str, int] = field(default_factory=dict)
    exclusive: dict[str, int] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    def overbooked(self, capacity: Mapping[str, int]) -> list[str]:
        """Devices that hold more than they have; ``capacity`` in MiB by uuid."""
        return [
            f"{uuid}: {self.memory[uuid]} MiB, {self.compute[uuid]} milli, {sorted(self.users[uuid])}"
            for uuid in self.users
            if self.memory[uuid] > capacity[uuid]
            or self.compute[uuid] > 1000
            or (self.exclusive[uuid] and len(self.users[uuid]) > 1)
        ]


def books_of(plane: ControlPlane, namespace: str = "") -> Books:
    """The books of now."""
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    books = Books()
    for pod in plane.api.get(path)["items"]:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            books.waiting.add(name)
            continue
        books.bound[name] = pod["spec"]["nodeName"]
        text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
        if text is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        record = json.loads(text)
        assert record["pod"] == pod["metadata"]["uid"]
        assert record["node"] == pod["spec"]["nodeName"]
        for charge in record["charges"]:
            uuid = charge["uuid"]
            books.memory[uuid] = books.memory.get(uuid, 0) + charge["memory"]
            books.compute[uuid] = books.compute.get(uuid, 0) + charge["compute"]
            books.exclusive[uuid] = books.exclusive.get(uuid, 0) + charge.get("exclusive", False)
            books.users.setdefault(uuid, set()).add(name)
    return books


def create(plane: ControlPlane, pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod as it was created."""
    created: dict[str, Any] = plane.api.post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)
    return created


def delete(plane: ControlPlane, namespace: str, name: str) -> None:
    """At once: simulated nodes have no kubelet that would end it."""
    with suppress(KeyError):
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")


def pod_of(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    """The pod as it is."""
    found: dict[str, Any] = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return found


def await_bound(plane: ControlPlane, namespace: str, count: int, seconds: float = 60.0) -> Books:
    """The books once ``count`` pods are bound."""
    wait_until(lambda: len(books_of(plane, namespace).bound) >= count, f"{count} pods bound", seconds)
    return books_of(plane, namespace)


def events_of(plane: ControlPlane, namespace: str, name: str, reason: str) -> list[str]:
    """The notes of a pod's events."""
    events = plane.api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return [
        event["note"] for event in events if event["regarding"].get("name") == name and event["reason"] == reason
    ]
