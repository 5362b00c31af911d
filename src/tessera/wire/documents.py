"""Text to raw objects: YAML (any number of documents) and JSON, each object with the file it stood in.

Two things that ordinary loaders swallow are problems here: a key that stands twice in one mapping (they keep the
last in silence) and text that breaks off. Timestamps stay text, as they do in Kubernetes' own YAML. Aliases are
shared, never copied, so a small file cannot unfold into a large one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import yaml

from tessera.core.errors import Problem
from tessera.wire.fields import shown

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = _TAG + "merge"
_TEXT: Final = frozenset({_TAG + "str", _TAG + "timestamp", _TAG + "value", _TAG + "binary"})
_SCALARS: Final = frozenset(_TAG + name for name in ("null", "bool", "int", "float"))
_JSON_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SYNTAX_REMEDY: Final = "mend the syntax; nothing after this place was read"

_Base = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file, as its loader delivered it; ``line`` is where it starts (0 where unknown)."""

    source: str
    raw: object
    line: int = 0


def read_documents(source: str, text: str) -> tuple[tuple[Document, ...], tuple[Problem, ...]]:
    """Return every non-empty document of ``text``, and what is wrong with the rest of it.

    Documents before a syntax error are delivered, one in which a key stands twice is not. JSON is recognised by
    its first character; YAML that happens to start like JSON is read as YAML.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        found = _read_json(source, text)
        if found is not None:
            return found
    return _read_yaml(source, text)


def _problem(source: str, where: str, value: str, message: str, remedy: str = _SYNTAX_REMEDY) -> Problem:
    return Problem(source, "", where, value, message, remedy)


# JSON


def _read_json(source: str, text: str) -> tuple[tuple[Document, ...], tuple[Problem, ...]] | None:
    """Documents of a JSON text; ``None`` where it is not JSON, so that YAML may try and report."""
    try:
        encoded = text.encode()
        raw = msgspec.json.decode(encoded)
        clean = _count_keys(encoded) == _count_keys(msgspec.json.encode(raw))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    problems = () if clean else tuple(_duplicates_in_json(source, text))
    return ((Document(source, raw, 1),) if not problems else ()), problems


def _count_keys(encoded: bytes) -> int:
    """Count the keys in a JSON text: outside of strings a colon only ever follows a key."""
    return _JSON_STRING.sub(b"", encoded).count(b":")


def _duplicates_in_json(source: str, text: str) -> Iterator[Problem]:
    twice: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        built = dict(pairs)
        if len(built) != len(pairs):
            seen: set[str] = set()
            twice.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return built

    json.loads(text, object_pairs_hook=note)
    for key in twice:
        yield _problem(source, "", key, "a key stands twice in one mapping", "remove one of the two")


# YAML


class _Builder(_Base):  # type: ignore[misc, valid-type]
    """Builds plain objects from the nodes that libyaml composed: no tags, no generators, no copies of aliases."""

    def __init__(self, source: str, text: str) -> None:
        super().__init__(text)
        self.source = source
        self.problems: list[Problem] = []
        self._built: dict[int, object] = {}
        self._tags: dict[tuple[object, ...], str] = {}

    def resolve(self, kind: type[yaml.Node], value: str, implicit: object) -> str:
        """The tag of a node without one. The same texts come again and again, and matching them is slow."""
        key = (kind, value, implicit)
        tag = self._tags.get(key)
        if tag is None:
            tag = self._tags[key] = super().resolve(kind, value, implicit)
        return tag

    def descend_resolver(self, current_node: object, current_index: object) -> None:
        """No tag depends on a node's place in the document."""

    def ascend_resolver(self) -> None:
        """No tag depends on a node's place in the document."""

    def documents(self) -> Iterator[Document]:
        """Yield the sound, non-empty documents; a syntax error ends them and becomes a problem."""
        try:
            while self.check_node():
                node = self.get_node()
                self._built.clear()
                noted = len(self.problems)
                raw = self._build(node)
                if raw is not None and len(self.problems) == noted:
                    yield Document(self.source, raw, node.start_mark.line + 1)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            self.problems.append(
                _problem(self.source, where, "", f"broken YAML: {error.problem or error.context}")
            )
        except (yaml.YAMLError, UnicodeError) as error:
            self.problems.append(_problem(self.source, "", "", f"broken YAML: {str(error).splitlines()[0]}"))
        except ValueError:
            self.problems.append(
                _problem(self.source, "", "", "a number has too many digits", "shorten or quote it")
            )
        except RecursionError:
            self.problems.append(_problem(self.source, "", "", "nested too deeply", "flatten the document"))

    def _build(self, node: yaml.Node) -> object:
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.tag in _TEXT else self._scalar(node)
        key = id(node)
        if key in self._built:
            return self._built[key]
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            items: list[object] = []
            self._built[key] = items
            items.extend(self._build(child) for child in node.value)
            return items
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            mapping: dict[object, object] = {}
            self._built[key] = mapping
            self._fill(mapping, node)
            return mapping
        raise yaml.constructor.ConstructorError(None, None, f"unknown tag {node.tag}", node.start_mark)

    def _fill(self, mapping: dict[object, object], node: yaml.MappingNode) -> None:
        merged: dict[object, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                self._merge(merged, self._build(value_node))
                continue
            key = self._key(key_node)
            if key in mapping:
                self._note_duplicate(key_node)
            mapping[key] = self._build(value_node)
        for key, value in merged.items():
            mapping.setdefault(key, value)

    @staticmethod
    def _merge(merged: dict[object, object], value: object) -> None:
        """Add what ``<<`` names: one mapping or a list of them, of which the first wins."""
        for source in value if isinstance(value, list) else [value]:
            if isinstance(source, dict):
                for key, inherited in source.items():
                    merged.setdefault(key, inherited)

    def _key(self, node: yaml.Node) -> object:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a scalar", node.start_mark)
        return node.value if node.tag in _TEXT else self._scalar(node)

    def _scalar(self, node: yaml.ScalarNode) -> object:
        """Build null, bool, int or float; a tag beyond those is an error, not an object."""
        build = self.yaml_constructors.get(node.tag)
        if node.tag not in _SCALARS or build is None:
            raise yaml.constructor.ConstructorError(None, None, f"unknown tag {node.tag}", node.start_mark)
        return build(self, node)

    def _note_duplicate(self, key: yaml.ScalarNode) -> None:
        mark = key.start_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}"
        message = "a key stands twice in one mapping"
        self.problems.append(_problem(self.source, where, shown(key.value), message, "remove one of the two"))


def _read_yaml(source: str, text: str) -> tuple[tuple[Document, ...], tuple[Problem, ...]]:
    try:
        builder = _Builder(source, text)
    except (yaml.YAMLError, UnicodeError) as error:
        return (), (_problem(source, "", "", f"broken YAML: {str(error).splitlines()[0]}"),)
    try:
        documents: Sequence[Document] = tuple(builder.documents())
    finally:
        builder.dispose()
    return tuple(documents), tuple(builder.problems)
