"""R, model protection: which device models are short for the pods that can use no other.

Free devices are to be shared out to the expected pods that name models (a transportation problem). Where demand is
above what is there, the least cut says which models are the bottleneck: one milli more of those would serve one
milli more of demand, one of the others none. So the price of a model is 0 or 1; to be of use before the
bottleneck is certain, it is the mean over demands from 0.8 to 1.5 times the expected.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

FACTORS: Final = (8, 9, 10, 11, 12, 13, 14, 15)
"""Tenths of the expected demand."""

Models = frozenset[int]


def scarcity(free: Sequence[int], demand: Mapping[Models, int], unit: int) -> list[int]:
    """The price of each model in parts of ``unit``; ``free`` and ``demand`` (by allowed models) are in milli."""
    found = [0] * len(free)
    if demand:
        for tenths in FACTORS:
            scaled = {models: amount * tenths // 10 for models, amount in sorted(demand.items(), key=_stable)}
            for model in bottleneck(free, scaled):
                found[model] += 1
    return [count * unit // len(FACTORS) for count in found]


def _stable(item: tuple[Models, int]) -> list[int]:
    return sorted(item[0])


def bottleneck(free: Sequence[int], demand: Mapping[Models, int]) -> frozenset[int]:
    """The models of which more would serve more: those that unserved demand reaches, also by moving what is
    served.
    """
    left, unserved = list(free), dict(demand)
    served: dict[tuple[Models, int], int] = {}
    for start in demand:
        while unserved[start]:
            path = _path(start, left, demand, served)
            if path is None:
                break
            _shift(path, left, unserved, served)
    reached: set[int] = set()
    for start in demand:
        if unserved[start]:
            reached |= _reach(start, demand, served)[0].keys()
    return frozenset(reached)


def _reach(
    start: Models, demand: Mapping[Models, int], served: Mapping[tuple[Models, int], int]
) -> tuple[dict[int, Models], dict[Models, int | None]]:
    """The models that ``start`` can reach, each with the demand that it is reached from; and demands by model."""
    by: dict[int, Models] = {}
    seen: dict[Models, int | None] = {start: None}
    queue = [start]
    for wanting in queue:
        for model in sorted(wanting):
            if model in by:
                continue
            by[model] = wanting
            for other in demand:
                if other not in seen and served.get((other, model)):
                    seen[other] = model
                    queue.append(other)
    return by, seen


def _path(
    start: Models, left: Sequence[int], demand: Mapping[Models, int], served: Mapping[tuple[Models, int], int]
) -> list[tuple[Models, int]] | None:
    """Steps (demand, model that it takes more of) from a model with something left back to ``start``."""
    by, seen = _reach(start, demand, served)
    model: int | None = next((m for m in by if left[m]), None)
    if model is None:
        return None
    path: list[tuple[Models, int]] = []
    while model is not None:
        path.append((by[model], model))
        model = seen[by[model]]
    return path


def _shift(
    path: Sequence[tuple[Models, int]],
    left: list[int],
    unserved: dict[Models, int],
    served: dict[tuple[Models, int], int],
) -> None:
    """Serve as much more of the path's last demand as the path allows, each demand on it moving to its next
    model.
    """
    given_up = [(wanting, before) for (wanting, _), (_, before) in pairwise(path)]
    start = path[-1][0]
    amount = min(left[path[0][1]], unserved[start], *(served[step] for step in given_up))
    for step in path:
        served[step] = served.get(step, 0) + amount
    for step in given_up:
        served[step] -= amount
    left[path[0][1]] -= amount
    unserved[start] -= amount
