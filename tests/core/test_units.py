"""Amounts as people read them."""

import pytest

from tessera.core.units import fill_of, render_mib, render_percent


@pytest.mark.parametrize(("milli", "text"), [(300, "30%"), (125, "12.5%"), (1000, "100%"), (5, "0.5%"), (0, "0%")])
def test_a_milli_fraction_reads_as_percent(milli, text):
    assert render_percent(milli) == text


@pytest.mark.parametrize(
    ("used", "total", "fill"), [(6144, 24576, 250_000), (1, 3, 333_333), (0, 0, 0), (5, 5, 1_000_000)]
)
def test_fill_is_in_parts_per_million(used, total, fill):
    assert fill_of(used, total) == fill


def test_memory_reads_with_separators():
    assert render_mib(20480) == "20,480 MiB"
