"""Structural OpenAPI v3 schemas of our types, as CustomResourceDefinitions need them.

msgspec writes JSON Schema 2020-12; Kubernetes takes a subset of OpenAPI v3: no ``$ref``, no ``null`` type, no
``const``, exclusive bounds as flags. What has no structural form (a union of objects, recursion) is an error here
and not a surprise at the API server.

Source: kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural
schema".
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

Schema = dict[str, Any]
Notes = Mapping[str, Mapping[str, Schema]]
"""Struct name -> field's name on the wire (empty: the struct itself) -> what to add to its schema."""

_KEPT: Final = (
    "type", "format", "enum", "pattern", "minimum", "maximum", "multipleOf",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "required",
)  # fmt: skip
_INT_OR_STRING: Final = ({"type": "integer"}, {"type": "string"})
_REF: Final = "#/$defs/"


def structural(type_: Any, notes: Notes = MappingProxyType({})) -> Schema:
    """The structural schema of ``type_``; ``notes`` add descriptions, bounds and rules that types do not carry.

    Raises ``ValueError`` for a type that has none, and for a note about something that is not there.
    """
    (root,), parts = msgspec.json.schema_components([type_], ref_template=_REF + "{name}")
    _check_notes(parts, notes)
    return _Writer(parts, notes).write(root, ())


def _check_notes(parts: Mapping[str, Any], notes: Notes) -> None:
    for struct, fields in notes.items():
        known = parts.get(struct, {}).get("properties")
        unknown = [name for name in fields if known is None or (name and name not in known)]
        if unknown:
            raise ValueError(f"notes about {struct}: {', '.join(unknown)}, which are not there")


class _Writer:
    def __init__(self, parts: Mapping[str, Any], notes: Notes) -> None:
        self._parts = parts
        self._notes = notes

    def write(self, given: Schema, inside: tuple[str, ...]) -> Schema:
        """``given`` in structural form; ``inside`` are the structs around it."""
        if "$ref" in given:
            return {**self._struct(given["$ref"].removeprefix(_REF), inside), **_default(given)}
        if "anyOf" in given:
            return {**self._union(given["anyOf"], inside), **_default(given)}
        out: Schema = {key: given[key] for key in _KEPT if key in given}
        out |= _bounds(given) | _default(given)
        if "const" in given:
            out["enum"] = [given["const"]]
        if out.get("type") == "integer":
            out.setdefault("format", "int64")
        if "enum" in out:
            out.setdefault("type", "integer" if isinstance(out["enum"][0], int) else "string")
        out |= self._inner(given, inside)
        return out or {"x-kubernetes-preserve-unknown-fields": True}

    def _inner(self, given: Schema, inside: tuple[str, ...]) -> Schema:
        if "prefixItems" in given:
            raise ValueError("a tuple of different types has no structural schema")
        if isinstance(given.get("items"), dict):
            return {"items": self.write(given["items"], inside)}
        if isinstance(given.get("additionalProperties"), dict):
            return {"additionalProperties": self.write(given["additionalProperties"], inside)}
        return {}

    def _struct(self, name: str, inside: tuple[str, ...]) -> Schema:
        if name in inside:
            raise ValueError(f"{name} contains itself: it has no structural schema")
        part = self._parts[name]
        if "enum" in part:
            return self.write(part, inside)
        notes = self._notes.get(name, {})
        properties = {
            field: self.write(schema, (*inside, name)) | notes.get(field, {})
            for field, schema in part["properties"].items()
        }
        required = {"required": part["required"]} if part.get("required") else {}
        return {"type": "object", **_description(part), **required, "properties": properties, **notes.get("", {})}

    def _union(self, options: Sequence[Schema], inside: tuple[str, ...]) -> Schema:
        present = [option for option in options if option != {"type": "null"}]
        nullable = {"nullable": True} if len(present) < len(options) else {}
        if sorted(present, key=str) == sorted(_INT_OR_STRING, key=str):
            return {"x-kubernetes-int-or-string": True, **nullable}
        if len(present) != 1:
            raise ValueError(f"a union of {len(present)} types has no structural schema: {present}")
        return {**self.write(present[0], inside), **nullable}


def _description(part: Schema) -> Schema:
    """A docstring without its markup, as ``kubectl explain`` shows it."""
    text = " ".join(part.get("description", "").replace("``", "").split())
    return {"description": text} if text else {}


def _bounds(given: Schema) -> Schema:
    """Exclusive bounds are flags beside the bound in OpenAPI v3.0."""
    out: Schema = {}
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flag in given:
            out |= {bound: given[flag], flag: True}
    return out


def _default(given: Schema) -> Schema:
    """Defaults that say something; an empty one would only make every object longer."""
    default = given.get("default")
    return {"default": default} if default or isinstance(default, bool | int | float) else {}
