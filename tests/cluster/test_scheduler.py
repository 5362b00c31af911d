"""The scheduler on a real control plane, beside a real kube-scheduler, judged by the objects of the API."""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from builders import a_claim, a_share
from cluster.engine.nodes import SimulatedNode, add_nodes, open_session, remove_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from cluster.scheduling import (
    Books,
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
from tessera.core.ticket import TICKETS
from tessera.wire.kube.names import API_VERSION


@pytest.fixture(scope="module")
def pair(control_plane: ControlPlane) -> Iterator[Pair]:
    """Our scheduler and its kube-scheduler, for the tests of this file that leave them alone."""
    found = start_pair(control_plane)
    yield found
    found.stop()


@contextmanager
def nodes_of(plane: ControlPlane, namespace: str, count: int, **facts: Any) -> Iterator[dict[str, int]]:
    """Nodes that only this test's pods go to; the memory of their devices by uuid."""
    labels = {"for": namespace, **facts.pop("labels", {})}
    nodes = [SimulatedNode(f"{namespace}-{i}", labels={**labels}, **facts) for i in range(count)]
    add_nodes(plane, nodes)
    try:
        yield {device.uuid: device.memory_mib for node in nodes for device in node.inventory}
    finally:
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        remove_nodes(plane, [node.name for node in nodes])


def here(namespace: str, **spec: Any) -> dict[str, Any]:
    """The spec that keeps a pod on the nodes of its test."""
    return {"nodeSelector": {"for": namespace}, **spec}


def create_all(plane: ControlPlane, pods: Iterable[Mapping[str, Any]]) -> None:
    """Create these pods, many at once."""

    async def work() -> None:
        async with open_session(plane) as session:
            await session.each(
                pods,
                lambda pod: session.call("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod),
            )

    asyncio.run(work())


def told(plane: ControlPlane, namespace: str, books: Books) -> bool:
    """Whether every pod that waits was told why."""
    return all(events_of(plane, namespace, name, "FailedScheduling") for name in books.waiting)


def pods_of_sizes(namespace: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Fractions of all sizes, and whole devices."""
    chance = random.Random(seed)
    sizes = ((5_120, 125), (10_240, 250), (20_480, 500), (12_000, 0), (30_720, 750), (40_960, 1000))
    pods = []
    for number in range(count):
        memory, compute = chance.choice(sizes)
        claims = whole_devices(chance.choice((1, 2))) if number % 12 == 0 else (a_claim(a_share(memory, compute)),)
        pods.append(
            admitted_pod(f"p{number}", claims, namespace=namespace, ticket=number % TICKETS, **here(namespace))
        )
    return pods


def test_fractions_of_all_sizes_are_bound_and_never_overbooked(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 6, devices=4) as capacity:
        create_all(control_plane, pods_of_sizes(namespace, 120, seed=1))
        wait_until(
            lambda: told(control_plane, namespace, books_of(control_plane, namespace)), "all bound or told why"
        )
        books = books_of(control_plane, namespace)
        assert not books.overbooked(capacity)
        assert len(books.bound) > 30
        # The fleet is full for what still waits: nothing was left idle that a quarter could have used.
        wait_until(lambda: pair.metric("tessera_reservations") == 0, "no reservation is left")
        assert pair.metric("tessera_ledger_drift") == 0


def test_row_8_a_burst_of_quarters_fills_eight_devices_exactly(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=8) as capacity:
        pods = [
            admitted_pod(f"p{i}", quarter(), namespace=namespace, ticket=i, **here(namespace)) for i in range(64)
        ]
        create_all(control_plane, pods)
        await_bound(control_plane, namespace, 32)
        wait_until(
            lambda: told(control_plane, namespace, books_of(control_plane, namespace)), "those that wait are told"
        )
        books = books_of(control_plane, namespace)
        assert (len(books.bound), len(books.waiting)) == (32, 32)
        assert not books.overbooked(capacity)
        assert {uuid: len(users) for uuid, users in books.users.items()} == dict.fromkeys(capacity, 4)


def test_row_83_a_hundred_pods_aimed_at_one_node_are_all_bound(
    control_plane: ControlPlane, namespace: str, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time is told and not asserted: it is the machine's too."""
    with nodes_of(control_plane, namespace, 1, devices=8):
        share = (a_claim(a_share(2_560, 62)),)
        pods = [admitted_pod(f"p{i}", share, namespace=namespace, ticket=i, **here(namespace)) for i in range(100)]
        began = time.monotonic()
        create_all(control_plane, pods)
        await_bound(control_plane, namespace, 100, seconds=30)
        took = time.monotonic() - began
    with capsys.disabled():
        sys.stdout.write(f"\nrow 83: 100 pods aimed at one node, all bound after {took:.1f} s\n")


def test_a_ticket_in_use_holds_a_pod_back_until_the_kubelet_has_taken_the_other_in(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=8):
        for name in ("first", "second"):
            pod = admitted_pod(name, quarter(), namespace=namespace, ticket=77, **here(namespace))
            create(control_plane, pod)
            if name == "first":
                await_bound(control_plane, namespace, 1)
        wait_until(lambda: bool(events_of(control_plane, namespace, "second", "FailedScheduling")), "told why")
        assert "ticket 77 is in use there" in events_of(control_plane, namespace, "second", "FailedScheduling")[0]
        status = {"status": {"phase": "Running"}}
        control_plane.api.merge(f"/api/v1/namespaces/{namespace}/pods/first/status", status)
        await_bound(control_plane, namespace, 2, seconds=30)


def test_a_pod_deleted_and_made_again_under_its_name_is_another_pod(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=1) as capacity:
        for round_ in range(5):
            pod = admitted_pod("again", whole_devices(), namespace=namespace, ticket=round_, **here(namespace))
            create(control_plane, pod)
            await_bound(control_plane, namespace, 1, seconds=30)
            assert not books_of(control_plane, namespace).overbooked(capacity)
            delete(control_plane, namespace, "again")


def test_what_an_eviction_frees_is_used_within_seconds(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=1):
        for number, name in enumerate(("first", "second")):
            pod = admitted_pod(name, whole_devices(), namespace=namespace, ticket=number, **here(namespace))
            create(control_plane, pod)
            if name == "first":
                await_bound(control_plane, namespace, 1)
        wait_until(lambda: bool(events_of(control_plane, namespace, "second", "FailedScheduling")), "told why")
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "first", "namespace": namespace},
            "deleteOptions": {"gracePeriodSeconds": 0},
        }
        control_plane.api.post(f"/api/v1/namespaces/{namespace}/pods/first/eviction", eviction)
        wait_until(lambda: "second" in books_of(control_plane, namespace).bound, "the other is bound", 30)


def test_a_pod_that_waits_reads_well(control_plane: ControlPlane, namespace: str, pair: Pair) -> None:
    with nodes_of(control_plane, namespace, 2, devices=2):
        pod = admitted_pod("big", (a_claim(a_share(50_000)),), namespace=namespace, **here(namespace))
        create(control_plane, pod)
        wait_until(lambda: bool(events_of(control_plane, namespace, "big", "NotPlaced")), "NotPlaced", 30)
        text = control_plane.kubectl("describe", "pod", "-n", namespace, "big")
        assert "2 GPU memory: asked 50,000 MiB, largest free 40,960 MiB" in text
        assert (
            "none of 2 candidate nodes can take it: GPU memory: asked 50,000 MiB, largest free 40,960 MiB (2). "
            "What would place it now: lower memory to 40,960 MiB." in text
        )


def test_an_inventory_that_appears_is_used_within_seconds(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=1):
        name = f"{namespace}-0"
        path = f"/apis/{API_VERSION}/gpunodes/{name}"
        status = control_plane.api.get(path)["status"]
        wait_until(lambda: f'node="{name}"' in pair.get("/metrics")[1], "the inventory is seen")
        control_plane.api.merge(f"{path}/status", {"status": {"devices": []}})
        wait_until(lambda: pair.lacks(f'node="{name}"'), "the empty inventory is seen")
        create(control_plane, admitted_pod("a", quarter(), namespace=namespace, **here(namespace)))
        wait_until(lambda: bool(events_of(control_plane, namespace, "a", "FailedScheduling")), "told why")
        assert "no GPU on this node" in events_of(control_plane, namespace, "a", "FailedScheduling")[0]
        control_plane.api.merge(f"{path}/status", {"status": status})
        await_bound(control_plane, namespace, 1, seconds=20)


def test_whole_device_users_of_another_scheduler_are_counted(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=2, capacity={"nvidia.com/gpu": "2"}) as capacity:
        amount = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
        stranger = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stranger", "namespace": namespace},
            "spec": here(namespace, containers=[{"name": "c", "image": "none", "resources": amount}]),
        }
        create(control_plane, stranger)
        await_bound(control_plane, namespace, 1)
        wait_until(lambda: bool(events_of(control_plane, namespace, "stranger", "NotAdmitted")), "reported")
        for number in range(5):
            pod = admitted_pod(f"p{number}", quarter(), namespace=namespace, ticket=number, **here(namespace))
            create(control_plane, pod)
        wait_until(lambda: bool(events_of(control_plane, namespace, "p4", "FailedScheduling")), "told why")
        books = books_of(control_plane, namespace)
        assert len(books.bound) == 1 + 4
        assert {uuid: len(users) for uuid, users in books.users.items()} == {sorted(capacity)[1]: 4}


