"""Rows of the list of users' pains (1.1, 1.10) that a decision alone can show, by their numbers."""

import random

import msgspec

from builders import a_claim
from scheduler.world import (
    GIB,
    a_pod,
    a_state,
    allocation_of,
    devices_of,
    exclusively,
    free_memory,
    gpus,
    place,
    run_pod,
    share,
)
from tessera.core.request import ContainerKind
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.core.units import Milli


def test_row_1_live_exclusive_pods_never_share_a_device() -> None:
    state, chance = a_state({"n0": 8}), random.Random(1)
    live = {f"p{i}": run_pod(state, a_pod(f"p{i}", exclusively(2))) for i in range(4)}
    for round_ in range(1000):
        gone = chance.choice(sorted(live))
        state.saw_pod(live.pop(gone), None, 0.0)
        name = f"r{round_}"
        live[name] = run_pod(state, a_pod(name, exclusively(2)))
        held = [uuid for pod in live.values() for uuid in devices_of(state, pod.uid)]
        assert len(held) == len(set(held)) == 8


def test_row_2_an_exclusive_pod_with_an_init_container_keeps_everybody_off() -> None:
    state = a_state({"n0": 1})
    spec = {"initContainers": [{"name": "init"}]}
    run_pod(state, a_pod("a", exclusively(), spec=spec))
    for _ in range(3):
        state.rebuild()
    assert place(state, a_pod("b", share(1))) is None


def test_row_3_a_pod_of_three_containers_takes_three_slots() -> None:
    state = a_state({"n0": 1})
    status = gpus("n0", 1)
    four = msgspec.structs.replace(status.devices[0], slots=4)
    state.saw_gpu_node("n0", msgspec.structs.replace(status, devices=(four,)))
    state.rebuild()
    run_pod(state, a_pod("a", *(share(GIB, containers=c) for c in ("x", "y", "z"))))
    assert place(state, a_pod("b", share(GIB))) == "n0"
    assert place(state, a_pod("c", share(GIB))) is None


def test_row_4_the_allocation_names_exactly_the_devices_that_were_chosen() -> None:
    state = a_state({"n0": 8})
    pod = run_pod(state, a_pod("a", exclusively(8)))
    record = msgspec.json.decode(allocation_of(pod))
    assert [grant["uuid"] for grant in record["containers"]["main"]] == [f"n0-{i}" for i in range(8)]


def test_row_5_three_pods_on_a_device_for_two_bind_two() -> None:
    state = a_state({"n0": 1})
    assert [place(state, a_pod(f"p{i}", share(12 * GIB))) for i in range(3)] == ["n0", "n0", None]


def test_row_6_no_device_is_as_large_as_the_request() -> None:
    state = a_state({"n0": 2}, memory=7 * GIB)
    assert place(state, a_pod("a", share(8 * GIB))) is None


def test_row_7_five_pods_fit_four_devices_of_which_each_takes_two() -> None:
    state = a_state({"n0": 4}, memory=23 * GIB)
    assert [place(state, a_pod(f"p{i}", share(10 * GIB))) for i in range(9)] == ["n0"] * 8 + [None]


def test_row_16_percent_of_memory_is_booked_in_mib() -> None:
    state = a_state({"n0": 1})
    fifth = MemoryFraction(Milli(200))
    spec = ShareSpec(fifth, fifth, ComputeMilli(Milli(0)), ComputeMilli(Milli(0)))
    placed = [place(state, a_pod(f"p{i}", a_claim(spec))) for i in range(6)]
    assert placed == ["n0"] * 5 + [None]
    assert free_memory(state, "n0-0") == 24 * GIB - 5 * 4915


def test_row_18_a_full_device_does_not_end_the_search() -> None:
    state = a_state({"n0": 2})
    run_pod(state, a_pod("a", exclusively()))
    assert place(state, a_pod("b", share())) == "n0"
    assert devices_of(state, "uid-b") == {"n0-1"}


def test_row_82_an_init_container_and_the_app_container_take_turns_on_a_device() -> None:
    state = a_state({"n0": 1})
    one, two = ({"limits": {"tessera.dev/ticket-1": quantity}} for quantity in ("3", "4"))
    spec = {
        "initContainers": [{"name": "init", "resources": one}],
        "containers": [{"name": "main", "resources": two}],
    }
    pod = a_pod("a", share(20 * GIB, containers="init"), share(16 * GIB), spec=spec)
    assert [container.kind for container in pod.containers] == [ContainerKind.INIT, ContainerKind.APP]
    assert place(state, pod) == "n0"
    assert free_memory(state, "n0-0") == 4 * GIB
