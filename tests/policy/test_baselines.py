"""The published heuristics, scores worked out by hand from the formulas of tessera.policy.baselines."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.worlds import node, pod
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import ask_of, fits_of, prospect
from tessera.core.fleet import SIZE_BITS, Fleet
from tessera.core.request import Pod
from tessera.policy.baselines import BEST_FIT, DOT_PRODUCT, GPU_CLUSTERING, GPU_PACKING, RANDOM
from tessera.policy.outlook import usual_outlook
from tessera.policy.rank import POLICIES
from tessera.policy.score import Scene, Scorer
from tessera.simulator.engine import NO_DEVICES

BARE = replace(pod(), request=NO_DEVICES)
"""A pod of CPU alone, as it comes to the allocator."""

LARGE = {"cpu_milli": 128_000, "memory_mib": 1 << 20}


def held(nodes, *placed: tuple[str, Pod]) -> Ledger:
    """A ledger with these pods on their nodes, devices by best fit."""
    ledger = Ledger(Fleet(nodes))
    index = Index(ledger, POLICIES["best-fit"])
    for i, (name, like) in enumerate(placed):
        one = Pod(like.namespace, f"h{i}", f"h{i}", like.containers, like.request, cpu_milli=like.cpu_milli)
        found = index.place(one, [name])
        assert found is not None
        ledger.apply(Adopt(found.placement))
    return ledger


def scores(scorer: Scorer, ledger: Ledger, asked: Pod, generation: int = 0) -> list[int]:
    """The score of every node."""
    snapshot = ledger.view()
    scene = Scene(snapshot, replace(usual_outlook(snapshot.fleet), generation=generation))
    found = prospect(snapshot, asked)
    main, ask = ask_of(found)
    return scorer.scores(scene, ask, fits_of(found, main), np.arange(len(snapshot.fleet.nodes))).tolist()


def test_best_fit_prefers_the_node_that_is_left_with_least():
    # a: 128 cores and 8 devices, of which 12.8 cores and 1 device go: 100 * (1 - (0.9 + 0.875) / 2) = 11.25.
    # b: half the cores and 4 devices, less the same: 100 * (1 - (0.4 + 0.375) / 2) = 61.25.
    ledger = held([node("a", 8, **LARGE), node("b", 4, cpu_milli=64_000)])
    assert scores(BEST_FIT, ledger, pod(1000, cpu=12_800)) == [11, 61]


def test_dot_product_prefers_the_node_whose_free_part_points_elsewhere():
    # a: 100 * (1 - (1 * 0.1 + 1 * 0.125) / 2) = 88.75; b: half of everything: 94.375.
    ledger = held([node("a", 8, **LARGE), node("b", 4, cpu_milli=64_000)])
    assert scores(DOT_PRODUCT, ledger, pod(1000, cpu=12_800)) == [88, 94]


def test_whole_results_are_not_rounded_down():
    # Everything of a: 100 * (1 - 0) and 100 * (1 - (1 + 1) / 2), both whole numbers.
    ledger = held([node("a", 8, **LARGE)])
    everything = pod(1000, count=8, cpu=128_000)
    assert scores(BEST_FIT, ledger, everything) == [100]
    assert scores(DOT_PRODUCT, ledger, everything) == [0]


def test_packing_takes_shared_devices_before_free_ones_before_free_nodes():
    # a is free: max(33 - 2, 2). b has a device with 700 left, which is taken: 100 - 70 / 10. c has 200 left on
    # one, so that a free one is taken: 50 - 1.
    nodes = [node("a", 2), node("b", 2), node("c", 2)]
    ledger = held(nodes, ("b", pod(300)), ("c", pod(800)))
    assert scores(GPU_PACKING, ledger, pod(300)) == [31, 93, 49]
    assert scores(GPU_PACKING, ledger, BARE) == [0, 0, 0]


def test_packing_counts_the_free_devices_that_several_would_take():
    ledger = held([node("a", 4)], ("a", pod(500)))
    assert scores(GPU_PACKING, ledger, pod(1000, count=3)) == [47]
    # One of two comes from the device that is in use.
    assert scores(GPU_PACKING, ledger, pod(500, count=2)) == [49]


def test_clustering_brings_pods_of_one_size_together():
    nodes = [node("free", 4), node("own", 4), node("mixed", 4), node("others", 4)]
    ledger = held(
        nodes, ("own", pod(500)), ("mixed", pod(500)), ("mixed", pod(1000)), ("others", pod(1000, count=2))
    )
    # Of 8,000: 4,000 left, 3,500, 2,500 and 2,000: 12, 14, 17 and 18 of 25 points.
    assert scores(GPU_CLUSTERING, ledger, pod(250)) == [25 + 12, 75 + 14, 50 + 17, 18]
    assert scores(GPU_CLUSTERING, ledger, pod(1000)) == [25 + 12, 14, 50 + 17, 18]
    assert scores(GPU_CLUSTERING, ledger, pod(1000, count=2)) == [25 + 12, 14, 17, 75 + 18]
    assert scores(GPU_CLUSTERING, ledger, BARE) == [0, 0, 0, 0]


def test_sizes_are_counted_and_given_back():
    ledger = held([node("a", 8)], ("a", pod(500)), ("a", pod(500)), ("a", pod(1000, count=2)), ("a", BARE))
    assert ledger.view().usage.sizes.tolist() == [2 + (1 << 2 * SIZE_BITS)]
    rebuilt = Ledger.rebuilt(ledger.fleet, [entry.placement for entry in ledger.entries.values()])
    assert rebuilt.view().usage.sizes.tolist() == ledger.view().usage.sizes.tolist()


def test_random_draws_anew_for_every_generation_and_every_node_wins_sometimes():
    ledger = held([node(name) for name in "abcd"])
    wins = [int(np.argmax(scores(RANDOM, ledger, pod(500), generation))) for generation in range(200)]
    assert scores(RANDOM, ledger, pod(500), 7) == scores(RANDOM, ledger, pod(500), 7)
    # 50 each, give or take 4 deviations of 6.
    assert all(26 <= wins.count(row) <= 74 for row in range(4))


@pytest.mark.parametrize("name", ["best-fit", "dot-product", "gpu-packing", "gpu-clustering"])
def test_the_chosen_device_is_the_one_with_least_left_that_suffices(name):
    ledger = held([node("a", 3)], ("a", pod(500)))
    ledger.apply(Adopt(_on(ledger, 700)))
    found = Index(ledger, POLICIES[name]).place(pod(300, name="new"))
    assert found is not None
    assert [charge.uuid for charge in found.placement.charges] == ["a-1"]


def _on(ledger: Ledger, milli: int):
    """A pod on the second device: the first has no room for it."""
    found = Index(ledger, POLICIES["best-fit"]).place(pod(milli, name="other"))
    assert found is not None
    assert [charge.uuid for charge in found.placement.charges] == ["a-1"]
    return found.placement
