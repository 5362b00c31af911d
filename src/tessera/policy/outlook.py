"""What is expected to come to a fleet, as the scorers read it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tessera.core.fleet import PLENTY, Fleet, Ints, Snapshot
from tessera.core.units import WHOLE
from tessera.policy.keeping import NOT_KEPT, kept_nodes
from tessera.policy.prices import FINE, worth_by_rest
from tessera.policy.protection import Models, scarcity
from tessera.policy.target import PRIOR, Kind, Target, popular, target_of

_STRANDING_PERCENT: Final = 65
_SHORT_OF_CPU_PERCENT: Final = 97
_USUAL_CPU_PER_DEVICE: Final = 12_000


@dataclass(frozen=True, slots=True)
class Outlook:
    """The target workload for a fleet of ``models``. Scores of equal ``generation`` stay good while a node does.

    ``worth[r]`` is what r milli left on a device are worth, ``price[m]`` what a milli of model ``m`` is worth to
    pods that need it, both in parts of ``policy.prices.FINE``. ``stranding`` are the milli-cores below which a
    device is taken to stand without CPU, 0 where that does not count; ``cpu_per_device`` is what the fleet has
    for a device.
    """

    models: tuple[str, ...]
    kinds: tuple[tuple[Kind, int], ...]
    target: Target
    worth: Ints
    price: Ints
    kept: Ints
    stranding: int
    cpu_per_device: int
    generation: int = 0


def outlook_of(fleet: Fleet, counts: Mapping[Kind, int] = PRIOR, generation: int = 0) -> Outlook:
    """The outlook of a fleet to which these kinds of pods come, each so often; without them what is usual.

    The fragmentation looks at the most frequent kinds, everything else at all of them: a few large pods count
    little among pods and much among devices. Takes some ten milliseconds: not for the road of a pod.
    """
    listed = tuple(sorted(counts.items()))
    return Outlook(
        models=fleet.models,
        kinds=listed,
        target=target_of(popular(counts), fleet.models, sum(counts.values())),
        worth=np.array(worth_by_rest(listed, len(fleet.devices)), dtype=np.int64),
        price=np.zeros(max(len(fleet.models), 1), dtype=np.int64),
        kept=np.full(len(fleet.nodes), NOT_KEPT, dtype=np.int64),
        stranding=_stranding(fleet, listed),
        cpu_per_device=_cpu_per_device(fleet),
        generation=generation,
    )


def usual_outlook(fleet: Fleet) -> Outlook:
    """The outlook where nobody says what comes; kept on the fleet, which never changes."""
    kept: Outlook | None = fleet.__dict__.get("_outlook")
    if kept is None:
        kept = fleet.__dict__["_outlook"] = outlook_of(fleet)
    return kept


def protecting(outlook: Outlook, snapshot: Snapshot, generation: int) -> Outlook:
    """The outlook with the prices of models as they are now; the same object where they did not change."""
    fleet = snapshot.fleet
    left = np.where(fleet.open[fleet.node_of], snapshot.usage.left, 0)
    free = np.bincount(fleet.model, weights=left, minlength=len(fleet.models)).astype(np.int64)
    price = np.array(_prices(outlook, free.tolist()), dtype=np.int64)
    kept = kept_nodes(snapshot, outlook.kinds)
    if np.array_equal(price, outlook.price) and np.array_equal(kept, outlook.kept):
        return outlook
    return replace(outlook, price=price, kept=kept, generation=generation)


def _prices(outlook: Outlook, free: Sequence[int]) -> list[int]:
    """What each model is worth to pods that cannot do without it."""
    demand: Counter[Models] = Counter()
    total = sum(kind.milli * kind.count * pods for kind, pods in outlook.kinds)
    for kind, pods in outlook.kinds:
        allowed = frozenset(row for row, model in enumerate(outlook.models) if model in kind.models)
        if allowed and kind.count:
            demand[allowed] += kind.milli * kind.count * pods * sum(free) // total
    return scarcity(free, demand, FINE) or [0]


def _cpu_per_device(fleet: Fleet) -> int:
    """Milli-cores that a node has for each device; the median over devices, what is usual where none is known."""
    known = _nodes_with_cpu(fleet)
    sizes = np.diff(fleet.first)[known]
    each = np.sort(np.repeat(fleet.cpu[known] // np.maximum(sizes, 1), sizes))
    return max(int(each[len(each) // 2]), 1) if len(each) else _USUAL_CPU_PER_DEVICE


def _nodes_with_cpu(fleet: Fleet) -> Ints:
    """The nodes with devices whose CPU is known."""
    return np.flatnonzero((fleet.cpu < PLENTY) & (np.diff(fleet.first) > 0))


def _stranding(fleet: Fleet, kinds: Sequence[tuple[Kind, int]]) -> int:
    """0.65 times the milli-cores that the expected pods take with a device, 0 where CPU is short anyway."""
    known = _nodes_with_cpu(fleet)
    devices = int(np.diff(fleet.first)[known].sum())
    asked = sum(kind.milli * kind.count * pods for kind, pods in kinds)
    cpu = sum(kind.cpu_milli * pods for kind, pods in kinds)
    with_devices = sum(kind.cpu_milli * pods for kind, pods in kinds if kind.count)
    if not asked or not devices:
        return 0
    # cpu / asked >= 0.97 * (cpu of the fleet / devices of the fleet), in whole numbers
    if cpu * devices * WHOLE * 100 >= _SHORT_OF_CPU_PERCENT * int(fleet.cpu[known].sum()) * asked:
        return 0
    return with_devices * WHOLE * _STRANDING_PERCENT // (asked * 100)
