"""Policies prefer; they never change what is legal, and they rank alike everywhere."""

import numpy as np
import pytest

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import place
from tessera.core.request import Preference
from tessera.policy.nodes import order_devices, rank_nodes
from tessera.policy.rank import DEFAULT_POLICY, POLICIES, Policy, Ranking


def test_the_default_is_a_policy():
    assert DEFAULT_POLICY in POLICIES


def test_fill_adds_memory_and_compute_in_parts_per_million():
    """Node a: 6144 of 24576 MiB is 250,000 ppm, 500 of 1000 milli is 500,000 ppm."""
    ledger = Ledger(a_fleet(a_node("a", 1), a_node("b", 1)))
    ledger.apply(
        Adopt(place(ledger.snapshot(), a_pod(a_claim(a_share(6144, 500))), POLICIES["binpack"]).placement)
    )
    snapshot = ledger.snapshot()
    assert rank_nodes(snapshot, Ranking.BINPACK).tolist() == [750_000, 0]
    assert rank_nodes(snapshot, Ranking.SPREAD).tolist() == [-750_000, 0]


def test_scores_are_whole_numbers():
    snapshot = Ledger(a_fleet(a_node("a", 2))).snapshot()
    assert all(rank_nodes(snapshot, ranking).dtype == np.int64 for ranking in Ranking)


def test_devices_tie_by_index():
    snapshot = Ledger(a_fleet(a_node("a", 3))).snapshot()
    assert order_devices(snapshot, range(3), Ranking.BINPACK) == [0, 1, 2]
    assert order_devices(snapshot, range(3), Ranking.SPREAD) == [0, 1, 2]


@pytest.mark.parametrize(
    ("wish", "result"),
    [
        (Preference(), Policy(Ranking.BINPACK, Ranking.BINPACK)),
        (Preference(node="spread"), Policy(Ranking.SPREAD, Ranking.BINPACK)),
        (Preference(device="spread"), Policy(Ranking.BINPACK, Ranking.SPREAD)),
        (Preference(node="no such ranking"), Policy(Ranking.BINPACK, Ranking.BINPACK)),
    ],
)
def test_a_pods_wish_replaces_its_half_of_the_policy(wish, result):
    assert POLICIES["binpack"].preferring(wish) == result
