"""The published heuristics that others are measured by: best-fit, dot-product, gpu-packing, gpu-clustering,
random.

All scores are whole numbers from 0 to 100, as kube-scheduler's are, and the coarse steps are part of each policy:
ties go to the first node. CPU and devices are weighed against the largest node of the openb cluster, 128 cores and
8 devices. ``cpu`` and ``gpu`` are what is left of a node before the pod comes, ``c`` and ``g`` what the pod takes,
in milli (``gpu`` and ``g`` of all devices together). Memory is not looked at.

Devices of the chosen node: those with the least left that suffice, and the lowest; ``random`` takes any.

Source: the plugins BestFitScore, DotProductScore (dimensions merged, norm by the maximum), GpuPackingScore,
GpuClusteringScore and RandomScore of the simulator of Weng et al., USENIX ATC 2023. Best-fit and dot-product go
back to Panigrahy et al., "Heuristics for vector bin packing" (2011), and Tetris (Grandl et al., SIGCOMM 2014);
gpu-packing to Weng et al. (MLaaS, NSDI 2022); gpu-clustering to Gandiva (Xiao et al., OSDI 2018).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tessera.core.fleet import SIZE_BITS, Bools, Ints
from tessera.core.units import WHOLE
from tessera.policy.score import Ask, Scene, cpu_left, padded

MOST_CPU: Final = 128_000
MOST_MILLI: Final = 8 * WHOLE

POINT: Final = 20_000
"""A point in parts per million of a node's fill, as in :mod:`tessera.policy.soft`."""

_CPU_SEEN: Final = 1 << 27
"""Milli-cores beyond which nodes look alike: 1,000 of the largest nodes, and far from where products overflow."""


@dataclass(frozen=True, slots=True)
class _Nodes:
    """What the formulas see of some nodes: one line a node, missing devices with nothing left."""

    left: Ints
    real: Bools
    gpu: Ints
    cpu: Ints
    g: Ints
    each: Ints
    sizes: Ints


def _seen(scene: Scene, ask: Ask, nodes: Ints) -> _Nodes:
    fleet, usage = scene.snapshot.fleet, scene.snapshot.usage
    rows, real = padded(fleet, nodes)
    left = np.where(real, usage.left[rows], 0) if rows.size else np.zeros(rows.shape, dtype=np.int64)
    each = np.where(real[:, 0], ask.takes[rows[:, 0]], 0) if rows.size else np.zeros(len(nodes), dtype=np.int64)
    cpu = np.minimum(cpu_left(scene.snapshot, nodes), _CPU_SEEN)
    return _Nodes(left, real, left.sum(axis=1), cpu, each * ask.count, each, usage.sizes[nodes])


