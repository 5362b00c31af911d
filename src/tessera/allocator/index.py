"""What is remembered between decisions on one ledger, so that a decision costs what changed and not the fleet.

For each request that was seen, the index keeps which devices fit each claim, which nodes have enough of them, and
how well the policy likes those, as of a moment of the ledger. Before it answers again it takes in only the nodes
that changed since, and looks only at those of them that would be chosen. The answer is that of
:func:`tessera.allocator.place.place`, restricted to the nodes that the caller names.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

import numpy as np

from tessera.allocator.fit import Limit, fitting_on, fitting_rows, limits_on, memo_of, open_nodes
from tessera.allocator.ledger import Ledger
from tessera.allocator.place import Prospect, first_of, in_order, prospect
from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.core.placement import Placed
from tessera.core.request import Pod, Request
from tessera.policy.nodes import rank_nodes
from tessera.policy.rank import SIGN, Policy

REMEMBERED_REQUESTS: Final = 64
"""Requests that are remembered: with 40,000 devices about 100 kB each, beside what :mod:`allocator.fit` keeps."""

REMEMBERED_OBJECTS: Final = 4096
"""Request objects that are known by identity; holding them keeps their identities theirs."""

REMEMBERED_NODES: Final = 256
"""Nodes of a request whose limits are remembered, about 1 kB each."""

_WHOLE_AGAIN: Final = 8
"""Where more than one node in so many changed, all are looked at again: one pass is cheaper then."""

_ONE_BY_ONE: Final = 12
"""Up to so many nodes are looked at one by one, which is cheaper than setting up arrays for them."""

_GUESSES: Final = 24
"""How many of the best nodes are looked for among the caller's names before all names are looked up."""

_OUT: Final = int(np.iinfo(np.int64).min)
"""The score of a node that cannot host, below any that can."""


@dataclass(slots=True)
class _Known:
    """What is known of one request as of a moment; a node that is closed or too full has ``_OUT`` for a score.

    ``unsure`` are nodes that changed and were not looked at: they have the score that is theirs if they can host.
    ``limits`` are those of each claim on the nodes that are looked at often.
    """

    found: Prospect
    policy: Policy
    ruled_out: tuple[Bools, ...]
    hosts: Bools
    scores: Ints
    moment: int
    unsure: set[int] = field(default_factory=set)
    limits: dict[int, tuple[list[Limit], ...]] = field(default_factory=dict)


