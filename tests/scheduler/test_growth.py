"""Nodes that join or grow: which pods are woken then, and what is left on them."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.world import a_kube_pod, a_pod, a_state, place, share
from tessera.core.errors import TesseraError
from tessera.core.ticket import RESOURCES
from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError
from tessera.scheduler.facts import MARK, Facts, PodFacts
from tessera.scheduler.growth import Growth, grew, room_of
from tessera.scheduler.offers import FULL
from tessera.scheduler.state import State
from tessera.scheduler.waker import PAUSE_SECONDS, Waker
from tessera.wire.kube.objects import KubePod

# what is growth


@pytest.mark.parametrize(
    ("before", "now", "more"),
    [
        ({"cpu": "8"}, {"cpu": "8"}, False),
        ({"cpu": "8"}, {"cpu": "8000m"}, False),
        ({"cpu": "8"}, {"cpu": "8500m"}, True),
        ({"memory": "1Gi"}, {"memory": "1025Mi"}, True),
        ({"memory": "1Gi", "pods": "110"}, {"memory": "512Mi", "pods": "111"}, True),
        ({"cpu": "8", "memory": "1Gi"}, {"cpu": "7"}, False),
        ({"cpu": "8"}, {"cpu": "8", "rdma/hca": "1"}, True),
        ({"cpu": "8"}, {"cpu": "nonsense"}, False),
        ({}, {"nvidia.com/gpu": "8", "nvidia.com/gpumem": "1"}, False),
        ({}, dict.fromkeys(RESOURCES, "2048"), False),
    ],
)
def test_a_node_grew_where_it_has_more_of_what_kube_scheduler_counts(
    before: dict[str, str], now: dict[str, str], more: bool
) -> None:
    assert grew(room_of(before), room_of(now)) is more


@given(st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "x.y/z"]), st.integers(0, 9).map(str)))
def test_a_node_never_grows_from_what_it_is(amounts: dict[str, str]) -> None:
    assert not grew(room_of(amounts), room_of(dict(reversed(amounts.items()))))


def test_a_node_that_is_back_has_joined() -> None:
    growth = Growth()
    for room, due in ((room_of({"cpu": "8"}), True), (room_of({"cpu": "8"}), False), (None, False)):
        growth.due = False
        growth.set_node("n0", room)
        assert growth.due is due
    growth.set_node("n0", room_of({"cpu": "8"}))
    assert growth.due


# whom it is for


def waiting(name: str, priority: int = 0, scheduler: str = "ours") -> PodFacts:
    return msgspec.structs.replace(a_pod(name, share()), priority=priority, scheduler=scheduler)


def nobody(_: str) -> None:
    return None


def test_one_pod_of_the_highest_priority_for_each_kube_scheduler() -> None:
    growth = Growth()
    for pod in (waiting("low"), waiting("high", 10), waiting("middle", 5), waiting("other", 1, "another")):
        growth.put(pod)
    assert [pod.name for pod in growth.foremost(nobody)] == ["high", "other"]


def test_pods_that_leave_are_being_bound_or_expected_elsewhere_are_passed_by() -> None:
    growth = Growth()
    leaving = msgspec.structs.replace(waiting("leaving", 10), leaving=True)
    expected = msgspec.structs.replace(waiting("expected", 7), nominated="n7")
    for pod in (leaving, expected, waiting("held", 5), waiting("waits")):
        growth.put(pod)
    assert [pod.name for pod in growth.foremost({"uid-held": True}.get)] == ["waits"]
    growth.drop("uid-waits")
    assert growth.foremost({"uid-held": True}.get) == ()


# what is written


class World:
    """A state with one node, an API server with the pods that wait, and who wakes them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.api = MemoryCluster(wall=self.clock.wall)
        self.state: State = a_state({"n0": 1})
        self.waker = Waker(self.state, self.api, "tessera-system", self.clock)
        self.state.growth.due = False

    async def pod(self, name: str, priority: int = 0) -> dict[str, Any]:
        raw = msgspec.to_builtins(a_kube_pod(name, share(), spec={"priority": priority}))
        meta = {key: raw["metadata"][key] for key in ("name", "annotations", "labels")}
        body = {"metadata": meta, "spec": {key: value for key, value in raw["spec"].items() if value}}
        made: dict[str, Any] = await self.api.create(PODS, body, dict, namespace="team")
        await self.see(name)
        return made

    async def see(self, name: str) -> None:
        """The watch has come to the pod as it is."""
        pod = await self.api.get(PODS, name, KubePod, namespace="team")
        self.state.saw_pod(None, Facts().of(pod), self.clock.monotonic())

    async def nominated(self, name: str) -> str:
        pod = await self.api.get(PODS, name, dict, namespace="team")
        return str(pod["status"].get("nominatedNodeName") or "")

    def grow(self) -> None:
        self.state.saw_node("n0", {}, FULL, (("cpu", f"{self.clock.monotonic() + 1}"),))

    def writes(self) -> list[str]:
        return [call.name for call in self.api.calls if call.verb == "patch"]


