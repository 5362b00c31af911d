"""Label and field selectors as the API server reads them, for the one in memory."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tessera.runtime.kube.port import ApiError, Kind, Select

Test = Callable[[Mapping[str, Any]], bool]

_EVERY_KIND: Final = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "Pod": frozenset(
        {"spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.nominatedNodeName"}
    ),
    "Node": frozenset({"spec.unschedulable"}),
    "Secret": frozenset({"type"}),
    "Event": frozenset({"reason", "reportingController", "regarding.kind", "regarding.name", "regarding.uid"}),
}
"""Fields that may be selected by. Source: Kubernetes pkg/apis/*/v1/conversion.go, AddFieldLabelConversionFunc."""

_SET: Final = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUAL: Final = re.compile(r"^\s*([^=!\s]+)\s*(==|=|!=)\s*(\S*)\s*$")
_EXISTS: Final = re.compile(r"^\s*(!?)\s*([^=!\s]+)\s*$")


def matcher(kind: Kind, select: Select) -> Test:
    """Whether an object is selected. Raises :class:`ApiError` (400) for what the server would not understand."""
    tests = [*_labels(select.labels), *_fields(kind, select.fields)]
    if select.namespace:
        tests.append(lambda obj: obj["metadata"].get("namespace", "") == select.namespace)
    return lambda obj: all(test(obj) for test in tests)


def _labels(text: str) -> list[Test]:
    return [_label(part) for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label(part: str) -> Test:
    if found := _SET.match(part):
        name, verb, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda obj: (_label_of(obj, name) in values) == (verb == "in")
    if found := _EQUAL.match(part):
        name, verb, value = found.groups()
        return lambda obj: (_label_of(obj, name) == value) == (verb != "!=")
    if found := _EXISTS.match(part):
        absent, name = found.groups()
        return lambda obj: (_label_of(obj, name) is None) == bool(absent)
    raise ApiError(400, "BadRequest", f"unable to parse requirement: {part!r}")


def _label_of(obj: Mapping[str, Any], name: str) -> str | None:
    value: str | None = (obj["metadata"].get("labels") or {}).get(name)
    return value


def _fields(kind: Kind, text: str) -> list[Test]:
    return [_field(kind, part) for part in text.split(",") if part.strip()]


def _field(kind: Kind, part: str) -> Test:
    found = _EQUAL.match(part)
    if found is None:
        raise ApiError(400, "BadRequest", f"invalid field selector: {part!r}")
    name, verb, value = found.groups()
    if name not in _EVERY_KIND | _FIELDS.get(kind.kind, frozenset()):
        raise ApiError(400, "BadRequest", f"field label not supported: {name}")
    path = name.split(".")
    return lambda obj: (_text(obj, path) == value) == (verb != "!=")


def _text(obj: Any, path: list[str]) -> str:
    for step in path:
        obj = obj.get(step) if isinstance(obj, Mapping) else None
    if isinstance(obj, bool):
        return str(obj).lower()
    return "" if obj is None else str(obj)
