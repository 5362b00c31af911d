"""How many nodes could be given back: the fewest on which everything that was held is held still.

The nodes that a run leaves emptiest are taken away, and what the run had placed is placed anew, in its order, by
the same policy, on the rest. How many can go is found by halving; the answer was replayed, so it is true, but
another choice of nodes might spare more.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tessera.core.fleet import Fleet
from tessera.policy.outlook import outlook_of
from tessera.simulator.engine import Engine, Parts, Rules
from tessera.simulator.result import Spare
from tessera.simulator.stream import Stream
from tessera.simulator.tally import Tally


def spare_nodes(parts: Parts, rules: Rules) -> Spare:
    """The nodes that could be given back, the emptiest first; for a stream without departures."""
    engine = Engine(parts, rules)
    engine.run()
    nodes = np.array(engine.record.nodes, dtype=np.int64)
    held = replace(parts, stream=Stream(parts.stream.pods[nodes >= 0]))
    order = _emptiest_first(parts.fleet, engine.tally)
    enough, too_many = 0, len(order)
    while too_many - enough > 1:
        half = (enough + too_many) // 2
        if _holds(held, rules, order[:half]):
            enough = half
        else:
            too_many = half
    names = tuple(parts.fleet.node_names[row] for row in order[:enough])
    return Spare(rules.policy, rules.seed, len(order) - enough, names)


def _emptiest_first(fleet: Fleet, tally: Tally) -> list[int]:
    """Rows of all nodes: by the part of its devices that is in use, then by cores in use, then the last first."""
    sizes = np.diff(fleet.first).tolist()
    used = [size * 1000 - sum(left) for size, left in zip(sizes, tally.left, strict=True)]
    fullness = [1000 * taken // size if size else 0 for taken, size in zip(used, sizes, strict=True)]
    return sorted(range(len(sizes)), key=lambda row: (fullness[row], tally.cpu[row], -row))


def _holds(parts: Parts, rules: Rules, without: Sequence[int]) -> bool:
    """Whether all of these pods find room without these nodes."""
    gone = set(without)
    fleet = Fleet([node for row, node in enumerate(parts.fleet.nodes) if row not in gone])
    engine = Engine(replace(parts, fleet=fleet, outlook=outlook_of(fleet, parts.trace.kinds())), rules)
    return min(engine.run().nodes, default=0) >= 0
