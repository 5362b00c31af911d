"""Runs on clusters small enough to follow by hand: arrivals, departures, drains, losses, samples."""

import pytest

from simulator.worlds import node, pod, run
from tessera.simulator.engine import Rules
from tessera.simulator.failures import Failure, failures
from tessera.simulator.sampling import Sampler

WHOLE = 1000


def test_pods_are_placed_one_after_another_and_what_finds_no_room_is_rejected():
    engine = run([node("a", 2)], pod(600), pod(600), pod(600), pod(400))
    assert engine.record.nodes == [0, 0, -1, 0]
    assert engine.record.devices == [(0,), (1,), (), (0,)]
    assert engine.record.used == [600, 1200, 1200, 1600]


def test_a_pod_of_cpu_alone_takes_room_and_no_device():
    engine = run([node("a", 1)], pod(cpu=16_000), pod(500, cpu=1))
    assert engine.record.nodes == [0, -1]
    assert engine.record.devices == [(), ()]


def test_a_pod_leaves_when_its_time_is_over_and_the_next_finds_its_place():
    # Pods come at 0, 1, 2; the first stays 1.5 s and is gone when the third comes, the second finds nothing.
    engine = run([node("a", 1)], pod(WHOLE), pod(WHOLE), pod(WHOLE), stays=[1.5, 1.0, 1.0])
    assert engine.record.nodes == [0, -1, 0]
    assert engine.record.departed == 1


def test_whoever_leaves_at_the_moment_of_an_arrival_leaves_before_it():
    engine = run([node("a", 1)], pod(WHOLE), pod(WHOLE), stays=[1.0, 1.0])
    assert engine.record.nodes == [0, 0]


@pytest.mark.parametrize(("moves", "nodes"), [(0, [0, 1, -1]), (1, [0, 1, 0])])
def test_one_move_makes_room_for_a_pod_of_whole_devices(moves, nodes):
    # a and b have two devices each, half of one is taken on either: two whole ones are nowhere without a move.
    rules = Rules("spread", drain=moves)
    engine = run([node("a", 2), node("b", 2)], pod(500), pod(500), pod(WHOLE, count=2), rules=rules)
    assert engine.record.nodes == nodes
    assert sum(engine.record.moves) == moves
    assert engine.tally.used[0] == 1000 + 2000 * moves


def test_a_node_that_is_lost_loses_its_pods_to_the_others_and_comes_back_empty():
    lost = [Failure(0.5, 0, mended=False), Failure(1.5, 0, mended=True)]
    engine = run([node("a", 1), node("b", 1)], pod(600), pod(600), pod(300), stays=[9.0, 9.0, 9.0], failures=lost)
    # The first moves from a to b at 0.5; the second finds b full and a away; the third goes to b as well.
    assert engine.record.nodes == [0, -1, 1]
    assert (engine.record.lost, engine.record.homeless, engine.record.failures) == (1, 0, 1)
    assert engine.tally.left == [[1000], [100]]


def test_a_pod_that_no_other_node_takes_is_homeless():
    engine = run([node("a", 1)], pod(600), pod(600), stays=[9.0, 9.0], failures=[Failure(0.5, 0, mended=False)])
    assert (engine.record.lost, engine.record.homeless) == (1, 1)
    assert engine.tally.used[0] == 0


def test_losses_come_at_their_rate_and_every_one_is_mended():
    # 50 nodes, one loss a node and 10 days, 200 days: 1,000 losses, give or take 3 deviations of 32.
    found = failures(50, 0.1, 200 * 86_400, seed=1)
    lost = [f for f in found if not f.mended]
    assert 900 < len(lost) < 1100
    assert sorted((f.time + 4 * 3600, f.node) for f in lost) == sorted((f.time, f.node) for f in found if f.mended)
    assert [f.time for f in found] == sorted(f.time for f in found)


def test_samples_go_round_over_the_nodes_with_room_for_the_pod_itself():
    nodes = [node("a"), node("b", cpu_milli=500), node("c"), node("d")]
    engine = run(nodes)
    snapshot = engine.ledger.view()
    sampler = Sampler(2)
    # b has not the CPU: the first look ends behind c, the second passes d and a and stops there.
    assert next(sampler.samples(snapshot, pod(500))) == {"a", "c"}
    assert next(sampler.samples(snapshot, pod(500))) == {"d", "a"}
    assert sampler.looks == 2


def test_a_pod_is_looked_for_until_every_node_was_seen_once():
    nodes = [node("a"), node("b"), node("c")]
    samples = [set(names) for names in Sampler(1).samples(run(nodes).ledger.view(), pod(500))]
    assert samples == [{"a"}, {"b"}, {"c"}]


def test_sampling_finds_a_place_that_is_not_in_the_first_sample():
    engine = run([node("a"), node("b")], pod(WHOLE), pod(WHOLE), pod(WHOLE), rules=Rules("binpack", sample=1))
    assert engine.record.nodes == [0, 1, -1]
