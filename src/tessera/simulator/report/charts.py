"""The kinds of pictures: curves, bars in parts, bars side by side, and a grid of shaded numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.simulator.report.figures import Spread
from tessera.simulator.report.markup import Markup, joined, number, tag
from tessera.simulator.report.picture import COLOURS, WIDTH, legend, text
from tessera.simulator.report.scale import Scale, ticks

_LEFT: Final = 44
_RIGHT: Final = 104
"""Room for the names at the ends of curves."""


@dataclass(frozen=True, slots=True)
class Axes:
    """What a picture of curves shows: percent arrived (``start`` to ``end``), values (``low`` to ``high``)."""

    start: float
    end: float
    low: float
    high: float
    left: str
    below: str
    height: float = 280

    @property
    def across(self) -> Scale:
        """From percent arrived to the coordinate."""
        return Scale(self.start, self.end, _LEFT, WIDTH - _RIGHT)

    @property
    def up(self) -> Scale:
        """From a value to the coordinate."""
        return Scale(self.low, self.high, self.height - 40, 22)


def curves(axes: Axes, series: Sequence[tuple[str, Sequence[Spread]]], limit: bool = False) -> Markup:
    """Curves by name, with bands for the range of seeds; ``limit`` draws what had arrived, or all there is."""
    parts = [*_frame(axes)]
    if limit:
        # Cut where it leaves the picture: all that was asked for, up to all there is.
        corner = min(100.0, axes.high, axes.end)
        line = [(at, at) for at in (max(axes.start, axes.low), corner)]
        line += [(axes.end, 100.0)] if corner == 100 else []
        parts.append(tag("path", d=_path(axes, line), class_="limit"))
    ends: list[tuple[float, str, int]] = []
    for i, (name, points) in enumerate(series):
        seen = [point for point in points if axes.start <= point.arrived <= axes.end]
        if not seen:
            continue
        style = i % COLOURS
        upper, lower = [(p.arrived, p.greatest) for p in seen], [(p.arrived, p.least) for p in reversed(seen)]
        parts.append(tag("path", d=_path(axes, upper + lower) + "Z", class_=f"band f{style}"))
        middle = [(p.arrived, p.mean) for p in seen]
        parts.append(tag("path", tag("title", name), d=_path(axes, middle), class_=f"curve l{style}"))
        ends.append((axes.up.at(seen[-1].mean), name, style))
    return joined([*parts, *_names(axes, ends)])


def _frame(axes: Axes) -> Iterator[Markup]:
    bottom = axes.up.at(axes.low)
    for value in ticks(axes.low, axes.high):
        y = axes.up.at(value)
        yield tag("path", d=f"M{_LEFT} {number(y)}H{WIDTH - _RIGHT}", class_="rule")
        yield text(number(value), _LEFT - 6, y + 4, "small soft end")
    for value in ticks(axes.start, axes.end, 7):
        yield text(number(value), axes.across.at(value), bottom + 16, "small soft middle")
    yield tag("path", d=f"M{_LEFT} {number(bottom)}H{WIDTH - _RIGHT}", class_="axis")
    yield text(axes.left, 4, 12, "small soft")
    yield text(axes.below, (_LEFT + WIDTH - _RIGHT) / 2, bottom + 33, "small soft middle")


def _path(axes: Axes, points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(axes.across.at(x))} {number(axes.up.at(y))}" for x, y in points)


def _names(axes: Axes, ends: Sequence[tuple[float, str, int]]) -> Iterator[Markup]:
    """Each curve's name at its end, pushed apart where ends lie close, with a piece of the curve before it."""
    least = 20.0
    below = axes.height - 44 - 16 * len(ends)
    for i, (y, name, style) in enumerate(sorted(ends)):
        at = max(min(y, below + 16 * (i + 1)), least)
        least = at + 16
        x = WIDTH - _RIGHT + 4
        yield tag("path", d=f"M{x} {number(at)}h18", class_=f"curve l{style}")
        yield text(name, x + 22, at + 4, "small")


