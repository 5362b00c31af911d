"""Pods that kube-scheduler itself refuses, for processors or for the number of pods, on a real control plane: they
never reach us, and are bound all the same within seconds of a node that joins or grows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.engine.nodes import SimulatedNode, add_nodes, remove_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from cluster.scheduling import (
    Pair,
    admitted_pod,
    await_bound,
    create,
    events_of,
    pod_of,
    quarter,
    start_pair,
)

SECONDS = 30.0
"""kube-scheduler looks at every pod again after 300 s, whatever happened."""

PROCESSORS = "1000"
"""More than any other node of the plane has."""

CRITICAL = "system-cluster-critical"


@pytest.fixture(scope="module")
def pair(control_plane: ControlPlane) -> Iterator[Pair]:
    """Our scheduler and its kube-scheduler."""
    found = start_pair(control_plane)
    yield found
    found.stop()


@contextmanager
def a_node(plane: ControlPlane, namespace: str, **room: str) -> Iterator[SimulatedNode]:
    """A node with two devices and this room."""
    node = SimulatedNode(f"{namespace}-0", devices=2, labels={"for": namespace}, capacity=room)
    add_nodes(plane, [node])
    try:
        yield node
    finally:
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        remove_nodes(plane, [node.name, f"{namespace}-1"])


def a_pod(namespace: str, name: str, processors: str = "1", **spec: Any) -> dict[str, Any]:
    """A pod of HAMi's as our webhook leaves it: with what its user wrote, of which no node has anything."""
    pod = admitted_pod(name, quarter(), namespace=namespace, **spec)
    for amounts in pod["spec"]["containers"][0]["resources"].values():
        amounts.update({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240", "cpu": processors})
    return pod


def await_refused(plane: ControlPlane, namespace: str, name: str, why: str) -> None:
    """Until kube-scheduler has refused the pod for this reason, without asking us."""
    wait_until(
        lambda: any(why in note for note in events_of(plane, namespace, name, "FailedScheduling")),
        f"pod {name} is told: {why}",
        SECONDS,
    )
    assert not events_of(plane, namespace, name, "NotPlaced")


def grow(plane: ControlPlane, node: str, **room: str) -> None:
    """What a kubelet says of a node that has more than before."""
    plane.api.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": room, "allocatable": room}})


def test_a_node_that_grows_wakes_all_that_wait_whatever_their_priority(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace) as node:
        create(control_plane, a_pod(namespace, "low", PROCESSORS))
        create(control_plane, a_pod(namespace, "high", PROCESSORS, priorityClassName=CRITICAL))
        for name in ("low", "high"):
            await_refused(control_plane, namespace, name, "Insufficient cpu")
        grow(control_plane, node.name, cpu="4000")
        books = await_bound(control_plane, namespace, 2, SECONDS)
        assert books.bound == {"low": node.name, "high": node.name}


def test_a_node_that_joins_wakes_a_pod_that_fits_no_other(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace) as small:
        create(control_plane, a_pod(namespace, "waits", PROCESSORS))
        await_refused(control_plane, namespace, "waits", "Insufficient cpu")
        add_nodes(control_plane, [SimulatedNode(f"{namespace}-1", capacity={"cpu": "4000"})])
        books = await_bound(control_plane, namespace, 1, SECONDS)
        assert books.bound["waits"] != small.name


def test_a_node_that_takes_more_pods_wakes_one_that_was_too_many(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace, pods="1") as node:
        for name in ("first", "second"):
            create(control_plane, a_pod(namespace, name, nodeSelector={"for": namespace}))
            if name == "first":
                await_bound(control_plane, namespace, 1, SECONDS)
        await_refused(control_plane, namespace, "second", "Too many pods")
        grow(control_plane, node.name, pods="2")
        await_bound(control_plane, namespace, 2, SECONDS)


def test_nothing_is_left_on_a_pod_that_was_woken_in_vain(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace) as node:
        create(control_plane, a_pod(namespace, "waits", PROCESSORS))
        await_refused(control_plane, namespace, "waits", "Insufficient cpu")
        before = pair.metric("tessera_wakes_total")
        grow(control_plane, node.name, cpu="65")
        wait_until(lambda: pair.metric("tessera_wakes_total") > before, "kube-scheduler was told", SECONDS)
        pod = pod_of(control_plane, namespace, "waits")
        assert "nominatedNodeName" not in pod["status"]
        assert not pod["spec"].get("nodeName")
