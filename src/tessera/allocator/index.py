"""What is remembered between decisions on one ledger, so that a decision costs what changed and not the fleet.

For each kind of pod that was seen (its request, and what it takes of its node), the index keeps which devices fit
each claim and how the policy scores each node that can host, as of a moment of the ledger. Before it answers
again it looks at the nodes that changed since. The answer is that of :func:`tessera.allocator.place.place`,
restricted to the nodes that the caller names.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Final

import numpy as np

from tessera.allocator.fit import open_nodes
from tessera.allocator.ledger import Ledger
from tessera.allocator.look import Known, Looker, known_of, look, order
from tessera.allocator.place import Prospect, blank, first_of, in_order
from tessera.core.fleet import Fleet, Ints, Snapshot
from tessera.core.placement import Placed
from tessera.core.request import Pod, Request
from tessera.policy.outlook import Outlook, usual_outlook
from tessera.policy.rank import Policy
from tessera.policy.score import OUT, Scene
from tessera.policy.scorers import SCORERS

REMEMBERED_BYTES: Final = 128 << 20
"""What remembered kinds of pods may take, with what :mod:`allocator.fit` keeps of them: about 25 bytes a device
and 8 a node each, so 120 kinds on 40,000 devices."""

FEWEST_KINDS: Final = 16
MOST_KINDS: Final = 1024

REMEMBERED_OBJECTS: Final = 4096
"""Request objects that are known by identity; holding them keeps their identities theirs."""

_WHOLE_AGAIN: Final = 2
"""Where more than one node in so many changed, all are looked at again: one pass is cheaper then."""

_GUESSES: Final = 24
"""How many of the best nodes are looked for among the caller's names before all names are looked up."""

_Host = tuple[int, int, int]
"""What a pod takes of its node."""


class Index:
    """Decisions on a ledger. Belongs to the ledger's owner: asked between events, never during one.

    ``looker`` is the compiled way to look at nodes, where there is one. ``outlook`` may be replaced at any time.
    """

    def __init__(
        self, ledger: Ledger, policy: Policy, outlook: Outlook | None = None, looker: Looker | None = None
    ) -> None:
        self._ledger, self._policy, self._looker = ledger, policy, looker
        self._outlook = usual_outlook(ledger.fleet)
        if outlook is not None:
            self.outlook = outlook
        fleet = ledger.fleet
        self._most = REMEMBERED_BYTES // max(1, 8 * len(fleet.nodes) + 25 * len(fleet.devices))
        self._most = min(max(self._most, FEWEST_KINDS), MOST_KINDS)
        self._known: dict[tuple[Request, _Host], Known] = {}
        self._by_id: dict[tuple[int, _Host], tuple[Request, Known]] = {}

    @property
    def outlook(self) -> Outlook:
        """What is expected to come. Raises ``ValueError`` for one that was made for another fleet."""
        return self._outlook

    @outlook.setter
    def outlook(self, outlook: Outlook) -> None:
        fleet = self._ledger.fleet
        if outlook.models != fleet.models or len(outlook.kept) != len(fleet.nodes):
            made = f"{len(outlook.kept)} nodes of {', '.join(outlook.models)}"
            raise ValueError(
                f"an outlook for {made} on a fleet of {len(fleet.nodes)} of {', '.join(fleet.models)}"
            )
        self._outlook = outlook

    def place(
        self,
        pod: Pod,
        names: Collection[str] | None = None,
        *,
        barred: Collection[str] = (),
        bonus: Mapping[str, int] | None = None,
    ) -> Placed | None:
        """The placement that the policy likes best on one of the nodes ``names`` (``None``: any), or ``None``.

        ``barred`` nodes are left out. ``bonus`` is added to a node's score, in parts per million of a node's fill,
        memory and compute added (2,000,000 for a full node). Names that are no nodes of the fleet are passed over.
        Raises ``ValueError`` for a pod that has no request.
        """
        scene = Scene(self._ledger.view(), self._outlook)
        known = self._up_to_date(scene, pod)
        like = known.found
        found = Prospect(
            scene.snapshot, pod, like.request, like.needs, like.rules, like.fits, like.open, like.hosts
        )
        if bonus or pod.node_name or pod.node_selector:
            rows = _weighed(scene.snapshot, known, pod, _named(scene.snapshot.fleet, names, barred), bonus or {})
        else:
            rows = _best_first(scene.snapshot.fleet, known.scores, names, barred)
        compiled = None if self._looker is None else self._looker.order(scene, known)
        return first_of(found, compiled or order(scene, known), rows)

    def _up_to_date(self, scene: Scene, pod: Pod) -> Known:
        request = pod.request
        if request is None:
            raise ValueError(f"pod {pod.key} asks for no accelerator")
        # A caller that decodes each text once passes the same object, and spares the hashing of a whole request.
        host = (pod.cpu_milli, pod.memory_mib, pod.checked_cpu_milli)
        seen = (id(request), host)
        same = self._by_id.get(seen)
        known = same[1] if same is not None else self._known.get((request, host))
        if known is None:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
                self._by_id.clear()
            known = self._new(scene, pod, request)
            self._known[request, host] = known
        elif known.moment != self._ledger.moment or known.generation != self._outlook.generation:
            self._refresh(scene, known)
        if same is None:
            if len(self._by_id) >= REMEMBERED_OBJECTS:
                self._by_id.clear()
            self._by_id[seen] = (request, known)
        return known

    def _new(self, scene: Scene, pod: Pod, request: Request) -> Known:
        anywhere = replace(pod, node_name=None, node_selector=())
        policy = self._policy.preferring(request.preference)
        known = known_of(scene, blank(scene.snapshot, anywhere), policy, self._ledger.moment)
        self._look(scene, known, None)
        return known

    def _refresh(self, scene: Scene, known: Known) -> None:
        """Look at the nodes that changed; at all of them where the outlook did."""
        touched = self._ledger.touched_since(known.moment)
        nodes = None if touched is None or known.generation != scene.outlook.generation else set(touched)
        if nodes is not None and len(nodes) * _WHOLE_AGAIN > len(scene.snapshot.fleet.nodes):
            nodes = None
        self._look(scene, known, nodes)
        known.moment, known.generation = self._ledger.moment, scene.outlook.generation

    def _look(self, scene: Scene, known: Known, nodes: Collection[int] | None) -> None:
        rows = None if nodes is None else np.fromiter(nodes, dtype=np.int64, count=len(nodes))
        if self._looker is None or not self._looker.look(scene, known, rows):
            look(scene, known, np.arange(len(known.scores)) if rows is None else rows)


