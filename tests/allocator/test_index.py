"""The index on fleets small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator import ledger as ledger_module
from tessera.allocator.index import Index
from tessera.allocator.ledger import Ledger, Release, Reserve
from tessera.core.request import Container, Pod
from tessera.policy.outlook import outlook_of
from tessera.policy.rank import POLICIES

BINPACK = POLICIES["binpack"]
NAMES = [f"n{i}" for i in range(20)]


def an_index(nodes: int = 20, memory: int = 10) -> tuple[Ledger, Index]:
    ledger = Ledger(a_fleet(*(a_node(f"n{i}", 1, memory) for i in range(nodes))))
    return ledger, Index(ledger, BINPACK)


def asking(memory: int, name: str) -> Pod:
    return a_pod(a_claim(a_share(memory)), name=name)


def test_what_was_booked_after_the_first_answer_counts_in_the_second():
    ledger, index = an_index()
    first = index.place(asking(6, "a"))
    assert first.placement.node == "n0"
    ledger.apply(Reserve(first.placement))
    assert index.place(asking(6, "b")).placement.node == "n1"


def test_what_was_released_can_be_had_again():
    ledger, index = an_index(nodes=1)
    ledger.apply(Reserve(index.place(asking(6, "a")).placement))
    assert index.place(asking(6, "b")) is None
    ledger.apply(Release("a"))
    assert index.place(asking(6, "b")).placement.node == "n0"


def test_only_named_nodes_are_taken_and_barred_ones_are_not():
    _, index = an_index()
    assert index.place(asking(1, "a"), ["n7", "n3", "unknown"]).placement.node == "n3"
    assert index.place(asking(1, "a"), ["n7", "n3"], barred={"n3", "unknown"}).placement.node == "n7"
    assert index.place(asking(1, "a"), ["unknown"]) is None
    assert index.place(asking(1, "a"), []) is None


def test_a_bonus_outweighs_a_fill_that_is_smaller():
    ledger, index = an_index()
    ledger.apply(Reserve(index.place(asking(5, "a"), ["n4"]).placement))
    assert index.place(asking(1, "b")).placement.node == "n4"  # 5 of 10 MiB: a fill of 500,000
    assert index.place(asking(1, "b"), bonus={"n9": 499_999}).placement.node == "n4"
    assert index.place(asking(1, "b"), bonus={"n9": 500_001}).placement.node == "n9"


def test_a_reader_that_lags_behind_what_is_remembered_looks_at_everything(monkeypatch):
    monkeypatch.setattr(ledger_module, "REMEMBERED_CHANGES", 2)
    ledger, index = an_index()
    assert index.place(asking(6, "a")).placement.node == "n0"
    for i in range(5):
        ledger.apply(Reserve(index.place(asking(10, f"w{i}")).placement))
    assert ledger.touched_since(0) is None
    assert index.place(asking(6, "a")).placement.node == "n5"


def test_a_pod_that_asks_for_nothing_is_refused():
    _, index = an_index()
    with pytest.raises(ValueError, match="default/p asks for no accelerator"):
        index.place(Pod("default", "p", "p", (Container("main"),)))


def test_an_outlook_that_was_made_for_another_fleet_is_refused():
    _, index = an_index(nodes=2)
    other = a_fleet(a_node("n0", 1))
    with pytest.raises(ValueError, match="an outlook for 1 nodes of A100 on a fleet of 2 of A100"):
        index.outlook = outlook_of(other)


def test_a_new_outlook_counts_in_the_next_answer():
    """Of two idle nodes the first is to be kept: the second is taken, and the first once nothing else has room."""
    ledger = Ledger(a_fleet(a_node("a", 2, 10), a_node("b", 1, 10)))
    index = Index(ledger, POLICIES["pwr+"])
    assert index.place(asking(5, "p")).placement.node == "b"  # the emptier node costs more
    index.outlook = replace(index.outlook, kept=np.array([-1, 1000]), generation=index.outlook.generation + 1)
    for uid, node in (("p", "a"), ("q", "a"), ("r", "a"), ("s", "a"), ("t", "b")):
        placed = index.place(asking(5, uid))
        assert placed.placement.node == node
        ledger.apply(Reserve(placed.placement))
