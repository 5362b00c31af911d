"""Rows of the lists of users' pains that take a real API server and a real kube-scheduler, on simulated nodes."""

import random
from collections.abc import Iterator

import pytest

from builders import a_claim, a_share
from cluster.engine.nodes import SimulatedNode, add_nodes, remove_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from cluster.scheduling import (
    Pair,
    admitted_pod,
    await_bound,
    books_of,
    create,
    delete,
    events_of,
    pod_of,
    quarter,
    start_pair,
    whole_devices,
)

QUIET_SECONDS = 4
PLAIN = "plain-scheduler"


@pytest.fixture(scope="module")
def pair(control_plane: ControlPlane) -> Iterator[Pair]:
    """Our scheduler; its kube-scheduler places pods of a second profile that ask for nothing of ours as well."""
    found = start_pair(control_plane, "promises", profiles=("tessera-scheduler", PLAIN))
    yield found
    found.stop()


class Place:
    """A node of one test, and pods that go to it alone."""

    def __init__(self, plane: ControlPlane, namespace: str, node: SimulatedNode) -> None:
        self.plane, self.namespace, self.node = plane, namespace, node
        self.capacity = {device.uuid: device.memory_mib for device in node.inventory}
        self.tickets = iter(range(512))

    def pod(self, name, claims, **spec):
        spec = {"nodeSelector": {"for": self.namespace}, **spec}
        made = admitted_pod(name, claims, namespace=self.namespace, ticket=next(self.tickets), **spec)
        return create(self.plane, made)

    def plain(self, name, cpu):
        """A pod of the other profile that asks for processors only."""
        amounts = {"requests": {"cpu": cpu}}
        spec = {
            "schedulerName": PLAIN,
            "nodeSelector": {"for": self.namespace},
            "containers": [{"name": "c", "image": "none", "resources": amounts}],
        }
        metadata = {"name": name, "namespace": self.namespace}
        return create(self.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def books(self):
        found = books_of(self.plane, self.namespace)
        assert not found.overbooked(self.capacity)
        return found

    def bound(self, count, seconds=60.0):
        await_bound(self.plane, self.namespace, count, seconds)
        return self.books()

    def told(self, name):
        wait_until(lambda: self.reasons(name), f"{name} is told why it waits", 60)
        return self.reasons(name)[-1]

    def reasons(self, name):
        return events_of(self.plane, self.namespace, name, "FailedScheduling")

    def changes(self):
        """The pods of which anything changes within a few seconds."""
        watching = f"--request-timeout={QUIET_SECONDS}s"
        return self.plane.kubectl(
            "get", "pods", "-n", self.namespace, "--watch-only", "-o", "name", watching, check=False
        ).split()

    def phases(self):
        found = self.plane.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {pod["status"].get("phase") for pod in found}


@pytest.fixture
def place(
    request: pytest.FixtureRequest, control_plane: ControlPlane, namespace: str, pair: Pair
) -> Iterator[Place]:
    facts = getattr(request, "param", {"devices": 8})
    node = SimulatedNode(f"{namespace}-0", labels={"for": namespace}, **facts)
    add_nodes(control_plane, [node])
    yield Place(control_plane, namespace, node)
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
    remove_nodes(control_plane, [node.name])


def test_row_1_pods_that_are_replaced_never_get_devices_that_another_still_holds(place: Place) -> None:
    chance, live = random.Random(1491), [f"p{i}" for i in range(4)]
    for name in live:
        place.pod(name, whole_devices(2))
    place.bound(4)
    for round_ in range(60):
        gone = live.pop(chance.randrange(4))
        delete(place.plane, place.namespace, gone)
        live.append(f"r{round_}")
        place.pod(live[-1], whole_devices(2))
        wait_until(lambda: live[-1] in place.books().bound, f"{live[-1]} is bound", 30)
        users = place.books().users
        assert {uuid: len(names) for uuid, names in users.items()} == dict.fromkeys(place.capacity, 1)


def test_rows_8_and_9_after_a_burst_on_a_full_node_nothing_is_tried_and_nothing_changes(
    place: Place, pair: Pair
) -> None:
    before = {
        name: pair.metric(f'tessera_bindings_total{{outcome="{name}"}}') for name in ("done", "failed", "lost")
    }
    for i in range(64):
        place.pod(f"p{i}", quarter())
    books = place.bound(32)
    wait_until(lambda: all(place.reasons(name) for name in place.books().waiting), "those that wait are told", 60)
    attempts = pair.metric('tessera_attempts_total{outcome="refused"}')
    assert place.changes() == []
    # Whoever waits is not tried again while nothing is freed; kube-scheduler's own round may come once.
    assert pair.metric('tessera_attempts_total{outcome="refused"}') - attempts <= 32
    books = place.books()
    assert (len(books.bound), len(books.waiting)) == (32, 32)
    after = {name: pair.metric(f'tessera_bindings_total{{outcome="{name}"}}') for name in before}
    assert {name: after[name] - before[name] for name in before} == {"done": 32, "failed": 0, "lost": 0}
    kinds = "pods,configmaps,secrets,leases,replicasets,jobs"
    listed = place.plane.kubectl("get", kinds, "-n", place.namespace, "-o", "name").split()
    assert len([name for name in listed if name.startswith("pod/")]) == 64
    assert not [name for name in listed if not name.startswith(("pod/", "configmap/kube-root-ca.crt"))]


@pytest.mark.parametrize("place", [{"devices": 1}], indirect=True)
def test_row_2_a_device_behind_an_init_container_is_not_shared_and_the_reason_is_told(place: Place) -> None:
    init = [{"name": "fetch", "image": "none"}]
    place.pod("alone", whole_devices(), initContainers=init)
    place.bound(1)
    place.pod("shared", (a_claim(a_share(20_480, 220)),))
    assert "exclusively" in place.told("shared")
    assert place.books().waiting == {"shared"}


def test_row_11_two_kinds_of_pods_that_race_for_one_node_end_bound_or_waiting(place: Place) -> None:
    """200 pods, 64 processors, 8 devices: one kube-scheduler has both profiles, and so one view of the node."""
    for i in range(100):
        place.pod(f"gpu{i}", quarter(), containers=_with_cpu(i))
        place.plain(f"cpu{i}", "1")
    wait_until(lambda: len(place.books().bound) >= 64, "64 processors are taken", 90)
    wait_until(lambda: all(place.reasons(name) for name in place.books().waiting), "the others are told", 90)
    books = place.books()
    assert len(books.bound) == 64
    assert len(books.waiting) == 136
    assert place.phases() == {"Pending"}


def _with_cpu(number: int) -> list[dict]:
    amounts = {f"tessera.dev/ticket-{number // 32:x}": str(number % 32 + 1)}
    resources = {"limits": amounts, "requests": {**amounts, "cpu": "1"}}
    return [{"name": "main", "image": "none", "resources": resources}]


@pytest.mark.parametrize("place", [{"devices": 1, "memory_mib": 24_576}], indirect=True)
def test_row_12_a_pod_that_leaves_holds_its_device_until_it_is_gone(place: Place) -> None:
    """16 GiB leave and 1.5 GiB stay of 24: one of three pods of 5 GiB fits before, all of them afterwards."""
    place.pod("leaving", (a_claim(a_share(16_384)),), terminationGracePeriodSeconds=300)
    place.pod("stays", (a_claim(a_share(1_536)),))
    place.bound(2)
    place.plane.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/leaving")
    assert "deletionTimestamp" in pod_of(place.plane, place.namespace, "leaving")["metadata"]
    for i in range(3):
        place.pod(f"p{i}", (a_claim(a_share(5_120)),))
    wait_until(lambda: sum(bool(place.reasons(f"p{i}")) for i in range(3)) == 2, "two of them are told", 30)
    assert len(place.books().bound) == 3
    delete(place.plane, place.namespace, "leaving")
    assert set(place.bound(4).bound) == {"stays", "p0", "p1", "p2"}


def test_kai_7_a_tainted_node_takes_who_tolerates_it_and_nobody_else(place: Place) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    place.plane.api.merge(f"/api/v1/nodes/{place.node.name}", {"spec": {"taints": [taint]}})
    place.pod("plain", quarter())
    assert "untolerated taint" in place.told("plain")
    tolerance = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    place.pod("tolerant", quarter(), tolerations=[tolerance])
    assert set(place.bound(1).bound) == {"tolerant"}


@pytest.mark.parametrize("place", [{"devices": 1, "memory_mib": 46_068}], indirect=True)
def test_kai_2_twenty_three_of_twenty_four_fit_and_the_last_is_told_what_is_left(place: Place) -> None:
    for i in range(24):
        place.pod(f"p{i}", (a_claim(a_share(2_000)),))
    (waiting,) = place.bound(23).waiting
    assert "asked 2,000 MiB, largest free 68 MiB" in place.told(waiting)