def test_a_pod_that_slipped_past_admission_is_told_so(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=1):
        pod = admitted_pod("late", quarter(), namespace=namespace, **here(namespace))
        del pod["metadata"]["annotations"]
        create(control_plane, pod)
        wait_until(lambda: bool(events_of(control_plane, namespace, "late", "FailedScheduling")), "told why")
        (note, *_) = events_of(control_plane, namespace, "late", "FailedScheduling")
        assert "was created before Tessera's webhook admitted it: delete and create it again" in note


def test_soft_anti_affinity_is_honoured_against_packing(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    term = {
        "labelSelector": {"matchLabels": {"app": "web"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    soft = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    with nodes_of(control_plane, namespace, 3, devices=4):
        spec = here(namespace, affinity={"podAntiAffinity": soft})
        for i in range(3):
            pod = admitted_pod(f"p{i}", quarter(), namespace=namespace, ticket=i, labels={"app": "web"}, **spec)
            create(control_plane, pod)
        books = await_bound(control_plane, namespace, 3)
        assert len(set(books.bound.values())) == 3


def test_the_allocation_comes_with_the_binding_and_lists_the_ticket(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with nodes_of(control_plane, namespace, 1, devices=1):
        create(control_plane, admitted_pod("a", quarter(), namespace=namespace, ticket=9, **here(namespace)))
        await_bound(control_plane, namespace, 1)
        record = json.loads(
            pod_of(control_plane, namespace, "a")["metadata"]["annotations"]["tessera.dev/allocation"]
        )
        assert record["tickets"] == {"main": 9}
        assert record["containers"]["main"][0]["uuid"] == f"GPU-{namespace}-0-0"


def test_only_whom_kubernetes_lets_may_read_the_debug_pages(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    assert pair.get("/debug/ledger")[0] == 401
    token = control_plane.token_for(namespace, "default")
    assert pair.get("/debug/ledger", token)[0] == 403
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"debug-{namespace}"},
        "rules": [{"nonResourceURLs": ["/debug/tickets"], "verbs": ["get"]}],
    }
    control_plane.api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"debug-{namespace}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"debug-{namespace}"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    control_plane.api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    wait_until(lambda: pair.get("/debug/tickets", token)[0] == 200, "the right takes effect", 30)
    msgspec.json.decode(pair.get("/debug/tickets", token)[1], type=dict[str, dict[str, list[str]]])
