"""What the limiter's benches print is read, judged and shown rightly: their goals are the promise."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import limiter_figures as figures
import limiter_page

REFUSAL = """\
cuMemAlloc                     host sees   2048.000 MiB of 2048,   +0.000 MiB = +0.000 %
cuMemAllocAsync                host sees   2028.000 MiB of 2048,  -20.000 MiB = -0.977 %
cuMemCreate                    host sees   2048.500 MiB of 2048,   +0.500 MiB = +0.024 %
cuArrayCreate                  host sees   2016.000 MiB of 2048,  -32.000 MiB = -1.562 %
"""
RUNS = """\
hard\tshort kernels\t20\t10\t10\t10.10\t100.0
hard\tshort kernels\t200\t10\t10\t12.10\t100.0
burst\talone\t20\t25\t100\t99.00\t94.0
"""
KILL = (
    "200 kills, seed 7: 162 at an instruction of allocate and free (1273 instructions), 38 during the start; "
    "the last of 16 waiters has its memory after p50 5020 us, p99 52516 us, worst {} us, of which the system let "
    "it wait 9 us; the books were exact every time"
)


def judged(found):
    return [figure.is_met for figure in found]


def test_a_refusal_past_the_limit_or_more_than_a_percent_below_it_is_not_met():
    assert judged(figures.refusal_figures(REFUSAL)) == [True, True, False, False]


def test_a_run_is_held_within_two_points_and_when_its_seconds_are_near():
    runs = figures.parse_runs(RUNS)
    assert [run.is_held for run in runs] == [True, False, False]
    assert judged(figures.compute_figures(runs, ())) == [False, False]  # one a mode


def test_a_floor_is_met_by_the_latest_of_all_cases():
    floors = figures.parse_floors("floor\tk_ms_2\t20\t25\t500\t24.00\nfloor\tk_ms_30\t20\t50\t600\t49.00\n")
    assert judged(figures.compute_figures((), floors[:1])) == [True]
    (late,) = figures.compute_figures((), floors)
    assert late.is_met is False
    assert "600 ms at worst (k_ms_30, 20 SMs, 50 %)" in late.measured
    assert "96% of the limit at least" in late.measured


def test_calls_are_judged_by_the_pair_of_allocate_and_free():
    text = (
        "nothing held: cuMemAlloc    driver   26.3 ns, with the library   52.0 ns, overhead  35.0 ns\n"
        "nothing held: cuMemFree     driver   28.2 ns, with the library   42.6 ns, overhead  26.0 ns\n"
        "nothing held: cuMemGetInfo  driver   39.5 ns, with the library   52.4 ns, overhead  13.0 ns\n"
    )
    pair, query = figures.call_figures(text)
    assert (pair.measured, pair.is_met) == ("61.0 ns", False)
    assert (query.measured, query.is_met) == ("13.0 ns", True)


@pytest.mark.parametrize(("worst", "is_met"), [(1_000_000, True), (1_000_001, False)])
def test_the_longest_wait_after_a_kill_decides(worst, is_met):
    (figure,) = figures.kill_figure(KILL.format(worst))
    assert figure.is_met is is_met
    assert "200 random points (seed 7)" in figure.what


def test_a_program_that_printed_nothing_has_no_figures():
    for parse in (figures.refusal_figures, figures.launch_figures, figures.call_figures, figures.kill_figure):
        assert parse("") == ()
    assert figures.start_figures("") == figures.audit_figures("") == figures.device_figures("") == ()


def test_the_page_shows_every_figure_plot_and_miss_and_fetches_nothing():
    runs, floors = figures.parse_runs(RUNS), figures.parse_floors("floor\tk_us_200\t20\t25\t300\t24.00\n")
    found = figures.compute_figures(runs, floors)
    page = limiter_page.render_page(found, runs, floors, "a machine", "Nothing was measured on <a device>.")
    assert page.count("<svg") == 3  # two kinds of work, one borrower
    assert page.count(">not met<") == 2
    assert page.count(">met<") == 1
    assert "&lt;a device&gt;" in page
    assert 'src="' not in page
    assert "http" not in page
