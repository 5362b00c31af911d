"""The pictures of a simulation, from its figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tessera.simulator.curve import Point
from tessera.simulator.report.charts import Axes, curves, grid, grouped_bars, parted_bars
from tessera.simulator.report.figures import (
    REASONS,
    Spread,
    Turned,
    curve_of,
    has_churn,
    held_by_model,
    idle_in_all,
    idle_parts,
    policies_of,
    rests,
    standings,
    turned_away,
)
from tessera.simulator.report.heat import heat_map, lines_of
from tessera.simulator.report.picture import Picture, Table
from tessera.simulator.report.source import Results
from tessera.simulator.result import Kind

RESTS: Final = ("full", "<10", "<20", "<30", "<40", "<50", "<60", "<70", "<80", "<90", "<100", "idle")
KIND_WORDS: Final[Mapping[Kind, str]] = {
    Kind.CPU_ONLY: "no device",
    Kind.SHARING: "part of a device",
    Kind.ONE: "one device",
    Kind.MANY: "several devices",
}
_STYLES: Final = {"small": "small-rest", "host": "host", "wrong": "wrong", "usable": "usable"}
_PARTS: Final = (
    ("too small a rest", "small-rest"),
    ("node out of processors or memory", "host"),
    ("wrong model", "wrong"),
    ("usable", "usable"),
)
_IDLE_NOTE: Final = (
    "Each idle device is divided by how much of the workload's demand for devices could still use it: that "
    "part is usable; the rest is idle for the reason that is met first (wrong model, too small a rest, node)."
)
_FEW: Final = 12
"""Points of a curve that its table shows."""


def pictures_of(results: Results) -> list[Picture]:
    """All pictures, in the order of the page."""
    found = [*_curves(results), *_idle(results), *_turned(results)]
    found += [_map(results, policy, i) for i, policy in enumerate(policies_of(results.summary))]
    return found


def _curves(results: Results) -> Iterator[Picture]:
    held = _series(results, lambda point: point.allocation)
    if has_churn(results.summary) or not any(points for _, points in held):
        return
    last = max(points[-1].arrived for _, points in held if points)
    yield _curve("allocation", "How full the cluster got", held, _whole(last))
    if zoomed := _zoomed(held, last):
        yield _curve("allocation-end", "How full the cluster got, close up", held, zoomed)
    lost = _series(results, lambda point: point.fragmentation)
    if any(points for _, points in lost):
        most = max(p.greatest for _, points in lost for p in points)
        axes = Axes(0, last, 0, most * 1.08 or 1, "% of all devices", _BELOW)
        yield _curve("fragmentation", "Idle, but of no use to the workload", lost, axes)
    ratio = _series(results, lambda point: point.ratio)
    if any(points for _, points in ratio):
        axes = Axes(0, last, 0, 100, "% of what is idle", _BELOW)
        yield _curve("fragmentation-ratio", "Part of the idle that is of no use", ratio, axes)


_BELOW: Final = "asked for so far, % of what the cluster has"


def _series(results: Results, value: Callable[[Point], float | None]) -> list[tuple[str, list[Spread]]]:
    return [(policy, curve_of(results, policy, value)) for policy in policies_of(results.summary)]


def _whole(last: int) -> Axes:
    return Axes(0, last, 0, 100, "% of devices held", _BELOW)


def _zoomed(series: Sequence[tuple[str, Sequence[Spread]]], last: int) -> Axes | None:
    """The part of the picture from where the curves part, if that is worth a picture of its own."""
    if len(series) < 2:
        return None
    by_percent: dict[int, list[float]] = {}
    for point in (point for _, points in series for point in points):
        by_percent.setdefault(point.arrived, []).append(point.mean)
    parted = [at for at, means in by_percent.items() if max(means) - min(means) >= 1]
    if not parted or min(parted) < last / 4:
        parted = [max(last - 50, 0)]
    start = max(min(parted) // 5 * 5 - 5, 0)
    seen = [p for _, points in series for p in points if p.arrived >= start]
    low, high = min(p.least for p in seen), max(p.greatest for p in seen)
    return Axes(start, last, max(low // 2 * 2, 0), min(high + 1.5, 100), "% of devices held", _BELOW)


def _curve(name: str, title: str, series: Sequence[tuple[str, Sequence[Spread]]], axes: Axes) -> Picture:
    held = name.startswith("allocation")
    body = curves(axes, series, limit=held)
    ends = ", ".join(f"{policy} {points[-1].mean:.1f}" for policy, points in series if points)
    note = "Bands span the seeds." if any(p.least < p.greatest for _, points in series for p in points) else ""
    if held:
        note = f"Dotted: all that was asked for, as far as there is so much. {note}".strip()
    described = f"A curve for each policy over the percentage asked for; at the end: {ends} ({axes.left})."
    return Picture(name, title, described, axes.height, body, _curve_table(series, axes.start), note)


def _curve_table(series: Sequence[tuple[str, Sequence[Spread]]], start: float) -> Table:
    """Some points of the curves, evenly spread, the last one among them."""
    found = {policy: {point.arrived: point for point in points} for policy, points in series}
    percents = sorted({at for points in found.values() for at in points if at >= start})
    step = max(1, -(-len(percents) // _FEW))
    rows = []
    for at in percents[::-1][::step][::-1]:
        points = [of.get(at) for of in found.values()]
        rows.append((f"{at} %", *(f"{point.mean:.2f}" if point else "-" for point in points)))
    return Table(("asked for", *found), tuple(rows))


def _idle(results: Results) -> Iterator[Picture]:
    summary = results.summary
    policies = policies_of(summary)
    best = standings(summary)[0].policy
    by_policy = {policy: idle_parts(summary, policy) for policy in policies}
    if not any(by_policy.values()):
        return
    if len(policies) > 1:
        rows = [(policy, idle_in_all(parts)) for policy, parts in by_policy.items()]
        yield _idle_picture("idle", "Idle devices at the end, and why", rows)
    models = [(p.model, {reason: float(getattr(p, reason)) for reason in REASONS}) for p in by_policy[best]]
    yield _idle_picture("idle-models", f"Idle devices by model, under {best}", models)
    left = rests(summary, best)
    yield _rests_picture("rests", f"How much is left on devices, under {best}", list(left.items()))
    if len(policies) > 1:
        rows_of_all = [(policy, _sums(rests(summary, policy))) for policy in policies]
        yield _rests_picture("rests-policies", "How much is left on devices, by policy", rows_of_all)


def _sums(by_model: Mapping[str, Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*by_model.values(), strict=True)]


def _idle_picture(name: str, title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Picture:
    values = [(row, [reasons[reason] for reason in REASONS]) for row, reasons in rows]
    body, height = parted_bars(values, _PARTS, "devices")
    sums = "; ".join(f"{row} {sum(parts):,.0f}" for row, parts in values)
    cells = [(row, f"{sum(v):,.1f}", *(f"{part:,.1f}" for part in v)) for row, v in values]
    table = Table(("devices' worth", "idle", *(part for part, _ in _PARTS)), tuple(cells))
    described = f"Bars of devices' worth that stand idle, in parts by reason. In all: {sums}."
    return Picture(name, title, described, height, body, table, _IDLE_NOTE if name != "idle-models" else "")


def _rests_picture(name: str, title: str, rows: Sequence[tuple[str, Sequence[float]]]) -> Picture:
    """Without the full devices: they would outshine all others, and have nothing left."""
    body, height = grid([(row, values[1:]) for row, values in rows], RESTS[1:], "left of a device, %")
    cells = [(row, *(f"{value:,.1f}" for value in values)) for row, values in rows]
    described = "A grid of how many devices have how much left; every number is in the table."
    note = "Numbers of devices; full ones are left out. Rests smaller than anything that is asked for are lost."
    return Picture(name, title, described, height, body, Table(("left, %", *RESTS), tuple(cells)), note)


def class_words(turned: Turned) -> str:
    """A class of pods in words."""
    return KIND_WORDS[turned.kind] + (" of certain models" if turned.constrained else "")


def _turned(results: Results) -> Iterator[Picture]:
    summary = results.summary
    policies = policies_of(summary)
    by_policy = {policy: turned_away(summary, policy) for policy in policies}
    classes = [class_words(turned) for turned in by_policy[policies[0]]]
    early = not has_churn(summary)
    rate: Callable[[Turned], float] = (lambda t: t.early_percent) if early else (lambda t: t.percent)
    groups = [(name, [rate(by_policy[policy][i]) for policy in policies]) for i, name in enumerate(classes)]
    body, height = grouped_bars(groups, policies, lambda value: f"{value:.1f} %")
    rows = [_turned_row(policy, turned) for policy in policies for turned in by_policy[policy]]
    header = ("policy", "class", "arrived", "rejected", "%", "rejected early", "% early", "devices rejected")
    title = "Turned away while there was enough for all" if early else "Rejected pods by class"
    note = (
        "Percent of the pods of each class that were rejected"
        + (" before more was asked for than the cluster has" if early else "")
        + "; the table has all rejections, over all seeds."
    )
    worst = max(groups, key=lambda group: max(group[1]), default=("", [0.0]))
    described = f"Bars by class of pods and policy. The most: {worst[0]}, {max(worst[1]):.1f} %."
    yield Picture("rejections", title, described, height, body, Table(header, tuple(rows)), note)


def _turned_row(policy: str, turned: Turned) -> tuple[str, ...]:
    return (
        policy,
        class_words(turned),
        f"{turned.arrived:,}",
        f"{turned.rejected:,}",
        f"{turned.percent:.1f}",
        f"{turned.early:,}",
        f"{turned.early_percent:.1f}",
        f"{turned.rejected_demand:,.1f}",
    )


def _map(results: Results, policy: str, position: int) -> Picture:
    held = held_by_model(results, policy)
    lines = list(lines_of(held))
    body, height = heat_map(results.nodes[policy], lines)
    rows = [
        (model, f"{held[model][0]:,}", f"{held[model][1]:,}", f"{held[model][2] / (10 * held[model][1]):.1f}")
        for model, _ in lines
    ]
    seed = next(run.seed for run in results.summary.runs if run.policy == policy)
    described = (
        f"A square for each device, shaded by how much of it is in use. {'; '.join(line for _, line in lines)}."
    )
    table = Table(("model", "nodes", "devices", "% in use"), tuple(rows))
    return Picture(
        f"map-{position}", f"The cluster at the end: {policy}, seed {seed}", described, height, body, table
    )
