"""The compiled way to look at nodes: limiter/place, by ctypes. Without it everything is decided by arrays, alike.

The structures mirror limiter/place/place.h. They hold addresses of arrays; whoever holds a structure holds the
arrays.
"""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np

from tessera.allocator.fit import memo_of
from tessera.allocator.look import Known
from tessera.allocator.place import Order
from tessera.core.fleet import Fleet, Ints, Usage
from tessera.policy.fragment import THRESHOLDS
from tessera.policy.outlook import Outlook
from tessera.policy.pwr import REACH, SOFTPLUS
from tessera.policy.rank import Ranking
from tessera.policy.score import Scene
from tessera.runtime.native import NATIVE

LIBRARY: Final = NATIVE / "libtessera_place.so"

_MOST_DEVICES: Final = 128
_MOST_GROUPS: Final = 256
_CODES: Final[Mapping[Ranking, int]] = {
    Ranking.BINPACK: 1,
    Ranking.SPREAD: 2,
    Ranking.FGD: 3,
    Ranking.PWR: 4,
    Ranking.BEST_FIT: 5,
    Ranking.DOT_PRODUCT: 6,
    Ranking.GPU_PACKING: 7,
    Ranking.GPU_CLUSTERING: 8,
    Ranking.RANDOM: 9,
}
_BY_DEVICE: Final = frozenset({Ranking.FGD, Ranking.PWR})


def _pointers(names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names.split()]


class _Fleet(ctypes.Structure):
    _fields_ = [
        ("nodes", c_int64),
        *_pointers("first node_model cpu host_memory max_pods compute slots open"),
        *_pointers("used_memory used_compute used_slots exclusive left"),
        *_pointers("node_fill used_cpu used_host_memory pods sizes"),
    ]


class _Outlook(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("cpus", "values", "groups", "total")),
        *_pointers("cpu value group_value group_count weight thresholds worth softplus price kept"),
        *((name, c_int64) for name in ("reach", "stranding", "cpu_per_device", "generation", "kinds", "models")),
        *_pointers("kind_cpu kind_group kind_may kind_chance"),
    ]


class _Ask(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("ranking", "count", "cpu", "checked_cpu", "host_memory")),
        *_pointers("takes memory_room compute_room ruled_out unknown free_riding"),
        ("wants_idle", c_int64),
        *_pointers("fits scores"),
    ]


@dataclass(slots=True)
class _Held:
    """A structure with the arrays whose addresses it has, and what it was made of."""

    of: object
    structure: ctypes.Structure
    address: int = 0
    arrays: list[Any] = field(default_factory=list)

    def point(self, **arrays: Any) -> "_Held":
        for name, array in arrays.items():
            kept = None if array is None else np.ascontiguousarray(array)
            self.arrays.append(kept)
            setattr(self.structure, name, None if kept is None else kept.ctypes.data)
        self.address = ctypes.addressof(self.structure)
        return self


