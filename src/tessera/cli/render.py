"""Plans for people: columns, compact device lists, reasons and a summary, as lines of text.

Lines are plain where they go into a pipe or a file: nothing is cut, so that ``grep`` and ``awk`` see whole names.
Drawn without rich on purpose: thousands of rows must take milliseconds, and a pipe must get exactly what a
terminal gets.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import click

from tessera.core.units import render_mib, render_percent
from tessera.wire.planfile import (
    ChargeEntry,
    Level,
    Outcome,
    Plan,
    PodEntry,
    ReasonEntry,
)

_HEADER: Final = ("POD", "DIALECT", "OUTCOME", "NODE", "DEVICES (index:memory/compute)")
_WORD: Final[Mapping[Outcome, str]] = {
    Outcome.PLACED: "placed",
    Outcome.REJECTED: "rejected",
    Outcome.INVALID: "invalid",
    Outcome.NOT_OURS: "not ours",
}
_COLOUR: Final[Mapping[Outcome, str]] = {
    Outcome.PLACED: "green",
    Outcome.REJECTED: "red",
    Outcome.INVALID: "red",
    Outcome.NOT_OURS: "bright_black",
}
_REJECTIONS_SHOWN: Final = 30
_GROUPS_SHOWN: Final = 6
_NAMES_SHOWN: Final = 3
_MIB_PER_GIB: Final = 1024


def plan_lines(plan: Plan, *, wide: bool = False) -> Iterator[str]:
    """The whole plan as lines: pods, then what was refused and why, what was skipped, warnings, the summary."""
    if plan.pods:
        yield from _pod_lines(plan.pods, wide=wide)
    yield from _section("Rejected", _rejections(plan.pods, wide=wide))
    yield from _section("Skipped", _skipped(plan))
    yield from _section("Warnings", _warnings(plan.pods))
    if plan.pods or plan.skipped:
        yield ""
    yield from _summary(plan)


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    """``lines`` under a title and a blank line, or nothing where there are none."""
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
            yield click.style(f"{title}:", bold=True)
        yield line


def _pod_lines(pods: Sequence[PodEntry], *, wide: bool) -> Iterator[str]:
    twice = {key for key, count in Counter(map(_key, pods)).items() if count > 1}
    rows = [_cells(pod, name_the_file=_key(pod) in twice) for pod in pods]
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    yield click.style(_aligned(_HEADER, widths), bold=True)
    for pod, row in zip(pods, rows, strict=True):
        line = _aligned(row, widths)
        word, start = row[2], widths[0] + widths[1] + 4
        yield f"{line[:start]}{click.style(word, fg=_COLOUR[pod.outcome])}{line[start + len(word) :]}"
        if wide:
            yield from _container_lines(pod)


def _key(pod: PodEntry) -> str:
    return f"{pod.namespace}/{pod.name}"


def _cells(pod: PodEntry, *, name_the_file: bool) -> tuple[str, ...]:
    """A pod's row; its file stands behind the name where two files have a pod of that name."""
    return (
        f"{_key(pod)} ({pod.source.rpartition('/')[2]})" if name_the_file else _key(pod),
        pod.dialect or "-",
        _WORD[pod.outcome],
        pod.node or "-",
        devices_cell(pod.charges) or "-",
    )


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def devices_cell(charges: Sequence[ChargeEntry]) -> str:
    """Devices by index with what is taken of each, equal neighbours joined: ``0-3:80Gi/100% 5:4Gi/10%``."""
    by_index = sorted(charges, key=lambda charge: charge.index)
    parts = []
    for share, group in groupby(by_index, key=lambda c: (c.memory_mib, c.compute_milli, c.exclusive)):
        memory, compute, exclusive = share
        text = "whole" if exclusive else f"{_mib(memory)}/{render_percent(compute)}"
        parts.append(f"{_ranges([charge.index for charge in group])}:{text}")
    return " ".join(parts)


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers with runs joined: ``0-2,5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _mib(mib: int) -> str:
    return f"{mib // _MIB_PER_GIB}Gi" if mib and mib % _MIB_PER_GIB == 0 else f"{mib}Mi"


def _container_lines(pod: PodEntry) -> Iterator[str]:
    for name, container in pod.containers.items():
        for device in container.devices:
            memory, compute = device.memory_mib, device.compute_milli
            yield (
                f"  {name}: {device.uuid} ({device.model}), "
                f"memory {render_mib(memory.request)} (limit {render_mib(memory.limit)}), "
                f"compute {render_percent(compute.request)} (limit {render_percent(compute.limit)})"
            )


