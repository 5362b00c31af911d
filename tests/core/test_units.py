"""Amounts as people read them."""

import pytest

from tessera.core.units import render_mib, render_percent


@pytest.mark.parametrize(("milli", "text"), [(300, "30%"), (125, "12.5%"), (1000, "100%"), (5, "0.5%"), (0, "0%")])
def test_a_milli_fraction_reads_as_percent(milli, text):
    assert render_percent(milli) == text


def test_memory_reads_with_separators():
    assert render_mib(20480) == "20,480 MiB"
