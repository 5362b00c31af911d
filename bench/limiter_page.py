"""The page that tells how exact the limiter is: one file of HTML with its plots in it, and nothing to fetch."""

import html
from collections.abc import Callable, Sequence
from typing import Final

from limiter_figures import FLOOR_MS, POINTS, Figure, Floor, Run, render_runs

_SIDE: Final = 190
_MARGIN: Final = 30
_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#1a1a1a}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;width:100%}
td,th{padding:.3em .6em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
.met{color:#176b3a;font-weight:600}.missed{color:#b3261e;font-weight:600}
figure{display:inline-block;margin:0 .8em 1em 0}figcaption{font-weight:600;margin-left:30px}
svg text{font:11px system-ui,sans-serif;fill:#555}pre{overflow-x:auto;font-size:12px}
.note{background:#fff6e0;border-left:4px solid #c77700;padding:.6em 1em}
"""


def render_page(
    figures: Sequence[Figure], runs: Sequence[Run], floors: Sequence[Floor], machine: str, hardware: str
) -> str:
    """The page. ``hardware`` says what was measured on a real device, or why nothing was."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>The limiter: figures and accuracy</title>'
        f"<style>{_STYLE}</style><h1>The limiter: figures and accuracy</h1>"
        f"<p>{html.escape(machine)}. The driver is the simulated one: compute limits are held in its virtual "
        "time, a minute a run, on the library's own hooks; calls and kills are measured in real time.</p>"
        f'<p class="note">{html.escape(hardware)}</p>'
        f"<h2>Figures</h2>{_figures(figures)}"
        f"<h2>Limit against measured device time</h2>{_accuracy(runs)}"
        f"<h2>An owner that comes back</h2>{_floors(floors)}"
        f"<h2>Every run</h2><pre>{html.escape(render_runs(runs))}</pre></html>"
    )


def _figures(figures: Sequence[Figure]) -> str:
    marks = {True: '<td class="met">met</td>', False: '<td class="missed">not met</td>', None: "<td>-</td>"}
    rows = "".join(
        f"<tr><td>{html.escape(f.what)}</td><td>{html.escape(f.goal)}</td><td>{html.escape(f.measured)}</td>"
        f"{marks[f.is_met]}</tr>"
        for f in figures
    )
    return f"<table><tr><th>what</th><th>goal</th><th>measured</th><th></th></tr>{rows}</table>"


def _accuracy(runs: Sequence[Run]) -> str:
    """For each mode and kind of work the means by card, a line a limit; the band is what is promised."""
    kinds = tuple(dict.fromkeys((run.mode, run.work) for run in runs))
    plots = "".join(_plot_kind(*kind, [r for r in runs if (r.mode, r.work) == kind]) for kind in kinds)
    return (
        "<p>Across: the card's SMs. Up: the share's mean device time in percent of the device. One line a limit; "
        f"the bands are what is promised, {POINTS:.0f} points either way.</p>{plots}"
    )


def _plot_kind(mode: str, work: str, runs: Sequence[Run]) -> str:
    cards = tuple(sorted({run.sms for run in runs}))
    limits = tuple(sorted({run.limit for run in runs}))
    across = _positions(cards)
    bands = "".join(_band(promised) for promised in sorted({run.promised for run in runs}))
    lines = "".join(
        _line([(across(run.sms), run) for run in runs if run.limit == limit], 100 * at / max(1, len(limits) - 1))
        for at, limit in enumerate(limits)
    )
    return _figure(
        f"{mode}: {work}", cards, bands + lines, [(value, f"{value:.0f}") for value in (0, 25, 50, 75, 100)]
    )


def _band(promised: float) -> str:
    top = _SIDE - min(100, promised + POINTS) / 100 * _SIDE
    height = 2 * POINTS / 100 * _SIDE
    return f'<rect x="0" y="{top:.1f}" width="{_SIDE}" height="{height:.1f}" fill="#cfe3d6"/>'


def _line(points: Sequence[tuple[float, Run]], shade: float) -> str:
    colour = f"hsl(215 60% {30 + shade * 0.3:.0f}%)"
    path = " ".join(f"{x:.1f},{_SIDE - min(100, run.mean) / 100 * _SIDE:.1f}" for x, run in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{_SIDE - min(100, run.mean) / 100 * _SIDE:.1f}" r="2.6" '
        f'fill="{colour if run.is_held else "#b3261e"}"><title>{run.sms} SMs, limit {run.limit:.0f} %: '
        f"{run.mean:.2f} %, {run.near:.1f} % of the seconds near</title></circle>"
        for x, run in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}"/>{dots}'


def _positions(cards: Sequence[int]) -> Callable[[int], float]:
    most = max(cards, default=1)
    return lambda sms: sms / most * (_SIDE - 8) if most else 0.0


def _floors(floors: Sequence[Floor]) -> str:
    """For each length of the borrower's kernels the milliseconds by card, a dot a limit."""
    kernels = tuple(dict.fromkeys(floor.kernel for floor in floors))
    plots = "".join(_plot_floor(kernel, [f for f in floors if f.kernel == kernel]) for kernel in kernels)
    return (
        "<p>A share that was idle launches again beside a borrower that fills the card. Across: SMs. Up: "
        "milliseconds from its first launch to the first half-second with nine tenths of its limit; the line is "
        f"the goal, {FLOOR_MS:.0f} ms.</p>{plots}"
    )


def _plot_floor(kernel: str, floors: Sequence[Floor]) -> str:
    cards = tuple(sorted({floor.sms for floor in floors}))
    across = _positions(cards)
    most = max(FLOOR_MS, *(floor.ms for floor in floors)) * 1.1

    def up(ms: float) -> float:
        return _SIDE - ms / most * _SIDE

    goal = _level(up(FLOOR_MS), "#c77700")
    dots = "".join(
        f'<circle cx="{across(f.sms):.1f}" cy="{up(f.ms):.1f}" r="3" fill="#2a5d9f" fill-opacity="0.55">'
        f"<title>{f.sms} SMs, limit {f.limit:.0f} %: {f.ms:.0f} ms</title></circle>"
        for f in floors
    )
    ticks = [(100 * value / most, f"{value:.0f}") for value in (0, FLOOR_MS / 2, FLOOR_MS)]
    _, unit, length = kernel.split("_")
    return _figure(f"borrower's kernels: {length} {unit}", cards, goal + dots, ticks)


def _level(height: float, colour: str) -> str:
    return f'<line x1="0" x2="{_SIDE}" y1="{height:.1f}" y2="{height:.1f}" stroke="{colour}"/>'


def _figure(title: str, cards: Sequence[int], content: str, ticks: Sequence[tuple[float, str]]) -> str:
    """A square plot; ticks of the upward axis are in percent of its height."""
    across = _positions(cards)
    labels = "".join(
        f'<text x="{across(sms):.1f}" y="{_SIDE + 14}" text-anchor="middle">{sms}</text>'
        for at, sms in enumerate(cards)
        if at in (0, len(cards) // 2, len(cards) - 1)
    )
    grid = "".join(
        _level(_SIDE - at / 100 * _SIDE, "#eee")
        + f'<text x="-6" y="{_SIDE - at / 100 * _SIDE + 4:.1f}" text-anchor="end">{text}</text>'
        for at, text in ticks
    )
    box = f"-{_MARGIN} -8 {_SIDE + _MARGIN + 12} {_SIDE + 30}"
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>"
        f'<svg viewBox="{box}" width="{_SIDE + _MARGIN + 12}" '
        f'height="{_SIDE + 30}" role="img" aria-label="{html.escape(title)}">{grid}{content}{labels}'
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/></svg></figure>'
    )
