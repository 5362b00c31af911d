"""The page: the answer, the pictures with their tables, and what is needed to do it again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tessera.simulator.report.answer import answer
from tessera.simulator.report.figures import emptiest, has_churn, policies_of, runs_of, standings
from tessera.simulator.report.markup import Markup, joined, tag
from tessera.simulator.report.picture import Picture, Table, inline, style_sheet
from tessera.simulator.report.pictures import pictures_of
from tessera.simulator.report.source import Results
from tessera.simulator.result import PolicyEntry, Summary

_SECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "allocation": (
        "How much was held",
        "Pods arrive one by one; one that fits nowhere is turned away and not tried again.",
    ),
    "fragmentation": (
        "Fragmentation",
        "Idle devices are worth something only if a pod that is likely to come could use them. Pods that ask for "
        "no device count as pods that can use none, so that the curves begin above nothing.",
    ),
    "idle": ("What stands idle, and why", "Means over all runs of a policy, in whole devices' worth."),
    "rejections": ("Who was turned away", ""),
    "map": (
        "The cluster at the end",
        "A column is a node, a square one of its devices, the darker the more of it is in use. Nodes with most "
        "left come first.",
    ),
}
_SECTION_OF: Final[Sequence[tuple[str, str]]] = (
    ("allocation", "allocation"),
    ("fragmentation", "fragmentation"),
    ("idle", "idle"),
    ("rests", "idle"),
    ("rejections", "rejections"),
    ("map", "map"),
)


def page(results: Results) -> str:
    """The whole page as one text; well-formed as XML too, so that any tool can read it."""
    summary = results.summary
    title = f"Simulation: {', '.join(policies_of(summary))}"
    style = "".join(style_sheet(name) for name in ("colours.css", "page.css", "picture.css"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", *_top(summary), *_sections(results), *_again(summary)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _top(summary: Summary) -> Iterator[Markup]:
    cluster, trace = summary.cluster, summary.trace
    count = len(summary.policies)
    yield tag(
        "h1", f"{count} placement policies compared" if count > 1 else f"Placing with {summary.policies[0].policy}"
    )
    seeds = len(summary.settings.seeds)
    yield tag(
        "p",
        f"{cluster.nodes:,} nodes with {cluster.devices:,} devices; {trace.pods:,} pods of {trace.shapes:,} kinds,"
        f" which ask for {100 * trace.milli / max(cluster.milli, 1):.0f} % of the devices; "
        f"{seeds} run{'s' * (seeds != 1)} of each policy.",
        class_="soft",
    )
    yield tag("p", answer(summary), class_="answer", id="answer")
    yield tag(
        "div", _table(_churn_table(summary) if has_churn(summary) else _standings_table(summary)), class_="scroll"
    )


def _standings_table(summary: Summary) -> Table:
    """The policies side by side, the best first."""
    points = [at for at in ("90", "95", "100", "130") if all(at in e.allocation for e in summary.policies)]
    if points and all(entry.allocation[points[-1]] == entry.end for entry in summary.policies):
        del points[-1]
    header = ("policy", *(f"held at {at} %" for at in points), "held at the end", "first rejection at")
    entries = {entry.policy: entry for entry in summary.policies}
    rows = (_standing_row(entries[standing.policy], points) for standing in standings(summary))
    return Table((*header, "rejected pods", "of them early", "multi-device pods placed early"), tuple(rows))


def _standing_row(entry: PolicyEntry, points: Sequence[str]) -> tuple[str, ...]:
    held = [entry.allocation[at] for at in points]
    spread = [f"{a.mean:.2f} %" + (f" ± {a.std:.2f}" if a.std else "") for a in (*held, entry.end)]
    return (
        entry.policy,
        *spread,
        f"{entry.first_rejection.mean:.1f} %" if entry.first_rejection else "never",
        f"{entry.rejected.mean:,.0f}",
        f"{entry.early.mean:,.0f}",
        f"{entry.many_accepted.mean:.1f} %" if entry.many_accepted else "-",
    )


def _churn_table(summary: Summary) -> Table:
    """The policies side by side where pods leave again: means over the seeds, the best first."""
    header = (
        "policy",
        "held on average",
        "demand rejected",
        "multi-device pods rejected",
        "placed",
        "moved",
        "moved per 100 placed",
        "nodes failed",
        "pods lost by that",
    )
    rows = []
    for standing in standings(summary):
        churns = [run.churn for run in runs_of(summary, standing.policy) if run.churn is not None]
        count = len(churns)
        rows.append(
            (
                standing.policy,
                f"{standing.held:.2f} %",
                f"{standing.turned_away or 0:.2f} %",
                f"{sum(churn.rejected_many for churn in churns) / count:.2f} %",
                f"{sum(churn.placed for churn in churns) / count:,.0f}",
                f"{sum(churn.moves for churn in churns) / count:,.0f}",
                f"{sum(churn.moves_per_100 for churn in churns) / count:.3f}",
                f"{sum(churn.failures for churn in churns) / count:,.0f}",
                f"{sum(churn.homeless for churn in churns) / count:,.0f}",
            )
        )
    kept = len(header) if summary.settings.failures else len(header) - 2
    return Table(header[:kept], tuple(row[:kept] for row in rows))


def _sections(results: Results) -> Iterator[Markup]:
    shown: dict[str, list[Picture]] = {}
    for picture in pictures_of(results):
        section = next(section for start, section in _SECTION_OF if picture.name.startswith(start))
        shown.setdefault(section, []).append(picture)
    for section, pictures in shown.items():
        title, lead = _SECTIONS[section]
        yield tag("h2", title, id=f"section-{section}")
        if lead:
            yield tag("p", lead, class_="soft")
        if section == "map":
            yield from _maps(results, pictures)
        else:
            yield tag("div", *map(_figure, pictures), class_="pair")


def _maps(results: Results, pictures: Sequence[Picture]) -> Iterator[Markup]:
    """The best policy's map and the nodes with most left on it; the other maps to be opened."""
    best = standings(results.summary)[0].policy
    for policy, picture in sorted(
        zip(policies_of(results.summary), pictures, strict=True), key=lambda p: p[0] != best
    ):
        figure = tag("div", _figure(picture), class_="wide")
        yield figure if policy == best else tag("details", tag("summary", picture.title), figure)
        if policy == best:
            header = ("node with most left", "model", "idle devices", "left in all", "processors left")
            rows = tuple(
                (name, model, f"{idle}", f"{left / 1000:.2f} devices", "-" if cpu is None else f"{cpu:.0f} %")
                for name, model, idle, left, cpu in emptiest(results, policy)
            )
            if rows:
                yield tag("div", _table(Table(header, rows)), class_="scroll", tabindex="0")


