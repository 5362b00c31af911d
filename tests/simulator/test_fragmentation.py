"""Fragmentation by hand, and kept up over a run."""

import numpy as np

from simulator.worlds import node, pod, run
from tessera.core.fleet import Fleet
from tessera.policy.target import Kind
from tessera.simulator.ending import idle_parts
from tessera.simulator.engine import Rules
from tessera.simulator.fragmentation import States, fragmentation, over_time, workload_of

NODES = [node("a", 2), node("b", 1, model="T4")]
FLEET = Fleet(NODES)


def of(kinds: dict[Kind, int], row: int, left: list[int], cpu: int) -> int:
    states = States(np.array([row]), np.array([left]), np.array([cpu]))
    return int(fragmentation(FLEET, workload_of(kinds, FLEET.models), states)[0])


def test_a_kind_that_runs_wastes_what_is_left_on_devices_too_small_for_it():
    assert of({Kind(1000, 500, 1): 1}, 0, [600, 300], 4000) == 300


def test_a_kind_that_cannot_run_wastes_everything_idle():
    for kind in (
        Kind(1000, 700, 1),  # no device has 700
        Kind(1000, 300, 3),  # there are two devices
        Kind(5000, 500, 1),  # 4 cores are left
        Kind(1000, 500, 1, ("T4",)),  # these are A100
        Kind(1000, 0, 0),  # asks for no device
    ):
        assert of({kind: 1}, 0, [600, 300], 4000) == 900, kind


def test_kinds_count_as_often_as_they_come():
    assert of({Kind(1000, 500, 1): 3, Kind(1000, 700, 1): 1}, 0, [600, 300], 4000) == 3 * 300 + 900


def test_what_is_kept_up_equals_what_is_worked_out_at_the_end():
    engine = run(NODES, pod(300), pod(1000, cpu=15_000), pod(600), pod(500), pod())
    kinds = {Kind(1000, 500, 1): 3, Kind(1000, 1000, 1): 2, Kind(2000, 1000, 2): 1}
    workload = workload_of(kinds, FLEET.models)
    course = over_time(FLEET, workload, engine.tally.trail, 5)
    left = np.array([row + [0] * (2 - len(row)) for row in engine.tally.left])
    now = States(np.arange(2), left, FLEET.cpu - np.array(engine.tally.cpu))
    assert int(course[-1]) == int(fragmentation(FLEET, workload, now).sum())


def test_what_is_idle_is_told_by_what_the_device_pods_miss():
    # Left: 1000 and 1000 on a (where 1 core is left), 400 on b, a T4.
    engine = run(NODES, pod(600, models="T4"), pod(cpu=15_000), rules=Rules("spread"))
    kinds = {Kind(1000, 500, 1): 1, Kind(2000, 1000, 1): 1, Kind(1000, 300, 1, ("T4",)): 2, Kind(8000, 0, 0): 9}
    a100, t4 = idle_parts(FLEET, workload_of(kinds, FLEET.models), engine.tally)
    # Of 4 device pods one can use a, one lacks cores, two may not.
    assert (a100.milli, a100.usable, a100.small, a100.host, a100.model_only) == (2000, 500, 0, 500, 1000)
    # On b two find too little left, two can use it.
    assert (t4.milli, t4.usable, t4.small, t4.host, t4.model_only) == (400, 200, 200, 0, 0)
    assert a100.rests == (0,) * 11 + (2,)
    assert t4.rests == (0, 0, 0, 0, 0, 1) + (0,) * 6
