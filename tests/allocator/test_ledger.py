"""The ledger's life of a holder, event by event."""

from builders import a_claim, a_device, a_fleet, a_node, a_pod, a_share, whole
from tessera.allocator.ledger import (
    Adopt,
    Booked,
    Commit,
    Committed,
    Expire,
    Ledger,
    Overcommitted,
    Refused,
    Release,
    Released,
    Reserve,
)
from tessera.allocator.place import place
from tessera.policy.rank import POLICIES


def placement(ledger, name="p", memory=1000, share=None):
    return place(
        ledger.snapshot(), a_pod(a_claim(share or a_share(memory, 100)), name=name), POLICIES["binpack"]
    ).placement


def used(ledger):
    return int(ledger.snapshot().usage.memory.sum())


def test_reserve_commit_release():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    assert ledger.apply(Reserve(placement(ledger))) == (Booked("p"),)
    assert ledger.apply(Commit("p")) == (Committed("p"),)
    assert used(ledger) == 1000
    assert ledger.apply(Release("p")) == (Released("p"),)
    assert used(ledger) == 0


def test_a_view_shows_what_a_snapshot_shows_and_moves_on_with_the_ledger():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    fact = placement(ledger)
    kept, view = ledger.snapshot(), ledger.view()
    assert view.usage.memory.tolist() == kept.usage.memory.tolist() == [0]
    ledger.apply(Adopt(fact))
    assert ledger.view().usage.memory.tolist() == [1000]
    moving = ledger.view()
    ledger.apply(Release("p"))
    assert moving.usage.memory.tolist() == [0]
    assert kept.usage.memory.tolist() == [0]


def test_releasing_what_is_not_held_does_nothing():
    assert Ledger(a_fleet(a_node("a", 1))).apply(Release("nobody")) == ()


def test_a_reservation_ends_by_time_and_a_commitment_does_not():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    ledger.apply(Reserve(placement(ledger, "soon"), expires=10.0))
    ledger.apply(Reserve(placement(ledger, "kept"), expires=10.0))
    ledger.apply(Commit("kept"))
    assert ledger.apply(Expire(9.9)) == ()
    assert ledger.apply(Expire(10.0)) == (Released("soon"),)
    assert used(ledger) == 1000


def test_committing_an_expired_reservation_is_refused():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    ledger.apply(Reserve(placement(ledger), expires=1.0))
    ledger.apply(Expire(2.0))
    (effect,) = ledger.apply(Commit("p"))
    assert isinstance(effect, Refused)


def test_the_next_reservation_of_a_pod_replaces_the_one_before():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    ledger.apply(Reserve(placement(ledger, memory=1000)))
    assert ledger.apply(Reserve(placement(ledger, memory=300))) == (Booked("p"),)
    assert used(ledger) == 300


def test_a_committed_pod_cannot_reserve_again():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    again = placement(ledger, memory=1)
    ledger.apply(Reserve(placement(ledger)))
    ledger.apply(Commit("p"))
    (effect,) = ledger.apply(Reserve(again))
    assert isinstance(effect, Refused)
    assert used(ledger) == 1000


def test_a_reservation_decided_on_an_old_snapshot_is_refused_where_the_room_is_gone():
    ledger = Ledger(a_fleet(a_node("a", 1, 1500)))
    late = placement(ledger, "late")
    ledger.apply(Reserve(placement(ledger, "first")))
    (effect,) = ledger.apply(Reserve(late))
    assert isinstance(effect, Refused)
    assert "taken in the meantime" in effect.why


def test_an_exclusive_reservation_is_refused_once_somebody_is_there():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    late = placement(ledger, "late", share=whole())
    ledger.apply(Reserve(placement(ledger, "first", memory=1)))
    assert isinstance(ledger.apply(Reserve(late))[0], Refused)


def test_a_placement_on_a_device_or_node_that_left_is_refused_by_name():
    old = Ledger(a_fleet(a_node("a", [a_device("old")])))
    new = Ledger(a_fleet(a_node("a", [a_device("new")])))
    (effect,) = new.apply(Reserve(placement(old)))
    assert isinstance(effect, Refused)
    assert "old is not in the fleet" in effect.why


def test_a_fact_is_adopted_even_where_it_overcommits_and_says_so():
    ledger = Ledger(a_fleet(a_node("a", 1, 1500)))
    facts = [placement(ledger, "one"), placement(ledger, "two")]
    assert ledger.apply(Adopt(facts[0])) == (Booked("one"),)
    assert ledger.apply(Adopt(facts[1])) == (Booked("two"), Overcommitted("two", ("a-0",)))
    assert used(ledger) == 2000


def test_adopting_the_same_fact_twice_books_it_once():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    fact = placement(ledger)
    ledger.apply(Adopt(fact))
    ledger.apply(Adopt(fact))
    assert used(ledger) == 1000


def test_a_holder_whose_device_left_is_kept_and_released_without_trace():
    old = Ledger(a_fleet(a_node("a", [a_device("old")])))
    ledger = Ledger.rebuilt(a_fleet(a_node("a", [a_device("new")])), [placement(old)])
    assert "p" in ledger.entries
    assert used(ledger) == 0
    ledger.apply(Release("p"))
    assert used(ledger) == 0
    assert int(ledger.snapshot().usage.pods.sum()) == 0
