"""K, keeping: idle nodes of a kind that large pods will need, and of which few are left.

A pod of several devices that wants most of a node's CPU fits some nodes only, and is too rare for the
fragmentation to see. A node that could take it is worth keeping idle while no more such nodes are left than such
pods are still to be expected, with some margin. Where nothing else has room, a node that is kept is taken like
any other.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from tessera.core.fleet import Bools, Fleet, Ints, Snapshot
from tessera.core.units import WHOLE
from tessera.policy.target import Kind

NOT_KEPT: Final = -1

_MARGIN_PERCENT: Final = 150
_LARGE: Final = 4
"""Pods of at least so many devices are looked at."""


def kept_nodes(snapshot: Snapshot, kinds: Iterable[tuple[Kind, int]]) -> Ints:
    """For each node the milli of its devices when it is idle, where it is to be kept so; else ``NOT_KEPT``.

    Nodes are kept by class (model, devices, CPU), so that the answer changes rarely.
    """
    fleet, usage = snapshot.fleet, snapshot.usage
    listed = list(kinds)
    total = sum(kind.milli * kind.count * pods for kind, pods in listed)
    large = [(kind, pods) for kind, pods in listed if kind.count >= _LARGE]
    kept = np.full(len(fleet.nodes), NOT_KEPT, dtype=np.int64)
    if not large or not total:
        return kept
    free, able = int(usage.left.sum()), fleet.per_node(np.asarray(usage.left >= WHOLE, dtype=np.bool_))
    classes = _classes(fleet)
    for kind, _ in large:
        hosts = _hosts(snapshot, kind, able)
        like = [(k, pods) for k, pods in large if k.count >= kind.count and k.cpu_milli >= kind.cpu_milli]
        expected = sum(pods for _, pods in like)
        if np.count_nonzero(hosts) <= -(-expected * free * _MARGIN_PERCENT // (total * 100)):
            of_class = np.isin(classes, np.unique(classes[hosts]))
            kept[of_class] = WHOLE * fleet.per_node(fleet.usable)[of_class]
    return kept


def _hosts(snapshot: Snapshot, kind: Kind, able: Ints) -> Bools:
    """The nodes that could take a pod of this kind now."""
    fleet = snapshot.fleet
    hosts = fleet.open & (able >= kind.count) & (fleet.cpu - snapshot.usage.cpu >= kind.cpu_milli)
    if kind.models:
        allowed = np.array([model in kind.models for model in fleet.models], dtype=np.bool_)
        hosts &= allowed[fleet.node_model]
    return np.asarray(hosts, dtype=np.bool_)


def _classes(fleet: Fleet) -> Ints:
    """A number for each node, equal for nodes of one model, size and CPU; kept on the fleet, being its facts."""
    kept: Ints | None = fleet.__dict__.get("_classes")
    if kept is None:
        facts = np.stack([fleet.node_model, np.diff(fleet.first), fleet.cpu], axis=1)
        kept = np.unique(facts, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        fleet.__dict__["_classes"] = kept
    return kept