def test_growth_marks_the_foremost_pod_and_takes_the_mark_off_again() -> None:
    async def scenario() -> None:
        world = World()
        for name, priority in (("low", 0), ("high", 10)):
            await world.pod(name, priority)
        before = world.api.history.revision
        world.grow()
        assert await world.waker.turn() == 1
        changed = [change.after or {} for change in world.api.history.since(before)]
        assert [pod["metadata"]["name"] for pod in changed] == ["high", "high"]
        assert [pod["status"].get("nominatedNodeName") for pod in changed] == [MARK, None]

    asyncio.run(scenario())


def test_nothing_is_written_where_no_node_grew_or_no_pod_waits() -> None:
    async def scenario() -> None:
        world = World()
        world.grow()
        assert await world.waker.turn() == 0
        await world.pod("late")
        assert await world.waker.turn() == 0  # kube-scheduler saw the node before it saw the pod
        assert world.writes() == []

    asyncio.run(scenario())


def test_nothing_is_written_for_a_pod_that_is_about_to_be_bound() -> None:
    async def scenario() -> None:
        world = World()
        pod = a_pod("placed", share())
        world.state.saw_pod(None, pod, 0.0)
        assert place(world.state, pod) == "n0"
        world.grow()
        assert await world.waker.turn() == 0
        assert world.writes() == []

    asyncio.run(scenario())


def test_a_thousand_nodes_that_join_cost_two_writes_in_a_pause() -> None:
    async def scenario() -> None:
        world = World()
        await world.pod("a")
        for number in range(1000):
            world.state.saw_node(f"joined-{number}", {}, room=(("cpu", "8"),))
            await world.waker.turn()
        assert len(world.writes()) == 2
        await world.clock.advance(PAUSE_SECONDS)
        await world.waker.turn()
        assert len(world.writes()) == 4
        await world.clock.advance(60)
        assert await world.waker.turn() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fault",
    [ConnectionLostError("reset"), ApiError(403, "Forbidden", "no right to pods/status"), ApiError(500, "E", "e")],
)
def test_a_mark_that_could_not_be_taken_off_is_found_on_the_pod_and_taken_off(fault: TesseraError) -> None:
    async def scenario() -> None:
        world = World()
        await world.pod("a")
        world.grow()
        world.api.fail(Fault("patch", PODS, error=fault, after=1))
        assert await world.waker.turn() == 0
        assert await world.nominated("a") == MARK
        await world.see("a")
        restarted = Waker(world.state, world.api, "tessera-system", world.clock)
        world.state.growth.due = False  # what the process knew is gone with it
        assert await restarted.turn() == 1
        assert await world.nominated("a") == ""
        await world.see("a")
        await world.clock.advance(60)
        assert await restarted.turn() == 0

    asyncio.run(scenario())


def test_a_nomination_by_somebody_else_is_left_alone() -> None:
    async def scenario() -> None:
        world = World()
        await world.pod("a")
        status = {"status": {"nominatedNodeName": "n7"}}
        await world.api.patch(PODS, "a", status, dict, namespace="team", subresource="status")
        await world.see("a")
        world.grow()
        assert await world.waker.turn() == 0
        assert await world.nominated("a") == "n7"

    asyncio.run(scenario())


def test_a_pod_that_was_made_anew_under_its_name_is_not_marked_for_the_old_one() -> None:
    async def scenario() -> None:
        world = World()
        await world.pod("a")
        await world.api.delete(PODS, "a", namespace="team")
        raw = {"metadata": {"name": "a"}, "spec": {}}
        await world.api.create(PODS, raw, dict, namespace="team")
        world.grow()
        assert await world.waker.turn() == 0
        assert await world.nominated("a") == ""
        await world.see("a")
        assert world.state.growth.due  # and tried again, with the pods of then

    asyncio.run(scenario())
