"""Soft preferences of a pod (node affinity, pod affinity, spreading) as a bonus per node.

An extender that answers one node takes the say from kube-scheduler's own scores, so what users write as
preferences counts here. The scale is kube-scheduler's: each kind gives a node 0 to 100 points, and weighs 2
against the 1 of packing, whose 0 to 100 points are a node's fill of 0 to 2,000,000.

What is left out: terms of *other* pods towards this one, namespace selectors other than "all", PreferNoSchedule
taints and the cluster's default spreading.

Source: kube-scheduler's plugins NodeAffinity, InterPodAffinity and PodTopologySpread, and their default weights.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

POINTS: Final = 100
POINT: Final = 20_000
"""What one point is worth in a node's fill: 100 points are the 2,000,000 of a node that is full."""

WEIGHT: Final = 2
"""Of each kind, where packing weighs 1."""

Labels = Mapping[str, str]


class Operator(StrEnum):
    """How a label's value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Match:
    """One requirement on a set of labels."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Labels) -> bool:
        """Whether the labels meet it. A missing label is not among any values: ``NotIn`` holds."""
        return _HOLDS[self.operator](labels.get(self.key), self.values)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _compare(value: str | None, values: tuple[str, ...], sign: int) -> bool:
    """Whether ``value`` is greater (``sign`` 1) or less (-1) than the one value; both must be whole numbers."""
    if value is None or len(values) != 1:
        return False
    mine, bound = _number(value), _number(values[0])
    return mine is not None and bound is not None and sign * mine > sign * bound


_HOLDS: Final[Mapping[Operator, Callable[[str | None, tuple[str, ...]], bool]]] = {
    Operator.IN: lambda value, values: value in values,
    Operator.NOT_IN: lambda value, values: value not in values,
    Operator.EXISTS: lambda value, _: value is not None,
    Operator.DOES_NOT_EXIST: lambda value, _: value is None,
    Operator.GT: lambda value, values: _compare(value, values, 1),
    Operator.LT: lambda value, values: _compare(value, values, -1),
}


@dataclass(frozen=True, slots=True)
class Selector:
    """Pods by label, in these namespaces; ``namespaces`` is ``None`` for all."""

    namespaces: frozenset[str] | None
    matches: tuple[Match, ...]

    def selects(self, namespace: str, labels: Labels) -> bool:
        """Whether a pod is meant."""
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return all(match.holds(labels) for match in self.matches)


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """``weight`` (1 to 100) for nodes whose labels meet all of ``matches``."""

    weight: int
    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True)
class PodTerm:
    """``weight`` for every selected pod in the node's domain of ``topology``; negative keeps away."""

    weight: int
    topology: str
    selector: Selector


@dataclass(frozen=True, slots=True)
class Spread:
    """Few selected pods in the node's domain of ``topology``, please."""

    topology: str
    selector: Selector


@dataclass(frozen=True, slots=True)
class Wishes:
    """All soft preferences of a pod."""

    nodes: tuple[NodeTerm, ...] = ()
    pods: tuple[PodTerm, ...] = ()
    spreads: tuple[Spread, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.pods or self.spreads)


class View(Protocol):
    """What the caller knows of nodes and of pods that are on them or will be."""

    def labels(self, node: str) -> Labels:
        """The labels of a node; none where it is not known."""
        ...

    def counts(self, selector: Selector) -> Mapping[str, int]:
        """How many selected pods each node has; nodes without one may be missing."""
        ...


def bonuses(wishes: Wishes, names: Sequence[str], view: View) -> dict[str, int]:
    """The bonus of each node in parts per million of fill; nodes without one are missing."""
    labels = {name: view.labels(name) for name in names}
    points = [
        *([_node_points(wishes.nodes, labels)] if wishes.nodes else []),
        *([_pod_points(wishes.pods, labels, view)] if wishes.pods else []),
        *([_spread_points(wishes.spreads, labels, view)] if wishes.spreads else []),
    ]
    totals = {name: sum(kind.get(name, 0) for kind in points) for name in names}
    return {name: WEIGHT * POINT * total for name, total in totals.items() if total}


def _node_points(terms: Iterable[NodeTerm], labels: Mapping[str, Labels]) -> dict[str, int]:
    """0 to 100, in proportion to the weights that are met."""
    met = {
        name: sum(term.weight for term in terms if all(match.holds(own) for match in term.matches))
        for name, own in labels.items()
    }
    most = max(met.values(), default=0)
    return {name: POINTS * weight // most for name, weight in met.items()} if most > 0 else {}


def _pod_points(terms: Iterable[PodTerm], labels: Mapping[str, Labels], view: View) -> dict[str, int]:
    """0 for the least and 100 for the most wanted node, the others in proportion between."""
    sums = dict.fromkeys(labels, 0)
    for term in terms:
        domains = _domains(term.topology, term.selector, view)
        for name, own in labels.items():
            sums[name] += term.weight * domains.get(own.get(term.topology, ""), 0)
    least, most = min(sums.values(), default=0), max(sums.values(), default=0)
    return (
        {name: POINTS * (value - least) // (most - least) for name, value in sums.items()} if most > least else {}
    )


def _spread_points(spreads: Iterable[Spread], labels: Mapping[str, Labels], view: View) -> dict[str, int]:
    """100 for the emptiest domain and less the fuller it is; 0 for a node that has no such domain."""
    sums = dict.fromkeys(labels, 0)
    outside: set[str] = set()
    for spread in spreads:
        domains = _domains(spread.topology, spread.selector, view)
        for name, own in labels.items():
            value = own.get(spread.topology)
            if value is None:
                outside.add(name)
            else:
                sums[name] += domains.get(value, 0)
    inside = {name: value for name, value in sums.items() if name not in outside}
    least, most = min(inside.values(), default=0), max(inside.values(), default=0)
    if not most:
        return dict.fromkeys(inside, POINTS)
    return {name: POINTS * (most + least - value) // most for name, value in inside.items()}


def _domains(topology: str, selector: Selector, view: View) -> dict[str, int]:
    """How many selected pods each value of the label ``topology`` has."""
    found: dict[str, int] = {}
    for node, count in view.counts(selector).items():
        value = view.labels(node).get(topology)
        if value is not None:
            found[value] = found.get(value, 0) + count
    return found
