"""Schedulers that are killed in the middle of their work, judged by the objects of the API."""

import signal
from collections.abc import Iterator

import pytest

from cluster.engine.nodes import SimulatedNode, add_nodes, remove_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from cluster.scheduling import Pair, admitted_pod, await_bound, books_of, create, quarter, start_pair

SECONDS = 90.0


@pytest.fixture
def capacity(control_plane: ControlPlane, namespace: str) -> Iterator[dict[str, int]]:
    """Four nodes of four devices for 64 quarters; the memory of their devices by uuid."""
    nodes = [SimulatedNode(f"{namespace}-{i}", devices=4, labels={"for": namespace}) for i in range(4)]
    add_nodes(control_plane, nodes)
    yield {device.uuid: device.memory_mib for node in nodes for device in node.inventory}
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
    remove_nodes(control_plane, [node.name for node in nodes])


def quarters(plane: ControlPlane, namespace: str, first: int, count: int) -> None:
    """So many pods of a quarter device each."""
    for number in range(first, first + count):
        pod = admitted_pod(
            f"p{number}", quarter(), namespace=namespace, ticket=number, nodeSelector={"for": namespace}
        )
        create(plane, pod)


def agrees(plane: ControlPlane, pair: Pair, namespace: str) -> bool:
    """Whether the scheduler's figures are those of the pods."""
    memory = books_of(plane, namespace).memory
    prefix = f'tessera_device_allocated_memory_bytes{{node="{namespace}-'
    lines = [line for line in pair.get("/metrics")[1].splitlines() if line.startswith(prefix)]
    live = {line.split('device="')[1].split('"')[0]: int(float(line.split()[-1])) >> 20 for line in lines}
    return {uuid: mib for uuid, mib in live.items() if mib} == memory


def test_row_14_a_scheduler_killed_under_load_goes_on_where_the_pods_say(
    control_plane: ControlPlane, namespace: str, capacity: dict[str, int]
) -> None:
    pair = start_pair(control_plane, f"kill-{namespace}")
    try:
        for round_ in range(3):
            quarters(control_plane, namespace, round_ * 16, 16)
            pair.ours.kill(signal.SIGKILL)
            pair.ours.start()
            assert not books_of(control_plane, namespace).overbooked(capacity)
        books = await_bound(control_plane, namespace, 48, SECONDS)
        assert not books.overbooked(capacity)
        wait_until(lambda: agrees(control_plane, pair, namespace), "live figures are those of the pods", SECONDS)
    finally:
        pair.stop()


EVERY_SECOND_ANSWER_IS_LATE = """
import asyncio, itertools
import tessera.scheduler.binder as binder
from tessera.runtime.kube.client import ApiClient
binder.BIND_SECONDS = 1.0
post, turns = ApiClient.post_raw, itertools.count()
async def late(self, *what):
    answer = await post(self, *what)
    await asyncio.sleep(next(turns) % 2 * 5)
    return answer
ApiClient.post_raw = late
"""


def test_bindings_whose_answers_come_too_late_place_nothing_twice(
    control_plane: ControlPlane, namespace: str, capacity: dict[str, int]
) -> None:
    pair = start_pair(control_plane, f"late-{namespace}", before=EVERY_SECOND_ANSWER_IS_LATE)
    try:
        quarters(control_plane, namespace, 0, 48)
        books = await_bound(control_plane, namespace, 48, SECONDS)
        assert not books.overbooked(capacity)
        late = 'tessera_bindings_total{outcome="doubtful"}'
        wait_until(lambda: pair.metric(late) > 0, "an answer came too late", SECONDS)
        wait_until(lambda: agrees(control_plane, pair, namespace), "live figures are those of the pods", SECONDS)
        assert pair.metric("tessera_ledger_repairs_total") == 0
    finally:
        pair.stop()


def test_row_71_another_leader_takes_over_and_no_pod_is_placed_twice(
    control_plane: ControlPlane, namespace: str, capacity: dict[str, int]
) -> None:
    lease = f"default/{namespace}"
    pairs = [start_pair(control_plane, f"{h}-{namespace}", lease=lease, hostname=h) for h in ("host-1", "host-10")]
    try:
        quarters(control_plane, namespace, 0, 16)
        await_bound(control_plane, namespace, 16, SECONDS)
        path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{namespace}"
        holder = control_plane.api.get(path)["spec"]["holderIdentity"].rpartition("_")[0]
        leader, other = sorted(pairs, key=lambda pair: not pair.name.startswith(f"{holder}-"))
        assert leader.get("/readyz")[0] == 200
        wait_until(lambda: "not the leader" in other.get("/readyz")[1], "the other is up, and waits", SECONDS)
        quarters(control_plane, namespace, 16, 16)
        for service in (leader.stock, leader.ours):
            service.kill(signal.SIGKILL)
        quarters(control_plane, namespace, 32, 16)
        books = await_bound(control_plane, namespace, 48, SECONDS)
        assert not books.overbooked(capacity)
        wait_until(lambda: agrees(control_plane, other, namespace), "the new leader knows all", SECONDS)
    finally:
        for pair in pairs:
            pair.stop()


def test_pods_that_ask_for_nothing_of_ours_do_not_need_us(
    control_plane: ControlPlane, namespace: str, capacity: dict[str, int]
) -> None:
    profile = f"scheduler-{namespace}"
    pair = start_pair(control_plane, f"down-{namespace}", profiles=(profile,))
    try:
        pair.ours.kill(signal.SIGKILL)
        spec = {
            "schedulerName": profile,
            "nodeSelector": {"for": namespace},
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "plain", "namespace": namespace},
            "spec": spec,
        }
        create(control_plane, pod)
        await_bound(control_plane, namespace, 1, SECONDS)
    finally:
        pair.stop()