def parted_bars(
    rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[tuple[str, str]], unit: str
) -> tuple[Markup, float]:
    """A bar for each row in parts (name, style), its sum written behind it; and how high that is."""
    most = max((sum(values) for _, values in rows), default=0.0) or 1.0
    label = _label_width([name for name, _ in rows])
    scale = Scale(0, most, label, WIDTH - 76)
    drawn, down = legend([name for name, _ in parts], [style for _, style in parts], 4, 4)
    found: list[str] = [drawn]
    for i, (name, values) in enumerate(rows):
        y, before = down + 8 + i * 26, 0.0
        found.append(text(name, label - 8, y + 13, "end"))
        for value, (part, style) in zip(values, parts, strict=True):
            x, until = scale.at(before), scale.at(before + value)
            said = tag("title", f"{name}: {value:,.1f} {unit}, {part}")
            found.append(tag("rect", said, x=x, y=y, width=max(until - x, 0), height=18, class_=style))
            before += value
        found.append(text(f"{before:,.1f}", scale.at(before) + 6, y + 13))
    return joined(found), down + 8 + 26 * len(rows)


def _label_width(names: Sequence[str]) -> float:
    return min(24 + 7.6 * max(map(len, names), default=0), WIDTH / 3)


def grouped_bars(
    groups: Sequence[tuple[str, Sequence[float]]], series: Sequence[str], written: Callable[[float], str]
) -> tuple[Markup, float]:
    """For each group a bar of each series, with its value behind it; and how high that is."""
    most = max((value for _, values in groups for value in values), default=0.0) or 1.0
    scale = Scale(0, most, 8, WIDTH - 64)
    styles = [f"f{i % COLOURS}" for i in range(len(series))]
    drawn, y = legend(series, styles, 4, 4)
    found: list[str] = [drawn]
    for name, values in groups:
        y += 20
        found.append(text(name, 8, y))
        y += 5
        for value, style, of in zip(values, styles, series, strict=True):
            said = tag("title", f"{name}, {of}: {written(value)}")
            wide = max(scale.at(value) - 8, 1.0)
            found.append(tag("rect", said, x=8, y=y, width=wide, height=10, class_=style))
            found.append(text(written(value), 8 + wide + 5, y + 9, "small"))
            y += 13
    return joined(found), y + 8


def grid(rows: Sequence[tuple[str, Sequence[float]]], columns: Sequence[str], below: str) -> tuple[Markup, float]:
    """Numbers in cells, the darker the greater (by the root, for few devices matter too); and how high that is."""
    label = _label_width([name for name, _ in rows])
    wide = (WIDTH - label - 4) / len(columns)
    most = max((value for _, values in rows for value in values), default=0.0) or 1.0
    found: list[str] = []
    for i, (name, values) in enumerate(rows):
        y = 6 + i * 26
        found.append(text(name, label - 8, y + 15, "end"))
        for j, value in enumerate(values):
            level = min(5, int((value / most) ** 0.5 * 5) + 1) if value >= 0.05 else 0
            style = f"u{level}" if level else "none"
            x = label + j * wide
            said = tag("title", f"{name}, {columns[j]} left: {value:,.1f} devices")
            found.append(tag("rect", said, x=x, y=y, width=wide - 2, height=24, class_=style))
            if level:
                shade = "on" if level >= 4 else "under"
                found.append(text(_short(value), x + wide / 2 - 1, y + 16, f"small middle {shade}"))
    end = 6 + 26 * len(rows)
    for j, column in enumerate(columns):
        found.append(text(column, label + (j + 0.5) * wide - 1, end + 13, "small soft middle"))
    found.append(text(below, label, end + 31, "small soft"))
    return joined(found), end + 38


def _short(value: float) -> str:
    """A count in at most four characters."""
    if value >= 9_999.5:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 1 else "<1"