def _best_fit(seen: _Nodes, ask: Ask) -> Ints:
    """``100 * (1 - ((cpu - c) / 128000 + (gpu - g) / 8000) / 2)``, rounded down."""
    scale = MOST_CPU // MOST_MILLI
    rest = (seen.cpu - ask.cpu_milli) + scale * (seen.gpu - seen.g)
    return np.asarray(100 * (2 * MOST_CPU - rest) // (2 * MOST_CPU), dtype=np.int64)


def _dot_product(seen: _Nodes, ask: Ask) -> Ints:
    """``100 * (1 - (cpu * c / 128000^2 + gpu * g / 8000^2) / 2)``, rounded down."""
    scale = (MOST_CPU // MOST_MILLI) ** 2
    whole = 2 * MOST_CPU * MOST_CPU
    product = seen.cpu * ask.cpu_milli + scale * seen.gpu * seen.g
    # Divided before it is multiplied, since a hundred times the product may not fit into 64 bits.
    points, rest = product // whole * 100, product % whole * 100
    return np.asarray(100 - points + -rest // whole, dtype=np.int64)


def _gpu_packing(seen: _Nodes, ask: Ask) -> Ints:
    """Shared devices before free devices of a used node before free nodes.

    * a node whose devices are all free: ``max(33 - free, free)`` with ``free`` how many those are
    * free devices would be taken: ``max(50 - taken, 33)`` with ``taken`` how many
    * else ``max(100 - left / 10, 50)`` with ``left`` the percent left of the devices that would be taken
    """
    if not ask.count:
        return np.zeros(len(seen.cpu), dtype=np.int64)
    free = (seen.real & (seen.left == WHOLE)).sum(axis=1)
    able = seen.real & (seen.left >= seen.each[:, None])
    tightest = np.sort(np.where(able, seen.left, 2 * WHOLE), axis=1)[:, : ask.count]
    taken = (tightest == WHOLE).sum(axis=1)
    percent = (tightest * 100 // WHOLE).sum(axis=1)
    used_node = np.where(taken > 0, np.maximum(50 - taken, 33), np.maximum(100 - percent // 10, 50))
    all_free = free == seen.real.sum(axis=1)
    return np.asarray(np.where(all_free, np.maximum(33 - free, free), used_node), dtype=np.int64)


def _gpu_clustering(seen: _Nodes, ask: Ask) -> Ints:
    """Pods of one size together: a quarter of 100 points each, and up to 25 more for a fuller node.

    75 where only pods of the pod's own size are, 50 where they are among others, 25 on a node without pods that
    hold devices, 0 beside others only. Sizes are a part of a device, one device, 2 or 3, 4 to 7, and more.
    """
    if not ask.count:
        return np.zeros(len(seen.cpu), dtype=np.int64)
    parts = [np.asarray((seen.sizes >> SIZE_BITS * place) % (1 << SIZE_BITS) > 0) for place in range(5)]
    shares = (ask.count == 1) & (seen.each < WHOLE)
    place = np.where(shares, 0, min(ask.count.bit_length(), 4))
    own = np.choose(place, parts)
    kinds = np.sum(parts, axis=0)
    base = np.where(own, np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
    return np.asarray(base + 25 * np.maximum(MOST_MILLI - seen.gpu, 0) // MOST_MILLI, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A heuristic by its formula; devices with the least left first."""

    formula: Callable[[_Nodes, Ask], Ints]
    worth: int = POINT

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """0 to 100, lower where a node is larger than the largest of openb."""
        del fits
        return self.formula(_seen(scene, ask, nodes), ask)

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """The device with the least left first."""
        del ask
        left = scene.snapshot.usage.left
        return sorted(rows, key=lambda row: int(left[row]))


@dataclass(frozen=True, slots=True)
class Random:
    """Any node that fits, and any device: drawn anew for every generation of the outlook.

    Whoever wants each pod to be drawn by itself (the simulator) counts the generation up with every pod.
    """

    worth: int = 1

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """A number for each node and generation, without any order in it."""
        del ask, fits
        return _scattered(nodes, scene.outlook.generation, 0)

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """Single devices in any order; where several are taken, in theirs, as the published one does."""
        if ask.count != 1:
            return list(rows)
        drawn = _scattered(np.asarray(rows, dtype=np.int64), scene.outlook.generation, 1).tolist()
        return [row for _, row in sorted(zip(drawn, rows, strict=True))]


def _scattered(values: Ints, generation: int, salt: int) -> Ints:
    """Numbers of 62 bits that look drawn; the mixing function of SplitMix64 (Steele et al., OOPSLA 2014)."""
    drawn = _mixed(np.array([generation % (1 << 64)], dtype=np.uint64))
    return (_mixed(drawn ^ (values.astype(np.uint64) * np.uint64(2) + np.uint64(salt))) >> np.uint64(2)).astype(
        np.int64
    )


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


BEST_FIT: Final = Baseline(_best_fit)
DOT_PRODUCT: Final = Baseline(_dot_product)
GPU_PACKING: Final = Baseline(_gpu_packing)
GPU_CLUSTERING: Final = Baseline(_gpu_clustering)
RANDOM: Final = Random()
