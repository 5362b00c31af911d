"""``pwr+``, the default: fragmentation, prices of what is left, stranded CPU, scarce models, and packing, in one
cost.

The way to place a pod, a node and a device of it, that costs least is taken. In milli of a device::

    cost = 0.3 * (growth of F_n(M))                           fragmentation, see policy.target
         + 4.0 * (V(r) lost, summed over the devices)         P: what rests are worth, see policy.prices
         + 2.0 * (growth of S_n)                              S: devices without CPU to go with them
         + 2.0 * p_model * asked                              R: models that others cannot do without
         + 0.1 * left_n * max(asked, cpu / k) / 8000          packing: fill the nodes that are in use

    S_n = softplus(left_n - cpu_left_n / rho) with a width of 200 milli

``left_n`` is what is left on the node's devices before the pod comes, ``asked`` what the pod takes of devices in
all, ``k`` the CPU that goes with a device in this fleet, ``rho`` 0.65 times the CPU that M's pods take with a
device. S is off where M asks for at least 0.97 times the CPU per device that the fleet has: then CPU is short
whatever is done. Costs are cut to steps of 20 milli, so that nodes between which little lies are filled one
after the other (see policy.fragment for what becomes of finer scores), and the score is the cost in steps,
negative.

Source: our study of the public openb trace; docs/adr/0014-placement-policy.md has its numbers. F is FGD's.
"""

from collections.abc import Sequence
from math import exp, log1p
from typing import Final

import numpy as np

from tessera.core.fleet import Bools, Ints
from tessera.core.units import WHOLE
from tessera.policy.fragment import POINT, Ways, best_ways, growth, order_by_ways, ways
from tessera.policy.outlook import Outlook
from tessera.policy.prices import FINE
from tessera.policy.score import OUT, Ask, Scene
from tessera.policy.target import ONE

# In tenths of a milli per milli.
_FRAGMENT: Final = 3
_WORTH: Final = 40
_STRAND: Final = 20
_PROTECT: Final = 20
_KEEP: Final = 20
_CONVEX: Final = 1
_TENTHS: Final = 10

_STEP: Final = 20
_LARGEST_NODE: Final = 8 * WHOLE
_MOST_LOAD: Final = 1 << 20
_CONVEX_FINE: Final = 1 << 10

REACH: Final = 2048
"""Milli beyond which softplus is 0 on the one side and the milli themselves on the other."""

_WIDTH: Final = 200

# Rounded far above the last digit of an exponential, in which libraries of mathematics differ.
_TABLE_FINE: Final = 1 << 10
SOFTPLUS: Final[Ints] = np.array(
    [
        round(_WIDTH * log1p(exp(x / _WIDTH)) * _TABLE_FINE) * (FINE // _TABLE_FINE)
        for x in range(-REACH, REACH + 1)
    ],
    dtype=np.int64,
)
"""By milli from ``-REACH`` on, in parts of ``FINE`` of a milli."""


class Pwr:
    """See the module."""

    worth = POINT

    def ways_scored(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """The score of each way on each node, ``OUT`` where there is none."""
        found = ways(scene, ask, fits, nodes)
        steps = cost(scene.outlook, ask, found) // (_TENTHS * _STEP * FINE)
        return np.where(found.possible, -steps, OUT)

    def scores(self, scene: Scene, ask: Ask, fits: Bools, nodes: Ints) -> Ints:
        """Steps of 20 milli that the best way on each node costs, negative."""
        return best_ways(self, scene, ask, fits, nodes)

    def order(self, scene: Scene, ask: Ask, rows: Sequence[int]) -> list[int]:
        """The device first whose choice costs least."""
        return order_by_ways(self, scene, ask, rows)


def cost(outlook: Outlook, ask: Ask, found: Ways) -> Ints:
    """What each way on each node costs, in tenths of parts of ``FINE`` of a milli."""
    idle_before, idle_after = found.before.sum(axis=-1)[:, None], found.after.sum(axis=-1)
    total = _FRAGMENT * (growth(outlook, found) // (ONE // FINE)) + _WORTH * _worth_lost(outlook, found)
    if outlook.stranding:
        before = _stranded(outlook, idle_before, found.cpu_before[:, None])
        total += _STRAND * (_stranded(outlook, idle_after, found.cpu_after[:, None]) - before)
    load = np.minimum(np.maximum(found.asked, ask.cpu_milli * WHOLE // outlook.cpu_per_device), _MOST_LOAD)
    packing = idle_before * load * _CONVEX_FINE // _LARGEST_NODE * (FINE // _CONVEX_FINE)
    keeping = np.where(idle_before == outlook.kept[found.nodes][:, None], load * FINE, 0)
    protecting = outlook.price[found.model][:, None] * found.asked
    return np.asarray(total + _CONVEX * packing + _PROTECT * protecting + _KEEP * keeping, dtype=np.int64)


def _worth_lost(outlook: Outlook, found: Ways) -> Ints:
    before = outlook.worth[np.minimum(found.before, WHOLE)].sum(axis=-1)[:, None]
    return np.asarray(before - outlook.worth[np.minimum(found.after, WHOLE)].sum(axis=-1), dtype=np.int64)


def _stranded(outlook: Outlook, idle: Ints, cpu: Ints) -> Ints:
    excess = idle - cpu * WHOLE // outlook.stranding
    near = SOFTPLUS[np.clip(excess, -REACH, REACH) + REACH]
    return np.where(excess >= REACH, excess * FINE, near)


PWR: Final = Pwr()
