"""Metrics: what a scrape shows, and what it does not."""

from collections.abc import Iterator

import pytest

from tessera.core.errors import UnavailableError
from tessera.runtime.metrics import Metrics, Unavailable


def series(metrics: Metrics) -> dict[str, str]:
    """Our series of a scrape."""
    lines = metrics.render().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line.startswith("tessera_"))


def test_a_counter_and_a_histogram_are_shown_under_our_prefix() -> None:
    metrics = Metrics()
    metrics.counter("decisions_total", "Decisions.", ("outcome",)).labels("placed").inc()
    metrics.histogram("decision_seconds", "Time.", buckets=(0.1, 1)).observe(0.5)
    shown = series(metrics)
    assert shown['tessera_decisions_total{outcome="placed"}'] == "1.0"
    assert shown['tessera_decision_seconds_bucket{le="0.1"}'] == "0.0"
    assert shown['tessera_decision_seconds_bucket{le="1.0"}'] == "1.0"


def test_a_gauge_is_asked_for_when_scraped() -> None:
    metrics, value = Metrics(), [1]
    metrics.gauge("drift", "Drift.", lambda: value[0])
    assert series(metrics) == {"tessera_drift": "1"}
    value[0] = 0
    assert series(metrics) == {"tessera_drift": "0"}


def test_a_row_that_is_gone_is_gone_from_the_next_scrape() -> None:
    metrics, rows = Metrics(), {"a": 1.5, "b": 2}
    metrics.matrix("used_bytes", "Used.", ("device",), lambda: [((d,), v) for d, v in rows.items()])
    assert series(metrics) == {'tessera_used_bytes{device="a"}': "1.5", 'tessera_used_bytes{device="b"}': "2"}
    del rows["b"]
    assert series(metrics) == {'tessera_used_bytes{device="a"}': "1.5"}
    assert len(metrics._sources[0]._known) == 1, "nor is its text kept"


def test_what_is_not_known_is_absent_and_says_why() -> None:
    metrics = Metrics()
    metrics.matrix("used_bytes", "Used.", ("device",), lambda: [(("a",), Unavailable("no driver")), (("b",), 0)])
    metrics.gauge("age_seconds", "Age.", lambda: Unavailable("not synced"))
    assert series(metrics) == {
        'tessera_used_bytes{device="b"}': "0",
        'tessera_unavailable{what="tessera_used_bytes",reason="no driver"}': "1.0",
        'tessera_unavailable{what="tessera_age_seconds",reason="not synced"}': "1.0",
    }
    assert b"# TYPE tessera_age_seconds" not in metrics.render()


def test_a_source_that_fails_leaves_the_other_metrics_alone() -> None:
    metrics = Metrics()

    def broken() -> float:
        raise UnavailableError("the driver is gone", "restart")

    metrics.gauge("broken", "Broken.", broken)
    metrics.gauge("well", "Well.", lambda: 1)
    shown = series(metrics)
    assert shown["tessera_well"] == "1"
    assert shown['tessera_unavailable{what="tessera_broken",reason="UnavailableError"}'] == "1.0"


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.matrix("x", "X.", ("pod",), lambda: [(('a"b\\c\nd',), 1)])
    assert series(metrics) == {'tessera_x{pod="a\\"b\\\\c\\nd"}': "1"}


def test_the_table_lists_every_metric_once() -> None:
    metrics = Metrics()
    metrics.gauge("b", "B.", lambda: 1)
    metrics.counter("a_total", "A.", ("x",))
    assert [(row.name, row.type, row.labels) for row in metrics.table()] == [
        ("tessera_a_total", "counter", ("x",)),
        ("tessera_b", "gauge", ()),
        ("tessera_unavailable", "gauge", ("what", "reason")),
    ]
    with pytest.raises(ValueError, match="twice"):
        metrics.gauge("b", "Again.", lambda: 1)


def test_only_counters_are_named_total() -> None:
    with pytest.raises(ValueError, match="_total"):
        Metrics().counter("decisions", "Decisions.")
    with pytest.raises(ValueError, match="_total"):
        Metrics().gauge("decisions_total", "Decisions.", lambda: 1)


def test_each_process_has_a_registry_of_its_own() -> None:
    for metrics in (Metrics(), Metrics()):
        metrics.counter("same_total", "Same name in both.")
        assert b"process_resident_memory_bytes" in metrics.render()


def test_a_source_that_fails_midway_hides_itself_and_nobody_else() -> None:
    metrics = Metrics()

    def rows() -> Iterator[tuple[tuple[str, ...], float]]:
        yield ("a",), 1.0
        raise UnavailableError("the driver is gone", "load it")

    metrics.matrix("broken", "One that fails at its second row.", ("device",), rows)
    metrics.gauge("sound", "Another.", lambda: 2.0)
    text = metrics.render().decode()
    assert "tessera_broken{" not in text
    assert 'tessera_unavailable{what="tessera_broken",reason="UnavailableError"} 1' in text
    assert "tessera_sound 2.0" in text


def test_counters_have_one_series_each() -> None:
    metrics = Metrics()
    metrics.counter("tries_total", "Tries.").inc()
    assert "tries_created" not in metrics.render().decode()
