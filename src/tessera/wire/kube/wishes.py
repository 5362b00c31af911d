"""A pod's soft preferences, from ``spec.affinity`` and ``spec.topologySpreadConstraints``.

The API server has checked them, so what is not understood here is of a version to come: it is left out, because a
preference that is not honoured is no fault, while a pod that cannot be placed for it would be one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tessera.policy.soft import Match, NodeTerm, Operator, PodTerm, Selector, Spread, Wishes
from tessera.wire.kube.objects import KubePod

SOFT: Final = "preferredDuringSchedulingIgnoredDuringExecution"
ANYWAY: Final = "ScheduleAnyway"
_OPERATORS: Final = frozenset(operator.value for operator in Operator)


def wishes_of(pod: KubePod) -> Wishes | None:
    """The soft preferences of a pod; ``None`` for the most, which have none."""
    spec = pod.spec
    if not spec.affinity and not spec.topology_spread_constraints:
        return None
    affinity = spec.affinity or {}
    found = Wishes(
        nodes=tuple(_node_terms(affinity)),
        pods=(
            *_pod_terms(pod, _mapping(affinity, "podAffinity"), 1),
            *_pod_terms(pod, _mapping(affinity, "podAntiAffinity"), -1),
        ),
        spreads=tuple(_spreads(pod)),
    )
    return found or None


def _node_terms(affinity: Mapping[str, Any]) -> Iterator[NodeTerm]:
    for raw in _mappings(_mapping(affinity, "nodeAffinity"), SOFT):
        preference = _mapping(raw, "preference")
        matches = tuple(_matches(preference, "matchExpressions"))
        if matches and not preference.get("matchFields"):
            yield NodeTerm(_weight(raw), matches)


def _pod_terms(pod: KubePod, affinity: Mapping[str, Any], sign: int) -> Iterator[PodTerm]:
    for raw in _mappings(affinity, SOFT):
        term = _mapping(raw, "podAffinityTerm")
        selector = _selector(pod, term)
        topology = term.get("topologyKey")
        if selector is not None and isinstance(topology, str):
            yield PodTerm(sign * _weight(raw), topology, selector)


def _spreads(pod: KubePod) -> Iterator[Spread]:
    for raw in pod.spec.topology_spread_constraints or ():
        selector = _selector(pod, raw)
        topology = raw.get("topologyKey")
        if raw.get("whenUnsatisfiable") == ANYWAY and selector is not None and isinstance(topology, str):
            yield Spread(topology, selector)


def _selector(pod: KubePod, term: Mapping[str, Any]) -> Selector | None:
    """The pods that a term means: of the pod's own namespace where it names none. A missing selector means nobody.

    ``matchLabelKeys`` adds the pod's own values of these labels. An empty namespace selector means all; any other
    would need the labels of namespaces, and is left out.
    """
    raw = term.get("labelSelector")
    if not isinstance(raw, dict):
        return None
    own = pod.metadata.labels or {}
    matches = (
        *(Match(key, Operator.IN, (str(value),)) for key, value in sorted(_mapping(raw, "matchLabels").items())),
        *_matches(raw, "matchExpressions"),
        *(Match(k, Operator.IN, (own[k],)) for k in _strings(term, "matchLabelKeys") if k in own),
        *(Match(k, Operator.NOT_IN, (own[k],)) for k in _strings(term, "mismatchLabelKeys") if k in own),
    )
    everywhere = term.get("namespaceSelector")
    if everywhere is not None:
        return Selector(None, matches) if everywhere == {} else None
    return Selector(frozenset(_strings(term, "namespaces")) or frozenset({pod.metadata.namespace}), matches)


def _matches(raw: Mapping[str, Any], name: str) -> Iterator[Match]:
    for expression in _mappings(raw, name):
        key, operator = expression.get("key"), expression.get("operator")
        if isinstance(key, str) and operator in _OPERATORS:
            yield Match(key, Operator(operator), tuple(_strings(expression, "values")))


def _weight(raw: Mapping[str, Any]) -> int:
    weight = raw.get("weight")
    return min(100, max(0, weight)) if isinstance(weight, int) else 0


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _mappings(raw: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = raw.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _strings(raw: Mapping[str, Any], name: str) -> Sequence[str]:
    value = raw.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
