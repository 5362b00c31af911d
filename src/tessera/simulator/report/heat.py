"""The cluster as a map: a column for each node, a square for each device, nodes of one model together."""

from collections.abc import Iterator, Sequence
from typing import Final

from tessera.core.units import WHOLE
from tessera.simulator.report.markup import Markup, joined, number, tag
from tessera.simulator.report.picture import WIDTH, legend, text
from tessera.simulator.report.source import NodeLeft

STYLES: Final = ("idle", "u1", "u2", "u3", "u4", "u5", "full")
LEGEND: Final = ("idle", "to 20 %", "to 40 %", "to 60 %", "to 80 %", "below full", "full")
MOST_NODES: Final = 6000
"""Nodes that are drawn; of more, every second, third, ... in the order of what is left on them."""


def style_of(used: int) -> str:
    """The shade of a device of which so many milli are in use."""
    if used <= 0:
        return STYLES[0]
    return STYLES[-1] if used >= WHOLE else STYLES[1 + used * 5 // WHOLE]


def cell_size(nodes: int) -> float:
    """Units of a square with its gap: smaller where there are many nodes, so that a map stays a page."""
    return 12.0 if nodes <= 40 else 7.0 if nodes <= 400 else 4.0 if nodes <= 2500 else 2.5


def heat_map(nodes: Sequence[NodeLeft], held: Sequence[tuple[str, str]]) -> tuple[Markup, float]:
    """The map and how high it is; ``held`` has each model with the line that stands above its nodes."""
    drawn, y = legend(LEGEND, STYLES, 4, 4)
    found: list[str] = [drawn]
    size = cell_size(len(nodes))
    for model, line in held:
        mine = [node for node in nodes if node.model == model and node.devices]
        mine.sort(key=lambda node: (sum(node.devices) - WHOLE * len(node.devices), node.node))
        mine = mine[:: 1 + len(nodes) // MOST_NODES]
        y += 16
        found.append(text(line, 4, y, "small"))
        y += 6
        strips, high = _strips(mine, size, y)
        found += strips
        y += high
    return joined(found), y + 4


def _strips(nodes: Sequence[NodeLeft], size: float, top: float) -> tuple[list[str], float]:
    """The nodes side by side, in as many strips as they need; one path for each shade."""
    rows = max((len(node.devices) for node in nodes), default=0)
    across = int((WIDTH - 8) // size)
    paths: dict[str, list[str]] = {}
    for i, node in enumerate(nodes):
        strip, column = divmod(i, across)
        x, y = 4 + column * size, top + strip * (rows * size + 4)
        for j, used in enumerate(node.devices):
            paths.setdefault(style_of(used), []).append(_square(x, y + j * size, size * 0.86))
    strips = -(-len(nodes) // across)
    return [tag("path", d="".join(paths[style]), class_=style) for style in STYLES if style in paths], strips * (
        rows * size + 4
    )


def _square(x: float, y: float, side: float) -> str:
    return f"M{number(x)} {number(y)}h{number(side)}v{number(side)}h-{number(side)}z"


def lines_of(held: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, str]]:
    """Each model with the line above its nodes, the model of most devices first."""
    for model, (nodes, devices, used) in sorted(held.items(), key=lambda item: (-item[1][1], item[0])):
        percent = 100 * used / (WHOLE * devices)
        counted = f"{nodes:,} node{'s' * (nodes != 1)}, {devices:,} device{'s' * (devices != 1)}"
        yield model, f"{model}: {counted}, {percent:.1f} % in use"
