"""Pods that wait for tickets, on a real control plane: nothing but a change of the node itself wakes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster.engine.nodes import SimulatedNode, add_nodes, offer_tickets, publish_devices, remove_nodes
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
)
from tessera.core.ticket import RESOURCES
from tessera.scheduler.offers import NO_TICKETS, USED_UP
from tessera.scheduler.refusals import NO_AGENT

SECONDS = 20.0
"""kube-scheduler looks at every pod again after 300 s, whatever happened."""

NONE = dict.fromkeys(RESOURCES, "0")


@pytest.fixture(scope="module")
def pair(control_plane: ControlPlane) -> Iterator[Pair]:
    """Our scheduler and its kube-scheduler."""
    found = start_pair(control_plane)
    yield found
    found.stop()


@contextmanager
def a_node(plane: ControlPlane, namespace: str, devices: int = 2, **capacity: str) -> Iterator[SimulatedNode]:
    """A node that only this test's pods go to; ``capacity`` by the last character of a ticket resource."""
    amounts = {f"tessera.dev/ticket-{key}": amount for key, amount in capacity.items()}
    node = SimulatedNode(f"{namespace}-0", devices=devices, labels={"for": namespace}, capacity=amounts)
    add_nodes(plane, [node])
    try:
        yield node
    finally:
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        remove_nodes(plane, [node.name])


def a_pod(namespace: str, name: str, ticket: int) -> dict[str, Any]:
    """A pod of HAMi's as our webhook leaves it: with what its user wrote, of which no node has anything."""
    pod = admitted_pod(name, quarter(), namespace=namespace, ticket=ticket, nodeSelector={"for": namespace})
    for amounts in pod["spec"]["containers"][0]["resources"].values():
        amounts.update({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240"})
    return pod


def await_told(plane: ControlPlane, namespace: str, name: str, why: str) -> None:
    """Until kube-scheduler's event on the pod says so."""
    wait_until(
        lambda: any(f"1 {why}" in note for note in events_of(plane, namespace, name, "FailedScheduling")),
        f"pod {name} is told: {why}",
        SECONDS,
    )


def test_a_pod_that_was_there_before_any_agent_is_bound_when_one_comes(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace, devices=0) as node:
        create(control_plane, a_pod(namespace, "early", 100))
        await_told(control_plane, namespace, "early", NO_AGENT)
        publish_devices(control_plane, SimulatedNode(node.name, devices=1))
        await_told(control_plane, namespace, "early", NO_TICKETS)
        offer_tickets(control_plane, node.name)
        await_bound(control_plane, namespace, 1, SECONDS)


def test_a_pod_that_came_while_the_agent_was_away_is_bound_when_it_is_back(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace) as node:
        create(control_plane, a_pod(namespace, "before", 100))
        await_bound(control_plane, namespace, 1, SECONDS)
        offer_tickets(control_plane, node.name, NONE)
        create(control_plane, a_pod(namespace, "while", 101))
        await_told(control_plane, namespace, "while", NO_TICKETS)
        assert books_of(control_plane, namespace).waiting == {"while"}
        offer_tickets(control_plane, node.name)
        await_bound(control_plane, namespace, 2, SECONDS)


def test_a_pod_whose_tickets_are_used_up_waits_until_others_end(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    with a_node(control_plane, namespace, **{"3": "10"}):
        create(control_plane, a_pod(namespace, "first", 3 * 32 + 7))  # 8 of ticket-3
        await_bound(control_plane, namespace, 1, SECONDS)
        create(control_plane, a_pod(namespace, "second", 3 * 32 + 2))  # 3 of it
        await_told(control_plane, namespace, "second", USED_UP[3])
        create(control_plane, a_pod(namespace, "third", 4 * 32 + 2))
        await_bound(control_plane, namespace, 2, SECONDS)
        assert books_of(control_plane, namespace).waiting == {"second"}
        delete(control_plane, namespace, "first")
        wait_until(lambda: "second" in books_of(control_plane, namespace).bound, "the other is bound", SECONDS)


def test_tickets_on_another_schedulers_pods_are_that_schedulers_business_and_counted(
    control_plane: ControlPlane, namespace: str, pair: Pair
) -> None:
    """A kube-scheduler that knows nothing of us refuses and binds as it ever did."""
    with a_node(control_plane, namespace, **{"3": "0"}) as node:
        stranger = admitted_pod("stranger", quarter(), namespace=namespace, ticket=3 * 32 + 7)
        stranger["spec"] |= {"schedulerName": "default-scheduler", "nodeSelector": {"for": namespace}}
        del stranger["metadata"]["annotations"]
        create(control_plane, stranger)
        await_told(control_plane, namespace, "stranger", "Insufficient tessera.dev/ticket-3")
        offer_tickets(control_plane, node.name, {"tessera.dev/ticket-3": "10"})
        await_bound(control_plane, namespace, 1, SECONDS)
        assert pod_of(control_plane, namespace, "stranger")["spec"]["nodeName"] == node.name
        create(control_plane, a_pod(namespace, "ours", 3 * 32 + 2))
        await_told(control_plane, namespace, "ours", USED_UP[3])
