"""What is used, counted by the simulator itself and not read from the ledger, with a trail of every change.

A device's *left* is what its dominant use leaves: 1000 less the greater of the memory and compute in use on it.
"""

from dataclasses import dataclass, field

from tessera.core.fleet import Fleet
from tessera.core.placement import Placement
from tessera.core.units import WHOLE
from tessera.simulator.trace import dominant

Change = tuple[int, int, tuple[int, ...], int]
"""Arrivals so far, row of the node, what is left of its devices, its milli-cores in use."""


@dataclass(slots=True)
class _Use:
    """What is in use on one device."""

    memory: int = 0
    compute: int = 0
    exclusive: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """Uses by row of the fleet; ``used`` (one number, in a list of one) is the milli in use of all devices."""

    fleet: Fleet
    left: list[list[int]]
    cpu: list[int]
    host_memory: list[int]
    used: list[int]
    trail: list[Change] = field(default_factory=list)
    _uses: list[_Use] = field(default_factory=list)

    @staticmethod
    def nothing(fleet: Fleet) -> "Tally":
        """The tally of an empty cluster."""
        return Tally(
            fleet,
            [[WHOLE] * len(node.devices) for node in fleet.nodes],
            [0] * len(fleet.nodes),
            [0] * len(fleet.nodes),
            [0],
            _uses=[_Use() for _ in fleet.devices],
        )

    def book(self, placement: Placement, sign: int, arrivals: int) -> None:
        """Add (1) or take away (-1) a placement."""
        fleet = self.fleet
        row = fleet.node_row[placement.node]
        left, first = self.left[row], int(fleet.first[row])
        for charge in placement.charges:
            at = fleet.device_row[charge.uuid]
            use = self._uses[at]
            use.memory += sign * charge.memory_mib
            use.compute += sign * charge.compute_milli
            use.exclusive += sign * charge.exclusive
            taken = WHOLE if use.exclusive else dominant(fleet.devices[at], use.memory, use.compute)
            self.used[0] += left[at - first] - (WHOLE - taken)
            left[at - first] = WHOLE - taken
        self.cpu[row] += sign * placement.cpu_milli
        self.host_memory[row] += sign * placement.memory_mib
        self.trail.append((arrivals, row, tuple(left), self.cpu[row]))