class Index:
    """Decisions on a ledger. Belongs to the ledger's owner: asked between events, never during one."""

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self._ledger = ledger
        self._policy = policy
        self._known: dict[Request, _Known] = {}
        self._by_id: dict[int, tuple[Request, _Known]] = {}

    def place(
        self,
        pod: Pod,
        names: Collection[str] | None = None,
        *,
        barred: Collection[str] = (),
        bonus: Mapping[str, int] | None = None,
    ) -> Placed | None:
        """The placement that the policy likes best on one of the nodes ``names`` (``None``: any), or ``None``.

        ``barred`` nodes are left out. ``bonus`` is added to a node's score, which is its fill in parts per
        million, memory and compute added (0 to 2,000,000), negative where the policy spreads. Names that are no
        nodes of the fleet are passed over. Raises ``ValueError`` for a pod that asks for no accelerator.
        """
        snapshot = self._ledger.view()
        known = self._up_to_date(snapshot, pod)
        before = known.found
        found = Prospect(pod, before.request, before.needs, before.rules, before.fits, before.open, known.hosts)
        if bonus or pod.node_name or pod.node_selector or pod.cpu_milli or pod.memory_mib:
            _settle(snapshot, known)
            rows = _weighed(snapshot, known, pod, names, barred, bonus or {})
        else:
            rows = _best_first(snapshot, known, names, barred)
        return first_of(snapshot, found, known.policy, rows)

    def _up_to_date(self, snapshot: Snapshot, pod: Pod) -> _Known:
        request = pod.request
        if request is None:
            raise ValueError(f"pod {pod.key} asks for no accelerator")
        # A caller that decodes each text once passes the same object, and spares the hashing of a whole request.
        same = self._by_id.get(id(request))
        known = same[1] if same is not None else self._known.get(request)
        if known is None:
            if len(self._known) >= REMEMBERED_REQUESTS:
                del self._known[next(iter(self._known))]
                self._by_id.clear()
            known = self._known[request] = self._seen(snapshot, prospect(snapshot, pod))
        elif known.moment != self._ledger.moment:
            self._refresh(snapshot, known)
        if same is None:
            if len(self._by_id) >= REMEMBERED_OBJECTS:
                self._by_id.clear()
            self._by_id[id(request)] = (request, known)
        return known

    def _seen(self, snapshot: Snapshot, found: Prospect) -> _Known:
        fleet = snapshot.fleet
        policy = self._policy.preferring(found.request.preference)
        hosts = np.ones(len(fleet.nodes), dtype=np.bool_)
        for claim, fit in zip(found.request.claims, found.fits, strict=True):
            hosts &= fleet.nodes_with(fit, claim.count)
        open_ = fleet.open & (snapshot.usage.pods + 1 <= fleet.max_pods)
        scores = np.where(hosts & open_, rank_nodes(snapshot, policy.node), _OUT)
        ruled_out = tuple(memo_of(fleet).ruled(rule).out for rule in found.rules)
        return _Known(found, policy, ruled_out, hosts, scores, self._ledger.moment)

    def _refresh(self, snapshot: Snapshot, known: _Known) -> None:
        """Take in the nodes that changed."""
        touched = self._ledger.touched_since(known.moment)
        nodes = None if touched is None else set(touched)
        if nodes is None or len(nodes) * _WHOLE_AGAIN > len(snapshot.fleet.nodes):
            again = self._seen(snapshot, prospect(snapshot, known.found.pod))
            known.found, known.hosts, known.scores = again.found, again.hosts, again.scores
            known.unsure.clear()
        else:
            known.unsure |= nodes
            rows = np.fromiter(nodes, dtype=np.int64, count=len(nodes))
            known.scores[rows] = SIGN[known.policy.node] * snapshot.usage.node_fill[rows]
        known.moment = self._ledger.moment


def _settle(snapshot: Snapshot, known: _Known) -> None:
    """Look at every node that is unsure."""
    if len(known.unsure) > _ONE_BY_ONE:
        _look_at_all(snapshot, known, np.fromiter(known.unsure, dtype=np.int64))
    else:
        for node in known.unsure:
            _look_at(snapshot, known, node)
    known.unsure.clear()


def _look_at(snapshot: Snapshot, known: _Known, node: int) -> None:
    """Bring one node up to date, without arrays."""
    fleet, usage, found = snapshot.fleet, snapshot.usage, known.found
    rows = fleet.rows(node)
    hosts = True
    for claim, limits, fits in zip(found.request.claims, _limits(fleet, known, node), found.fits, strict=True):
        fit = fitting_on(snapshot, limits, rows)
        fits[rows.start : rows.stop] = fit
        hosts = hosts and sum(fit) >= claim.count
    known.hosts[node] = hosts
    is_open = fleet.open[node] and usage.pods[node] + 1 <= fleet.max_pods[node]
    known.scores[node] = SIGN[known.policy.node] * usage.node_fill[node] if hosts and is_open else _OUT


def _limits(fleet: Fleet, known: _Known, node: int) -> tuple[list[Limit], ...]:
    limits = known.limits.get(node)
    if limits is None:
        if len(known.limits) >= REMEMBERED_NODES:
            known.limits.clear()
        idle, rows = known.found.request.constraints.idle_device, fleet.rows(node)
        parts = zip(known.found.needs, known.ruled_out, strict=True)
        limits = known.limits[node] = tuple(limits_on(fleet, need, out, idle, rows) for need, out in parts)
    return limits


