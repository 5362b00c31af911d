"""What is known of one kind of pod on a fleet, and bringing it up to date on nodes that changed.

Two lookers do the same: :func:`look` with arrays, and a compiled one that whoever makes the index hands in. The
first is what the second has to equal, bit for bit.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tessera.allocator.fit import fitting_rows, open_among
from tessera.allocator.place import Order, Orderer, Prospect, ask_of, fits_of
from tessera.core.fleet import Bools, Fleet, Ints
from tessera.policy.rank import Policy
from tessera.policy.score import OUT, Ask, Scene
from tessera.policy.scorers import SCORERS


@dataclass(slots=True)
class Known:
    """One kind of pod as of a moment. ``scores`` is ``OUT`` for a node that is closed to it or too full.

    ``main`` is the claim that the policy looks at, -1 where there is none. ``compiled`` is a compiled looker's
    own.
    """

    found: Prospect
    ask: Ask
    main: int
    policy: Policy
    scores: Ints
    moment: int
    generation: int
    compiled: object = None

    @property
    def fits(self) -> Bools:
        """The devices on which a share of the main claim fits."""
        return fits_of(self.found, self.main)


class Looker(Protocol):
    """Something compiled that looks at nodes."""

    def look(self, scene: Scene, known: Known, nodes: Ints | None) -> bool:
        """Bring ``fits`` and ``scores`` of these nodes (``None``: all) up to date; ``False`` where it cannot."""
        ...

    def order(self, scene: Scene, known: Known) -> Order | None:
        """The order of devices; ``None`` where it cannot say."""
        ...


def known_of(scene: Scene, found: Prospect, policy: Policy, moment: int) -> Known:
    """A kind of pod of which nothing is known yet; every node is out."""
    main, ask = ask_of(found)
    scores = np.full(len(scene.snapshot.fleet.nodes), OUT, dtype=np.int64)
    return Known(found, ask, main, policy, scores, moment, scene.outlook.generation)


def look(scene: Scene, known: Known, nodes: Ints) -> None:
    """Bring these nodes up to date: which devices fit, whether the node can host, and how it is liked."""
    snapshot, found = scene.snapshot, known.found
    hosts = open_among(snapshot, found.pod, nodes)
    rows, starts = device_rows(snapshot.fleet, nodes)
    for claim, need, rule, fits in zip(found.request.claims, found.needs, found.rules, found.fits, strict=True):
        fit = fitting_rows(snapshot, need, rule, rows)
        fits[rows] = fit
        counted = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(fit, out=counted[1:])
        hosts &= counted[starts[1:]] - counted[starts[:-1]] >= claim.count
    known.scores[nodes] = OUT
    hosting = nodes[hosts]
    known.scores[hosting] = SCORERS[known.policy.node].scores(scene, known.ask, known.fits, hosting)


def order(scene: Scene, known: Known) -> Order:
    """The order of devices that the policy has."""
    return Orderer(scene, known.ask, known.policy)


def device_rows(fleet: Fleet, nodes: Ints) -> tuple[Ints, Ints]:
    """The device rows of these nodes, one node after the other, and where each node's begin (and the last end)."""
    firsts = fleet.first[nodes]
    starts = np.zeros(len(nodes) + 1, dtype=np.int64)
    np.cumsum(fleet.first[nodes + 1] - firsts, out=starts[1:])
    rows = np.arange(starts[-1], dtype=np.int64) + np.repeat(firsts - starts[:-1], np.diff(starts))
    return rows, starts