def _rejections(pods: Sequence[PodEntry], *, wide: bool) -> Iterator[str]:
    """Rejected pods with reasons and the smallest changes; those that read alike are shown once."""
    alike: dict[object, list[PodEntry]] = {}
    for pod in pods:
        if pod.outcome is Outcome.REJECTED:
            alike.setdefault((pod.reasons, pod.suggestions), []).append(pod)
    groups = list(alike.values())
    shown = len(groups) if wide else _REJECTIONS_SHOWN
    for group in groups[:shown]:
        yield from _rejection(group, wide=wide)
    if rest := groups[shown:]:
        yield f"  and {sum(map(len, rest)):,} pods more for other reasons (-o wide lists them all)"


def _rejection(alike: Sequence[PodEntry], *, wide: bool) -> Iterator[str]:
    first = alike[0]
    others = f" and {len(alike) - 1:,} more like it" if len(alike) > 1 else ""
    itself = first.object == f"Pod/{first.namespace}/{first.name}"
    place = first.source if itself else f"{first.object} in {first.source}"
    origin = click.style(f"({place})", fg="bright_black")
    yield f"  {click.style(f'{first.namespace}/{first.name}', bold=True)}{others} {origin}"
    shown = len(first.reasons) if wide else _GROUPS_SHOWN
    for reason in first.reasons[:shown]:
        yield f"    {reason_line(reason)}"
    if len(first.reasons) > shown:
        rest = first.reasons[shown:]
        nodes = sum(reason.node_count for reason in rest)
        yield f"    {nodes:,} nodes more in {len(rest)} groups (-o wide lists them)"
    for suggestion in first.suggestions if wide else first.suggestions[:1]:
        yield f"    {click.style('would fit:', fg='cyan')} {suggestion.text}"
    if not first.suggestions:
        yield f"    {click.style('would fit:', fg='cyan')} no single change is enough"


def reason_line(reason: ReasonEntry) -> str:
    """Nodes that refuse alike, and why."""
    return f"{_nodes_of(reason)}: {'; '.join(shortfall.text for shortfall in reason.shortfalls)}"


def _nodes_of(reason: ReasonEntry) -> str:
    if reason.node_count == 1:
        return f"node {reason.nodes[0]}"
    if reason.node_count <= _NAMES_SHOWN:
        return f"nodes {', '.join(reason.nodes)}"
    return f"{reason.node_count:,} nodes ({reason.nodes[0]}, {reason.nodes[1]}, ...)"


def _skipped(plan: Plan) -> Iterator[str]:
    """Skipped objects, those of one kind and one cause on one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for entry in plan.skipped:
        kind, name = entry.kind or "(no kind)", entry.name or entry.source.rpartition("/")[2]
        alike.setdefault((kind, entry.why), []).append(name)
    for (kind, why), names in alike.items():
        more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
        yield f"  {kind} {', '.join(names[:_NAMES_SHOWN])}{more}: {why}"


def _warnings(pods: Iterable[PodEntry]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for pod in pods:
        for warning in pod.warnings:
            counts[warning] = counts.get(warning, 0) + 1
    for warning, count in counts.items():
        yield f"  {warning}{f' ({count:,} pods)' if count > 1 else ''}"


def _summary(plan: Plan) -> Iterator[str]:
    fleet, summary = plan.fleet, plan.summary
    for note in fleet.notes:
        yield f"{click.style('note:', fg='yellow')} {note}"
    yield (
        f"Fleet {fleet.source}: {_count(fleet.nodes, 'node')}, {_count(fleet.devices, 'device')}, "
        f"{_gib(fleet.memory_mib)} of device memory; policy {plan.policy}"
    )
    yield (
        f"Allocated memory {_change(summary.memory_mib)} and compute {_change(summary.compute_milli)} of the fleet"
    )
    counts = (
        (summary.placed, "placed", "green"),
        (summary.rejected, "rejected", "red"),
        (summary.invalid, "invalid", "red"),
        (summary.not_ours, "not ours", "bright_black"),
    )
    said = [
        click.style(f"{count:,} {word}", fg=colour if count else None)
        for count, word, colour in counts
        if count or word in ("placed", "rejected")
    ]
    skipped = f"; {_count(summary.skipped, 'object')} skipped" if summary.skipped else ""
    yield f"{click.style('Pods', bold=True)} {', '.join(said)}{skipped}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _gib(mib: int) -> str:
    return f"{mib / _MIB_PER_GIB:,.0f} GiB"


def _change(level: Level) -> str:
    return f"{_part(level.before, level)} -> {_part(level.after, level)}"


def _part(amount: int, level: Level) -> str:
    return f"{100 * amount / level.capacity:.1f}%" if level.capacity else "-"
