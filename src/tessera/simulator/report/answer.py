"""The answer in a sentence or two, before any picture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tessera.core.units import WHOLE
from tessera.simulator.report.figures import (
    Standing,
    ahead,
    asked_in_all,
    has_churn,
    idle_in_all,
    idle_parts,
    measured_at,
    standings,
)
from tessera.simulator.result import Summary

_BECAUSE: Final[Mapping[str, str]] = {
    "small": "{} % of it because too little is left on one device, or on too few devices of one node",
    "host": "{} % of it because the nodes have no processors or memory left",
    "wrong": "{} % of it because the workload may not use the model",
    "usable": "the workload could use {} % of it",
}
_ALIKE: Final = 0.05
"""Policies that differ by less, in percent of the cluster, are called equal."""


def answer(summary: Summary) -> str:
    """Which policy did best, by how much, and what stands idle under it and why."""
    ranked = standings(summary)
    first = _over_time(summary, ranked) if has_churn(summary) else _held(summary, ranked)
    return " ".join((first, _idle(summary, ranked[0].policy), *_spare(summary)))


def _spare(summary: Summary) -> Iterator[str]:
    """How many nodes could be given back at most, where that was asked."""
    if summary.spares:
        best = min(summary.spares, key=lambda spare: spare.kept)
        yield (
            f"Everything that was held is held on {best.kept:,} of {summary.cluster.nodes:,} nodes"
            f" under {best.policy}: {len(best.spare):,} could be given back."
        )


def _points(value: float) -> str:
    return f"{value:.1f} point" if round(value, 1) == 1 else f"{value:.1f} points"


def _held(summary: Summary, ranked: Sequence[Standing]) -> str:
    best = ranked[0]
    when = "When as much was asked for as there is" if measured_at(summary) else "At the end"
    said = f"{when}, {best.policy} held {best.held:.1f} % of the devices"
    if len(ranked) == 1:
        return f"{said}."
    others = [other for other in ranked[1:] if best.held - other.held >= _ALIKE]
    if not others:
        return f"{said}; the other policies held as much."
    named = ranked[1] if ranked[1] in others else others[0]
    gap = best.held - named.held
    worth = gap / 100 * summary.cluster.milli / WHOLE
    won, runs = ahead(summary, best.policy, named.policy)
    often = f"; ahead in {won} of {runs} runs" if runs > 1 else ""
    said += f", {_points(gap)} more than {named.policy} ({_devices(worth)}{often})"
    last = ranked[-1]
    return said + ("." if last is named else f" and {_points(best.held - last.held)} more than {last.policy}.")


def _devices(count: float) -> str:
    return f"{_few(count)} device" if _few(count) == "1" else f"{_few(count)} devices"


def _few(count: float) -> str:
    """A number of devices, with a decimal where there are few of them."""
    return f"{count:,.0f}" if count >= 10 or round(count, 1) % 1 == 0 else f"{count:.1f}"


def _over_time(summary: Summary, ranked: Sequence[Standing]) -> str:
    best = ranked[0]
    load = (
        f"With {100 * summary.settings.load:.0f} % of the cluster asked for at a time, "
        if summary.settings.load
        else ""
    )
    said = f"{load}{best.policy} turned away {best.turned_away or 0:.2f} % of the demand for devices"
    said += f" and held {best.held:.1f} % of them on average"
    if len(ranked) == 1:
        return f"{said}."
    others = ", ".join(f"{other.policy} {other.turned_away or 0:.2f} %" for other in ranked[1:])
    return f"{said}; turned away by the others: {others}."


def _idle(summary: Summary, policy: str) -> str:
    parts = idle_parts(summary, policy)
    total = sum(part.idle for part in parts)
    if round(total, 1) == 0:
        return "Next to nothing stands idle at the end."
    reasons = idle_in_all(parts)
    chief = max(reasons, key=lambda reason: reasons[reason])
    share = 100 * reasons[chief] / total
    asked = asked_in_all(summary, policy)
    end = f"the end ({asked:.0f} % asked for)" if measured_at(summary) and asked > 101 else "the end"
    worth = "1 device's" if _few(total) == "1" else f"{_few(total)} devices'"
    where = f"{100 * parts[0].idle / total:.0f} % of it on {parts[0].model}" if len(parts) > 1 else ""
    return (
        f"At {end} {worth} worth stands idle under it"
        f"{f', {where}' if where else ''}; {_BECAUSE[chief].format(round(share))}."
    )
