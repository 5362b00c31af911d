"""Devices, accounts and use of a cluster for people, as lines of text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click

from tessera.cli.columns import columns, gib, percent
from tessera.cli.render import reason_line
from tessera.cluster.account import Account, Contained, Neighbour
from tessera.cluster.anomalies import Anomaly
from tessera.cluster.devices import DeviceRow, Devices, Holding, How
from tessera.cluster.top import DeviceUse, PodUse, Top
from tessera.cluster.words import charge_text, tier_text
from tessera.core.placement import Charge
from tessera.core.units import WHOLE

_DEVICES: Final = (
    "NODE", "DEVICE", "MODEL", "MEMORY", "ALLOCATED", "FREE", "COMPUTE", "SHARES", "HEALTH", "HELD BY",
)  # fmt: skip
_WIDE: Final = ("UUID", "VENDOR", "NUMA", "ISOLATION")
_DEVICES_RIGHT: Final = (1, 3, 4, 5, 6, 7)
_PODS: Final = (
    "NAMESPACE", "POD", "CONTAINER", "NODE", "DEVICE", "USED", "LIMIT", "OF LIMIT", "PEAK", "COMPUTE", "REFUSED",
    "LIMITS",
)  # fmt: skip
_PODS_RIGHT: Final = (4, 5, 6, 7, 8, 9, 10)
_USES: Final = (
    "NODE", "DEVICE", "MODEL", "USED", "ALLOCATED", "MEMORY", "BUSY", "COMPUTE ALLOCATED", "SHARES", "HEALTH",
)  # fmt: skip
_USES_RIGHT: Final = (1, 3, 4, 5, 6, 7, 8)
_NAMES_SHOWN: Final = 3
_ANOMALIES_SHOWN: Final = 20
_HOLDERS_SHOWN: Final = 12
_GROUPS_SHOWN: Final = 6
_CHANGES_SHOWN: Final = 3
UNKNOWN: Final = "-"


def device_lines(found: Devices, *, wide: bool = False) -> Iterator[str]:
    """A table of devices, and under it what is not as it should be."""
    if not found.devices:
        yield "No devices: no agent has reported any from these nodes."
    else:
        header = (*_DEVICES[:-1], *_WIDE, _DEVICES[-1]) if wide else _DEVICES
        yield from columns(header, [device_cells(row, wide=wide) for row in found.devices], _DEVICES_RIGHT)
    yield from anomaly_lines(found.anomalies, wide=wide)


def device_cells(row: DeviceRow, *, wide: bool = False) -> tuple[str, ...]:
    """A device as cells."""
    more = (row.uuid, row.vendor, _or_dash(row.numa), row.isolation or UNKNOWN) if wide else ()
    return (
        row.node,
        str(row.index),
        row.model,
        gib(row.memory_mib),
        "whole" if row.exclusive else gib(row.memory_allocated_mib),
        gib(row.memory_free_mib),
        percent(row.compute_allocated_milli),
        str(row.shares),
        _health(row),
        *more,
        _who(row.holders, wide=wide),
    )


def _health(row: DeviceRow) -> str:
    if not row.healthy:
        return f"unhealthy ({row.reason})" if row.reason else "unhealthy"
    return "healthy" if row.usable else "node takes no pods"


def _who(holders: Sequence[Holding], *, wide: bool) -> str:
    if not holders:
        return UNKNOWN
    if wide:
        return "; ".join(f"{h.pod}{_how(h)} {_amount(h)}" for h in holders)
    names = [f"{h.pod}{_how(h)}" for h in holders[:_NAMES_SHOWN]]
    rest = len(holders) - len(names)
    return f"{', '.join(names)} and {rest} more" if rest else ", ".join(names)


def _how(holding: Holding) -> str:
    return {How.SHARE: "", How.SET_ASIDE: " (set aside)", How.FOREIGN: " (not Tessera's)"}[holding.how]


def _amount(holding: Holding) -> str:
    charge = Charge("", holding.memory_mib, holding.compute_milli, 1, holding.exclusive)
    return charge_text(charge)


def anomaly_lines(anomalies: Sequence[Anomaly], *, wide: bool = False) -> Iterator[str]:
    """What is not as it should be, under a title; nothing where all is well."""
    if not anomalies:
        return
    yield ""
    yield click.style("Not as it should be:", bold=True)
    shown = len(anomalies) if wide else _ANOMALIES_SHOWN
    for anomaly in anomalies[:shown]:
        yield f"  {anomaly.object} {anomaly.text}"
    if len(anomalies) > shown:
        yield f"  and {len(anomalies) - shown:,} more (-o wide lists them)"


# one pod


def account_lines(account: Account, *, wide: bool = False) -> Iterator[str]:
    """The account of a pod."""
    yield f"{click.style(f'{account.namespace}/{account.name}', bold=True)} {account.says}"
    yield ""
    for line in account.asked:
        yield _fact("asked", line)
    if account.dialect:
        yield _fact("dialect", account.dialect)
    if account.tier is not None:
        yield _fact("tier", tier_text(account.tier))
    for container in account.containers:
        yield from _container_lines(container)
    yield from _some("beside it", list(map(_neighbour, account.beside)), _HOLDERS_SHOWN, wide=wide)
    if account.could_be_on:
        yield _fact("fits on", _names(account.could_be_on))
    yield from _some("not on", list(map(reason_line, account.elsewhere)), _GROUPS_SHOWN, wide=wide)
    yield from _some("why not", list(map(reason_line, account.reasons)), _GROUPS_SHOWN, wide=wide)
    yield from _remedies(account, wide=wide)
    yield from _some("held", list(map(_held, account.held_by)), _HOLDERS_SHOWN, wide=wide)
    if account.scheduler_says:
        yield _fact("scheduler", f"{account.scheduler or 'the scheduler'} says: {account.scheduler_says}")
    for note in account.notes:
        yield _fact("note", note)


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMES_SHOWN} more" if len(nodes) > _NAMES_SHOWN else ""
    return f"node{'s' * (len(nodes) > 1)} {', '.join(nodes[:_NAMES_SHOWN])}{more}"


def _remedies(account: Account, *, wide: bool) -> Iterator[str]:
    if not account.reasons:
        return
    if account.suggestions:
        yield from _some("would fit", [s.text for s in account.suggestions], _CHANGES_SHOWN, wide=wide)
    else:
        yield _fact("would fit", "no single change is enough")
    if account.waiting_helps:
        yield _fact("waiting", "helps: it fits when those who hold devices now have ended")
    else:
        yield _fact("waiting", "does not help: it would not fit even if nobody held anything")


def _container_lines(container: Contained) -> Iterator[str]:
    ticket = "" if container.ticket is None else f" (ticket {container.ticket})"
    if not container.devices:
        yield _fact("container", f"{container.name}{ticket}")
    for device in container.devices:
        yield _fact("container", f"{container.name}{ticket}: {device.text}, {device.uuid}")


def _neighbour(other: Neighbour) -> str:
    return f"{other.holding.pod}{_how(other.holding)} on device {other.device}: {_amount(other.holding)}"


def _held(other: Neighbour) -> str:
    holding = other.holding
    return f"{holding.pod}{_how(holding)} on node {other.node}, device {other.device}: {_amount(holding)}"


def _some(word: str, lines: Sequence[str], most: int, *, wide: bool) -> Iterator[str]:
    shown = len(lines) if wide else most
    for line in lines[:shown]:
        yield _fact(word, line)
    if len(lines) > shown:
        yield _fact(word, f"and {len(lines) - shown:,} more (-o wide lists them)")


def _fact(word: str, text: str) -> str:
    label = f"{word}:"
    return f"{click.style(f'{label:<11}', fg='cyan')} {text}"


# use


def top_lines(top: Top, *, devices: bool) -> Iterator[str]:
    """A table of use, and the nodes of which nothing is known."""
    if devices:
        yield from columns(_USES, list(map(_device_use, top.devices)), _USES_RIGHT)
    elif top.pods:
        yield from columns(_PODS, list(map(_pod_use, top.pods)), _PODS_RIGHT)
    else:
        yield "No pods hold a share."
    if top.silent:
        yield ""
        yield from _silence(top)


def _silence(top: Top) -> Iterator[str]:
    by_why: dict[str, list[str]] = {}
    for silence in top.silent:
        by_why.setdefault(silence.why, []).append(silence.node)
    for why, nodes in by_why.items():
        names = ", ".join(nodes[:_NAMES_SHOWN])
        more = f" and {len(nodes) - _NAMES_SHOWN:,} more" if len(nodes) > _NAMES_SHOWN else ""
        yield f"{click.style('not known:', fg='yellow')} node {names}{more}: {why}"


def _pod_use(use: PodUse) -> tuple[str, ...]:
    return (
        use.namespace,
        use.pod,
        use.container,
        use.node,
        str(use.device),
        _gib(use.memory_used_mib),
        gib(use.memory_limit_mib),
        _part(use.memory_used_mib, use.memory_limit_mib),
        _gib(use.memory_peak_mib),
        percent(use.compute_limit_milli),
        _or_dash(use.refused),
        _or_dash(use.isolation),
    )


def _device_use(use: DeviceUse) -> tuple[str, ...]:
    return (
        use.node,
        str(use.index),
        use.model,
        _gib(use.memory_used_mib),
        gib(use.memory_allocated_mib),
        gib(use.memory_mib),
        UNKNOWN if use.busy_percent is None else f"{use.busy_percent:g}%",
        percent(min(use.compute_allocated_milli, WHOLE)),
        str(use.shares),
        "healthy" if use.healthy else "unhealthy",
    )


def _gib(mib: int | None) -> str:
    return UNKNOWN if mib is None else gib(mib)


def _part(used: int | None, limit: int) -> str:
    return UNKNOWN if used is None or not limit else f"{100 * used // limit}%"


def _or_dash(value: object | None) -> str:
    return UNKNOWN if value is None else str(value)


def changed(before: Iterable[str], after: Sequence[str]) -> list[str]:
    """The lines that were not there before, in order: what a watch prints."""
    known = set(before)
    return [line for line in after if line not in known]