def _look_at_all(snapshot: Snapshot, known: _Known, nodes: Ints) -> None:
    """Bring many nodes up to date at once."""
    fleet, usage, found = snapshot.fleet, snapshot.usage, known.found
    rows, starts = device_rows(fleet, nodes)
    hosts = np.ones(len(nodes), dtype=np.bool_)
    for claim, need, rule, fits in zip(found.request.claims, found.needs, found.rules, found.fits, strict=True):
        fit = fitting_rows(snapshot, need, rule, rows)
        fits[rows] = fit
        counted = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(fit, out=counted[1:])
        hosts &= counted[starts[1:]] - counted[starts[:-1]] >= claim.count
    known.hosts[nodes] = hosts
    is_open = fleet.open[nodes] & (usage.pods[nodes] + 1 <= fleet.max_pods[nodes])
    known.scores[nodes] = np.where(hosts & is_open, SIGN[known.policy.node] * usage.node_fill[nodes], _OUT)


def _best_first(
    snapshot: Snapshot, known: _Known, names: Collection[str] | None, barred: Collection[str]
) -> Iterator[int]:
    """The rows of the nodes that can host and may be taken, best first.

    The best of all nodes is likely among the names, or the next best, or the one after that: looking for a few of
    them is much cheaper than looking up every name. Only where that fails are the names looked up.
    """
    fleet, left = snapshot.fleet, known.scores.copy()
    for name in barred:
        if (row := fleet.node_row.get(name)) is not None:
            left[row] = _OUT
    for _ in range(min(_GUESSES, len(left))):
        row = int(left.argmax())
        if left[row] == _OUT:
            return
        left[row] = _OUT
        if (names is None or fleet.node_names[row] in names) and _can_host(snapshot, known, row):
            yield row
    _settle(snapshot, known)
    rows = _rows(fleet, names)
    rows = rows[(left[rows] != _OUT) & (known.scores[rows] != _OUT)]
    yield from in_order(rows, left[rows])


def _can_host(snapshot: Snapshot, known: _Known, row: int) -> bool:
    """Whether a node whose score is not out can host, looking at it where that is not sure."""
    if row in known.unsure:
        _look_at(snapshot, known, row)
        known.unsure.discard(row)
    return bool(known.scores[row] != _OUT)


def _weighed(
    snapshot: Snapshot,
    known: _Known,
    pod: Pod,
    names: Collection[str] | None,
    barred: Collection[str],
    bonus: Mapping[str, int],
) -> Iterator[int]:
    """The same for a pod that rules out nodes itself, or prefers some."""
    fleet = snapshot.fleet
    hosts = known.hosts & open_nodes(snapshot, pod)
    out = [row for name in barred if (row := fleet.node_row.get(name)) is not None]
    hosts[out] = False
    rows = _rows(fleet, names)
    rows = rows[hosts[rows]]
    scores = rank_nodes(snapshot, known.policy.node)[rows]
    extra = (bonus.get(fleet.node_names[row], 0) for row in rows.tolist())
    return in_order(rows, scores + np.fromiter(extra, dtype=np.int64, count=len(rows)))


def _rows(fleet: Fleet, names: Collection[str] | None) -> Ints:
    """The rows of the named nodes, in the fleet's order."""
    if names is None:
        return np.arange(len(fleet.nodes), dtype=np.int64)
    rows = np.fromiter(map(fleet.node_row.get, names, repeat(-1)), dtype=np.int64, count=len(names))
    rows = rows[rows >= 0]
    rows.sort()
    return rows


def device_rows(fleet: Fleet, nodes: Ints) -> tuple[Ints, Ints]:
    """The device rows of these nodes, one node after the other, and where each node's begin (and the last end)."""
    firsts = fleet.first[nodes]
    starts = np.zeros(len(nodes) + 1, dtype=np.int64)
    np.cumsum(fleet.first[nodes + 1] - firsts, out=starts[1:])
    rows = np.arange(starts[-1], dtype=np.int64) + np.repeat(firsts - starts[:-1], np.diff(starts))
    return rows, starts