class Kernel:
    """A compiled :class:`tessera.allocator.look.Looker`. For one index at a time; not thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._look, self._devices = library.tessera_place_look, library.tessera_place_devices
        self._look.argtypes, self._look.restype = [c_void_p, c_void_p, c_void_p, c_void_p, c_int64], None
        self._devices.argtypes, self._devices.restype = [c_void_p, c_void_p, c_void_p, c_int64, c_void_p], None
        self._fleet = _Held(None, _Fleet())
        self._outlook = _Held(None, _Outlook())
        self._scores: Ints = np.zeros(_MOST_DEVICES, dtype=np.int64)
        self._scores_at = self._scores.ctypes.data

    def look(self, scene: Scene, known: Known, nodes: Ints | None) -> bool:
        """Bring ``fits`` and ``scores`` of these nodes (``None``: all) up to date; ``False`` where it cannot."""
        fleet, outlook, ask = self._addresses(scene, known)
        if not ask:
            return False
        if nodes is None:
            self._look(fleet, outlook, ask, None, len(known.scores))
        else:
            self._look(fleet, outlook, ask, nodes.ctypes.data, len(nodes))
        return True

    def order(self, scene: Scene, known: Known) -> Order | None:
        """The order of devices; ``None`` where it cannot say."""
        if known.ask.count != 1 or known.policy.device is not known.policy.node:
            return None
        fleet, outlook, ask = self._addresses(scene, known)
        if not ask or known.policy.device not in _BY_DEVICE:
            return None

        def ordered(rows: Sequence[int]) -> list[int]:
            if len(rows) < 2:
                return list(rows)
            node = int(scene.snapshot.fleet.node_of[rows[0]])
            self._devices(fleet, outlook, ask, node, self._scores_at)
            first = int(scene.snapshot.fleet.first[node])
            scores = self._scores[: rows[-1] + 1 - first].tolist()
            return sorted(rows, key=lambda row: -scores[row - first])

        return ordered

    def _addresses(self, scene: Scene, known: Known) -> tuple[int, int, int]:
        """Of the fleet, the outlook and what is asked, which is 0 where the kernel does not know how to look."""
        usage = scene.snapshot.usage
        if self._fleet.of is not usage:
            self._fleet = _fleet(scene.snapshot.fleet, usage)
        if self._outlook.of is not scene.outlook:
            self._outlook = _outlook(scene.outlook)
        if known.compiled is None:
            known.compiled = _ask(scene, known)
        assert isinstance(known.compiled, _Held)
        able = len(scene.outlook.target.value) <= _MOST_GROUPS
        return self._fleet.address, self._outlook.address, known.compiled.address if able else 0


def _fleet(fleet: Fleet, usage: Usage) -> _Held:
    return _Held(usage, _Fleet(nodes=len(fleet.nodes))).point(
        first=fleet.first, node_model=fleet.node_model, cpu=fleet.cpu, host_memory=fleet.host_memory,
        max_pods=fleet.max_pods, compute=fleet.compute, slots=fleet.slots, open=fleet.open,
        used_memory=usage.memory, used_compute=usage.compute, used_slots=usage.slots, exclusive=usage.exclusive,
        left=usage.left, node_fill=usage.node_fill, used_cpu=usage.cpu, used_host_memory=usage.host_memory,
        pods=usage.pods, sizes=usage.sizes,
    )  # fmt: skip


def _outlook(outlook: Outlook) -> _Held:
    target = outlook.target
    numbers = _Outlook(
        cpus=len(target.cpus), values=len(target.values), groups=len(target.value), total=target.total,
        reach=REACH, stranding=outlook.stranding, cpu_per_device=outlook.cpu_per_device,
        generation=outlook.generation, kinds=len(target.kinds.cpu), models=target.kinds.may.shape[1],
    )  # fmt: skip
    return _Held(outlook, numbers).point(
        cpu=target.cpus, value=target.values, group_value=target.value, group_count=target.count,
        weight=target.weight, thresholds=THRESHOLDS, worth=outlook.worth, softplus=SOFTPLUS, price=outlook.price,
        kept=outlook.kept, kind_cpu=target.kinds.cpu, kind_group=target.kinds.group, kind_may=target.kinds.may,
        kind_chance=target.kinds.chance,
    )  # fmt: skip


def _ask(scene: Scene, known: Known) -> _Held:
    """What is asked; with no address where it is beyond the kernel."""
    fleet, found, ask = scene.snapshot.fleet, known.found, known.ask
    code = _CODES.get(known.policy.node, 0)
    most = int(np.diff(fleet.first).max(initial=0))
    if not code or len(found.request.claims) > 1 or most > _MOST_DEVICES:
        return _Held(None, _Ask())
    numbers = _Ask(
        ranking=code, count=ask.count, cpu=ask.cpu_milli, checked_cpu=found.pod.cpu_milli,
        host_memory=ask.memory_mib,
    )  # fmt: skip
    held = _Held(None, numbers).point(takes=ask.takes, scores=known.scores)
    if known.main >= 0:
        need, rule = found.needs[0], found.rules[0]
        held.structure.wants_idle = need.exclusive or rule.idle_device
        held.point(
            memory_room=need.memory_room, compute_room=need.compute_room, ruled_out=memo_of(fleet).ruled(rule).out,
            unknown=need.unknown, free_riding=need.free_riding, fits=found.fits[0],
        )  # fmt: skip
    return held


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None


def compiled_looker() -> Kernel | None:
    """A kernel of its own, or ``None`` where no compiler was."""
    library = _library()
    return None if library is None else Kernel(library)