def _figure(picture: Picture) -> Markup:
    numbers = tag(
        "details", tag("summary", "the numbers"), tag("div", _table(picture.table), class_="scroll", tabindex="0")
    )
    note = [tag("figcaption", picture.note)] if picture.note else []
    return tag("figure", tag("h3", picture.title), inline(picture), *note, numbers, id=picture.name)


def _table(table: Table) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in table.header)))
    rows = (tag("tr", tag("th", row[0], scope="row"), *(tag("td", c) for c in row[1:])) for row in table.rows)
    return tag("table", head, tag("tbody", *rows))


def _again(summary: Summary) -> Iterator[Markup]:
    """Spare nodes, the command, the settings and the notes."""
    if summary.spares:
        yield tag("h2", "Nodes that could be given back", id="spares")
        header = ("policy", "seed", "nodes kept", "nodes to spare", "which")
        rows = ((s.policy, f"{s.seed}", f"{s.kept:,}", f"{len(s.spare):,}", _few(s.spare)) for s in summary.spares)
        yield tag("div", _table(Table(header, tuple(rows))), class_="scroll", tabindex="0")
    yield tag("h2", "To do it again", id="again")
    yield tag("p", "Equal input and settings give equal files.", class_="soft")
    yield tag("pre", tag("code", summary.settings.command))
    settings = [(key, value) for key, value in msgspec.to_builtins(summary.settings).items() if key != "command"]
    yield tag("dl", *(joined((tag("dt", key), tag("dd", _said(value)))) for key, value in settings))
    if summary.notes:
        yield tag("ul", *(tag("li", note) for note in summary.notes))
    yield tag(
        "p",
        f"Tessera {summary.version}. Files beside this page: summary.json, curve.csv, and each run's ",
        tag("code", "placements.csv"),
        " and ",
        tag("code", "cluster.csv"),
        ".",
        class_="soft",
    )


def _said(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value}"


def _few(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
