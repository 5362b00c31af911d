"""Patches on plain JSON, as the API server in memory applies them. What is given is never changed.

Source: RFC 7396 (merge patch), RFC 6902 (JSON patch). Server-side apply is kept simple: maps are merged, lists are
replaced as one, and what a manager applied last time and leaves out now is removed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final


class PatchFailed(ValueError):
    """A patch that cannot be applied, or whose test does not hold; the text says which operation and why."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: maps are merged, ``None`` removes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def apply_patch(target: Any, applied: Any, previous: Any) -> Any:
    """``target`` with what is applied now, without what was ``previous``-ly applied and is left out now."""
    if not isinstance(applied, Mapping):
        return applied
    merged = dict(target) if isinstance(target, Mapping) else {}
    before = previous if isinstance(previous, Mapping) else {}
    for name in before.keys() - applied.keys():
        merged.pop(name, None)
    for name, value in applied.items():
        merged[name] = apply_patch(merged.get(name), value, before.get(name))
    return merged


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902. Raises :class:`PatchFailed`."""
    for number, operation in enumerate(operations):
        try:
            target = _OPERATIONS[operation["op"]](target, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PatchFailed(f"operation {number} ({dict(operation)}): {error}") from None
    return target


def _steps(pointer: str) -> list[str]:
    if not pointer:
        return []
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _find(target: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        target = target[_index(step, len(target) - 1)] if isinstance(target, list) else target[step]
    return target


def _index(step: str, last: int) -> int:
    index = int(step)
    if not 0 <= index <= last:
        raise IndexError(f"index {step} is out of range")
    return index


def _edited(target: Any, steps: Sequence[str], edit: Callable[[Any, str], Any]) -> Any:
    """A copy of ``target`` along ``steps``, whose last container went through ``edit``."""
    if isinstance(target, list):
        copy: Any = list(target)
    elif isinstance(target, Mapping):
        copy = dict(target)
    else:
        raise TypeError(f"there is nothing at {steps[0]!r}")
    if len(steps) == 1:
        return edit(copy, steps[0])
    step: Any = _index(steps[0], len(copy) - 1) if isinstance(copy, list) else steps[0]
    copy[step] = _edited(copy[step], steps[1:], edit)
    return copy


def _put(container: Any, step: str, value: Any, *, insert: bool) -> Any:
    if not isinstance(container, list):
        if not insert and step not in container:
            raise KeyError(f"there is no {step!r}")
        container[step] = value
    elif insert:
        container.insert(len(container) if step == "-" else _index(step, len(container)), value)
    else:
        container[_index(step, len(container) - 1)] = value
    return container


def _drop(container: Any, step: str) -> Any:
    del container[_index(step, len(container) - 1) if isinstance(container, list) else step]
    return container


def _add(target: Any, pointer: str, value: Any, *, insert: bool = True) -> Any:
    steps = _steps(pointer)
    return _edited(target, steps, lambda c, s: _put(c, s, value, insert=insert)) if steps else value


def _remove(target: Any, pointer: str) -> Any:
    return _edited(target, _steps(pointer), _drop)


def _test(target: Any, operation: Mapping[str, Any]) -> Any:
    found = _find(target, _steps(operation["path"]))
    if found != operation["value"]:
        raise ValueError("the test does not hold")
    return target


def _move(target: Any, operation: Mapping[str, Any]) -> Any:
    value = _find(target, _steps(operation["from"]))
    return _add(_remove(target, operation["from"]), operation["path"], value)


_OPERATIONS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "add": lambda target, o: _add(target, o["path"], o["value"]),
    "remove": lambda target, o: _remove(target, o["path"]),
    "replace": lambda target, o: _add(target, o["path"], o["value"], insert=False),
    "test": _test,
    "move": _move,
    "copy": lambda target, o: _add(target, o["path"], _find(target, _steps(o["from"]))),
}
