"""Counters only grow, histograms count what is at most a bound, and labels are bound one by one."""

import pytest

from tessera.runtime.heap import give_back
from tessera.runtime.instruments import Counter, Histogram
from tessera.runtime.process import FIGURES


def test_a_counter_adds_up():
    counter = Counter()
    counter.inc()
    counter.inc(2.5)
    assert list(counter.rows()) == [((), 3.5)]


def test_a_label_value_is_shown_from_its_binding_on_and_counts_for_itself():
    counter = Counter(("a", "b"))
    assert list(counter.rows()) == []
    counter.labels("x", "y").inc()
    counter.labels("x", "z")
    counter.labels("x", "y").inc()
    assert list(counter.rows()) == [(("x", "y"), 2.0), (("x", "z"), 0.0)]


def test_a_value_on_a_bound_is_below_it():
    histogram = Histogram((1, 2))
    for value in (1, 1.5, 2, 2.5):
        histogram.observe(value)
    assert list(histogram.rows()) == [((), [("1.0", 1), ("2.0", 3), ("+Inf", 4)], 7.0)]


def test_histograms_of_two_labels_do_not_mix():
    histogram = Histogram((1,), ("a",))
    histogram.labels("x").observe(0)
    histogram.labels("y")
    assert [(values, buckets[-1], total) for values, buckets, total in histogram.rows()] == [
        (("x",), ("+Inf", 1), 0.0),
        (("y",), ("+Inf", 0), 0.0),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Counter().inc(-1),
        lambda: Counter(("a",)).inc(),
        lambda: Counter(("a",)).labels("x", "y"),
        lambda: Counter().labels("x"),
        lambda: Histogram((1,), ("a",)).observe(1),
        lambda: Histogram((1,), ("a",)).labels(),
        lambda: Histogram((2, 1)),
        lambda: Histogram((1, 1)),
        lambda: Histogram((1, float("inf"))),
    ],
)
def test_wrong_use_is_refused(wrong):
    with pytest.raises(ValueError, match=r"label|grows|ascend"):
        wrong()


def test_a_process_shows_itself():
    shown = {name: read() for name, _, _, _, read in FIGURES}
    (resident,) = [value for _, value in shown["process_resident_memory_bytes"]]
    assert 5 << 20 < resident < 1 << 40
    assert shown["process_start_time_seconds"][0][1] > 1_600_000_000
    assert 0 < shown["process_open_fds"][0][1] <= shown["process_max_fds"][0][1]
    assert [labels for labels, _ in shown["python_gc_collections_total"]] == [("0",), ("1",), ("2",)]


def test_giving_free_memory_back_leaves_what_is_in_use():
    kept = [bytes([n % 256]) * 100_000 for n in range(50)]
    del kept[::2]
    give_back()
    assert all(block == bytes([block[0]]) * 100_000 for block in kept)
