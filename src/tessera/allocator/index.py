"""What is remembered between decisions on one ledger, so that a decision costs what changed and not the fleet.

For each request that was seen, the index keeps which devices fit each claim and which nodes have enough of them,
as of a moment of the ledger; before it answers again it looks only at the nodes that changed since. The answer is
that of :func:`tessera.allocator.place.place`, restricted to the nodes that the caller names.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from tessera.allocator.fit import fitting_rows, open_nodes
from tessera.allocator.ledger import Ledger
from tessera.allocator.place import Prospect, best_of, prospect
from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.core.placement import Placed
from tessera.core.request import Pod, Request
from tessera.policy.nodes import rank_nodes
from tessera.policy.rank import Policy

REMEMBERED_REQUESTS: Final = 64
"""Requests that are remembered: with 40,000 devices about 60 kB each, beside what :mod:`allocator.fit` keeps."""

REMEMBERED_OBJECTS: Final = 4096
"""Request objects that are known by identity; holding them keeps their identities theirs."""

_WHOLE_AGAIN: Final = 8
"""Where more than one node in so many changed, all are looked at again: one pass is cheaper then."""


@dataclass(slots=True)
class _Known:
    """What is known of one request: its prospect, whose arrays are kept up to date, as of a moment."""

    found: Prospect
    fits: tuple[Bools, ...]
    hosts: Bools
    moment: int


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
        names: Sequence[str] | None = None,
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
        request = known.found.request
        open_ = open_nodes(snapshot, pod)
        before = known.found
        found = Prospect(pod, request, before.needs, before.rules, known.fits, open_, known.hosts & open_)
        rows = _rows(snapshot.fleet, found.hosts, names, barred)
        ranking = self._policy.preferring(request.preference)
        scores = rank_nodes(snapshot, ranking.node)[rows]
        if bonus:
            node_names = snapshot.fleet.node_names
            scores = scores + np.fromiter((bonus.get(node_names[r], 0) for r in rows.tolist()), dtype=np.int64)
        return best_of(snapshot, found, ranking, rows, scores)

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
        return _Known(found, found.fits, _hosts(snapshot.fleet, found), self._ledger.moment)

    def _refresh(self, snapshot: Snapshot, known: _Known) -> None:
        """Look again at the nodes that changed."""
        fleet = snapshot.fleet
        touched = self._ledger.touched_since(known.moment)
        nodes = None if touched is None else np.fromiter(set(touched), dtype=np.int64)
        if nodes is None or len(nodes) * _WHOLE_AGAIN > len(fleet.nodes):
            again = self._seen(snapshot, prospect(snapshot, known.found.pod))
            known.fits, known.hosts, known.moment = again.fits, again.hosts, again.moment
            return
        rows, starts = device_rows(fleet, nodes)
        hosts = np.ones(len(nodes), dtype=np.bool_)
        claims = known.found.request.claims
        for claim, need, rule, fits in zip(claims, known.found.needs, known.found.rules, known.fits, strict=True):
            fit = fitting_rows(snapshot, need, rule, rows)
            fits[rows] = fit
            counted = np.zeros(len(rows) + 1, dtype=np.int64)
            np.cumsum(fit, out=counted[1:])
            hosts &= counted[starts[1:]] - counted[starts[:-1]] >= claim.count
        known.hosts[nodes] = hosts
        known.moment = self._ledger.moment


def _hosts(fleet: Fleet, found: Prospect) -> Bools:
    """The nodes with enough devices for every claim, whether they are open or not: that is asked each time."""
    hosts = np.ones(len(fleet.nodes), dtype=np.bool_)
    for claim, fit in zip(found.request.claims, found.fits, strict=True):
        hosts &= fleet.nodes_with(fit, claim.count)
    return hosts


def _rows(fleet: Fleet, hosts: Bools, names: Sequence[str] | None, barred: Collection[str]) -> Ints:
    """The rows of the nodes that may host, in the fleet's order."""
    out = [row for name in barred if (row := fleet.node_row.get(name)) is not None]
    if out:
        hosts[out] = False
    if names is None:
        return np.flatnonzero(hosts)
    rows = np.fromiter(map(fleet.node_row.get, names, repeat(-1)), dtype=np.int64, count=len(names))
    rows = rows[rows >= 0]
    rows = rows[hosts[rows]]
    rows.sort()
    return rows


def device_rows(fleet: Fleet, nodes: Ints) -> tuple[Ints, Ints]:
    """The device rows of these nodes, one node after the other, and where each node's begin (and the last end)."""
    firsts = fleet.first[nodes]
    starts = np.zeros(len(nodes) + 1, dtype=np.int64)
    np.cumsum(fleet.first[nodes + 1] - firsts, out=starts[1:])
    rows = np.arange(starts[-1], dtype=np.int64) + np.repeat(firsts - starts[:-1], np.diff(starts))
    return rows, starts
