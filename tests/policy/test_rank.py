"""Policies prefer; they never change what is legal, and they rank alike everywhere."""

import numpy as np
import pytest

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import place
from tessera.core.request import Preference
from tessera.policy.fill import BINPACK, SPREAD
from tessera.policy.outlook import usual_outlook
from tessera.policy.rank import DEFAULT_POLICY, POLICIES, Policy, Ranking
from tessera.policy.score import Ask, Scene
from tessera.policy.scorers import SCORERS


def seen(ledger: Ledger) -> tuple[Scene, Ask, np.ndarray, np.ndarray]:
    """What a scorer is given for a pod that asks for nothing of one device, on every node."""
    snapshot = ledger.snapshot()
    devices, nodes = len(snapshot.fleet.devices), len(snapshot.fleet.nodes)
    ask = Ask(np.zeros(devices, dtype=np.int64), 1, 0, 0)
    return Scene(snapshot, usual_outlook(snapshot.fleet)), ask, np.ones(devices, dtype=np.bool_), np.arange(nodes)


def test_the_default_is_a_policy():
    assert DEFAULT_POLICY in POLICIES


def test_fill_adds_memory_and_compute_in_parts_per_million():
    """Node a: 6144 of 24576 MiB is 250,000 ppm, 500 of 1000 milli is 500,000 ppm."""
    ledger = Ledger(a_fleet(a_node("a", 1), a_node("b", 1)))
    ledger.apply(
        Adopt(place(ledger.snapshot(), a_pod(a_claim(a_share(6144, 500))), POLICIES["binpack"]).placement)
    )
    scene = seen(ledger)
    assert BINPACK.scores(*scene).tolist() == [750_000, 0]
    assert SPREAD.scores(*scene).tolist() == [-750_000, 0]


def test_every_ranking_has_a_scorer_whose_scores_are_whole_numbers():
    scene = seen(Ledger(a_fleet(a_node("a", 2))))
    assert set(SCORERS) == set(Ranking)
    assert all(scorer.scores(*scene).dtype == np.int64 for scorer in SCORERS.values())


def test_devices_tie_by_index():
    scene, ask, _, _ = seen(Ledger(a_fleet(a_node("a", 3))))
    drawn = SCORERS[Ranking.RANDOM]
    orders = [scorer.order(scene, ask, range(3)) for scorer in SCORERS.values() if scorer is not drawn]
    assert orders == [[0, 1, 2]] * len(orders)


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