def _best_first(
    fleet: Fleet, scores: Ints, names: Collection[str] | None, barred: Collection[str]
) -> Iterator[int]:
    """The rows of the nodes that can host and may be taken, best first.

    The best of all nodes is likely among the names, or the next best, or the one after that: looking for a few of
    them is much cheaper than looking up every name. Only where that fails are the names looked up.
    """
    left = scores.copy() if barred else scores
    left[[row for name in barred if (row := fleet.node_row.get(name)) is not None]] = OUT
    for _ in range(min(_GUESSES, len(left))):
        row = int(left.argmax())
        if left[row] == OUT:
            return
        if names is None or fleet.node_names[row] in names:
            yield row
        if left is scores:
            left = scores.copy()
        left[row] = OUT
    rows = _named(fleet, names, ())
    rows = rows[left[rows] != OUT]
    yield from in_order(rows, left[rows])


def _weighed(snapshot: Snapshot, known: Known, pod: Pod, rows: Ints, bonus: Mapping[str, int]) -> Iterator[int]:
    """The same for a pod that rules out nodes itself, or prefers some."""
    rows = rows[(known.scores[rows] != OUT) & open_nodes(snapshot, pod)[rows]]
    names = snapshot.fleet.node_names
    extra = np.fromiter((bonus.get(names[row], 0) for row in rows.tolist()), dtype=np.int64, count=len(rows))
    return in_order(rows, known.scores[rows] * SCORERS[known.policy.node].worth + extra)


def _named(fleet: Fleet, names: Collection[str] | None, barred: Collection[str]) -> Ints:
    """The rows of the named nodes that are not barred, in the fleet's order."""
    if names is None:
        rows = np.arange(len(fleet.nodes), dtype=np.int64)
    else:
        rows = np.fromiter(map(fleet.node_row.get, names, repeat(-1)), dtype=np.int64, count=len(names))
        rows = rows[rows >= 0]
        rows.sort()
    out = [row for name in barred if (row := fleet.node_row.get(name)) is not None]
    return rows[~np.isin(rows, out)] if out else rows
