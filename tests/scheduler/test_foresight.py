"""What the scheduler expects to come is what came; the CPU of nodes is weighed, and never a reason."""

import asyncio

import pytest

from scheduler.test_process import World, play
from scheduler.world import FULL, a_pod, a_state, share
from tessera.core.request import Pod
from tessera.policy.target import PRIOR, Kind
from tessera.scheduler.debug import expectations
from tessera.scheduler.foresight import Foresight, foreseen
from tessera.scheduler.state import Chosen, State
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus

LOOKS = 500
"""Looks at what another thread does, each a hundredth of a second after the other."""


def a_busy_state() -> State:
    """One node of two devices and 16 cores."""
    state = a_state({"n0": 2}, policy="pwr+")
    state.saw_node("n0", {}, FULL, cpu_milli=16_000)
    state.rebuild()
    return state


def cpu_left(state: State) -> int:
    """Milli-cores that policies take to be left on the first node, as of the next decision."""
    state.filter(a_pod("asks", share(compute=10)), ["n0"], 0.0)
    return int(state.fleet.cpu[0] - state.view().usage.cpu[0])


def test_a_pod_counts_once_however_often_it_is_seen():
    state = a_state(policy="pwr+")
    pod = a_pod("a", share(compute=300))
    for _ in range(3):
        state.saw_pod(None, pod, 0.0)
    state.foresight.learn(state.fleet)
    assert state.foresight.workload.seen == 1
    assert Kind(0, 340, 1) in state.foresight.workload.counts()  # 8 GiB of 24 are 334 milli, rounded up to 340


def test_the_cpu_of_all_pods_of_a_node_is_weighed_whoever_placed_them():
    state = a_busy_state()
    assert cpu_left(state) == 16_000
    other = a_pod("other", node="n0", resources={"cpu": "2500m"})
    state.saw_pod(None, other, 0.0)
    assert cpu_left(state) == 13_500
    state.saw_pod(other, None, 0.0)
    assert cpu_left(state) == 16_000


def test_what_is_reserved_is_weighed_and_a_repair_forgets_nothing():
    state = a_busy_state()
    mine = a_pod("mine", share(compute=300), resources={"cpu": "4"})
    state.saw_pod(None, mine, 0.0)
    assert state.filter(mine, ["n0"], 0.0) == Chosen("n0")
    assert cpu_left(state) == 12_000
    state.repair(1.0)
    assert cpu_left(state) == 12_000


def test_cpu_is_no_reason_of_ours():
    """kube-scheduler has checked it, by newer knowledge than ours."""
    state = a_busy_state()
    state.saw_pod(None, a_pod("other", node="n0", resources={"cpu": "16"}), 0.0)
    mine = a_pod("mine", share(compute=300), resources={"cpu": "4"})
    assert state.filter(mine, ["n0"], 0.0) == Chosen("n0")


def test_a_fleet_of_the_same_models_keeps_its_prices_and_another_is_weighed_anew():
    foresight, fleet = Foresight(), a_state({"n0": 2}).fleet
    outlook = foresight.onto(fleet, a_state({"n1": 8}).holdings.index.outlook)
    assert foresight.onto(a_state({"n0": 2, "n1": 8}).fleet, outlook).worth is outlook.worth
    state = a_state({"n0": 1})
    state.saw_gpu_node(
        "other",
        GPUNodeStatus(devices=(DeviceFacts(uuid="u", index=0, model="T4", memory_mib=1, vendor="NVIDIA"),)),
    )
    state.rebuild()
    assert state.holdings.index.outlook.models == ("A100", "T4")


def test_a_new_outlook_has_what_came_and_a_new_generation():
    state = a_state(policy="pwr+")
    for number in range(60):
        state.foresight.saw(
            Pod("team", str(number), str(number), (), state.requests.of(a_pod("a", share()).request))
        )
    state.foresight.learn(state.fleet)
    assert state.foresight.due
    before = state.holdings.index.outlook
    after = foreseen(state.view(), before, *state.foresight.task(before))
    assert after.generation > before.generation
    assert not state.foresight.due
    often = max(dict(after.kinds), key=dict(after.kinds).__getitem__)
    assert (often.milli, often.count) == (340, 1)
    state.holdings.index.outlook = after
    shown = expectations(state)
    assert (shown["podsSeen"], shown["policy"]["node"]) == (60, "pwr+")
    assert shown["kinds"][0]["milli"] == 340


def test_the_process_expects_what_came_within_a_tick():
    async def scenario(world: World) -> None:
        for number in range(60):
            await world.pod(f"p{number}", share())
        for _ in range(LOOKS):
            await world.pass_time(0.5)
            outlook = world.state.holdings.index.outlook
            if dict(outlook.kinds).keys() - PRIOR.keys():
                return
            await asyncio.sleep(0.01)
        pytest.fail("nothing was learned")

    play(scenario, n0=2)
