"""PWR+'s terms one by one, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator.index import Index
from tessera.allocator.ledger import Adopt, Ledger
from tessera.core.fleet import Fleet
from tessera.policy.fragment import ways
from tessera.policy.keeping import NOT_KEPT, kept_nodes
from tessera.policy.outlook import Outlook, outlook_of, protecting
from tessera.policy.prices import FINE
from tessera.policy.pwr import PWR, REACH, SOFTPLUS, cost
from tessera.policy.rank import POLICIES
from tessera.policy.score import Ask, Scene
from tessera.policy.target import Kind, target_of


def bare(fleet: Fleet) -> Outlook:
    """An outlook in which nothing costs anything but packing: M is CPU alone, of no weight to any term."""
    outlook = outlook_of(fleet, {Kind(1000, 0, 0): 1})
    return replace(outlook, target=target_of([], fleet.models), stranding=0, cpu_per_device=12_000)


def costs(ledger: Ledger, outlook: Outlook, milli: int, cpu: int = 0, count: int = 1) -> list[list[float]]:
    """Milli that each way costs, one line a node."""
    fleet = ledger.fleet
    ask = Ask(np.full(len(fleet.devices), milli), count, cpu, 0)
    found = ways(
        Scene(ledger.view(), outlook),
        ask,
        np.ones(len(fleet.devices), dtype=np.bool_),
        np.arange(len(fleet.nodes)),
    )
    return (cost(outlook, ask, found) / (10 * FINE)).round(2).tolist()


def test_packing_costs_more_the_emptier_the_node_is():
    """0.1 * left * max(asked, cpu / 12) / 8000: 0.1 * 2000 * 400 / 8000 = 10, and 0.1 * 2000 * 800 / 8000 = 20."""
    ledger = Ledger(a_fleet(a_node("a", 2, 1000)))
    assert costs(ledger, bare(ledger.fleet), 400) == [[10, 10]]
    assert costs(ledger, bare(ledger.fleet), 400, cpu=9_600) == [[20, 20]]


def test_worth_that_a_device_loses_counts_four_times():
    ledger = Ledger(a_fleet(a_node("a", 1, 1000)))
    worth = np.zeros(1001, dtype=np.int64)
    worth[1000], worth[600] = 800 * FINE, 500 * FINE
    assert costs(ledger, replace(bare(ledger.fleet), worth=worth), 400) == [[4 * 300 + 5]]


def test_a_model_that_others_need_costs_twice_what_is_asked():
    ledger = Ledger(a_fleet(a_node("a", 1, 1000)))
    outlook = replace(bare(ledger.fleet), price=np.array([FINE // 2]))
    assert costs(ledger, outlook, 400) == [[2 * 0.5 * 400 + 5]]


def test_devices_without_cpu_to_go_with_them_count_twice():
    """10,000 milli-cores go with a device. 8 devices and 60,000 left: 2,000 milli stand without, in effect all
    of them (softplus leaves the line by 0.01). CPU alone for 10,000 more: 3,000. It costs 2 * 1000, and packing
    0.1 * 8000 * 833 / 8000.
    """
    ledger = Ledger(a_fleet(a_node("a", 8, 1000, cpu_milli=60_000)))
    outlook = replace(bare(ledger.fleet), stranding=10_000)
    assert costs(ledger, outlook, 0, cpu=10_000, count=0) == [[pytest.approx(2000 + 83.3, abs=0.1)]]


def test_a_node_that_is_kept_costs_twice_what_is_asked_while_it_is_idle():
    ledger = Ledger(a_fleet(a_node("a", 2, 1000)))
    outlook = replace(bare(ledger.fleet), kept=np.array([2000]))
    assert costs(ledger, outlook, 400) == [[2 * 400 + 10] * 2]
    index = Index(ledger, POLICIES["binpack"])
    ledger.apply(Adopt(index.place(a_pod(a_claim(a_share(100, 100)))).placement))
    assert costs(ledger, outlook, 400)[0][1] == 9.5  # 0.1 * 1900 * 400 / 8000


def test_softplus_is_a_rounded_corner():
    """200 * ln 2 at the corner, nothing far left of it, the milli themselves far right of it."""
    at = {x: SOFTPLUS[x + REACH] / FINE for x in (-REACH, 0, REACH)}
    assert at == {
        -REACH: pytest.approx(0, abs=0.01),
        0: pytest.approx(138.63, abs=0.01),
        REACH: pytest.approx(2048, abs=0.01),
    }


def test_a_score_is_the_cost_in_steps_of_20_milli():
    ledger = Ledger(a_fleet(a_node("a", 1, 1000)))
    outlook = replace(bare(ledger.fleet), price=np.array([FINE // 2]))
    ask, fits = Ask(np.array([400]), 1, 0, 0), np.ones(1, dtype=np.bool_)
    assert PWR.scores(Scene(ledger.view(), outlook), ask, fits, np.arange(1)).tolist() == [-20]  # 405 milli


def test_stranding_is_off_where_the_workload_is_short_of_cpu_anyway():
    fleet = a_fleet(a_node("a", 8, cpu_milli=80_000))
    assert outlook_of(fleet, {Kind(9_000, 1000, 1): 1}).stranding == 9_000 * 65 // 100
    assert outlook_of(fleet, {Kind(9_700, 1000, 1): 1}).stranding == 0  # 0.97 of 10,000 a device
    assert outlook_of(a_fleet(a_node("a", 8)), {Kind(9_000, 1000, 1): 1}).stranding == 0  # unknown


def test_nodes_of_the_only_class_that_can_take_a_large_pod_are_kept():
    """Eight devices and 120 cores fit b alone; small pods are 1 in 2 of the milli. One b is left: it is kept."""
    nodes = [a_node(f"a{i}", 8, 1000, cpu_milli=96_000) for i in range(9)] + [
        a_node("b", 8, 1000, cpu_milli=128_000)
    ]
    ledger = Ledger(a_fleet(*nodes))
    kinds = [(Kind(120_000, 1000, 8), 1), (Kind(4_000, 1000, 1), 72)]
    assert kept_nodes(ledger.view(), kinds).tolist() == [NOT_KEPT] * 9 + [8000]
    easy = [(Kind(90_000, 1000, 8), 1), (Kind(4_000, 1000, 1), 72)]
    assert set(kept_nodes(ledger.view(), easy).tolist()) == {NOT_KEPT}  # ten nodes for one or two such pods


def test_an_outlook_without_news_stays_the_same_object():
    ledger = Ledger(a_fleet(a_node("a", 8, 1000)))
    outlook = outlook_of(ledger.fleet, {Kind(0, 500, 1): 1})
    assert protecting(outlook, ledger.view(), 1) is outlook
