"""Structural schemas: what msgspec says, in the words that a CustomResourceDefinition knows."""

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tessera.wire.kube.schema import structural


class Colour(enum.Enum):
    """A closed set."""

    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, rename="camel"):
    """What is ``inside``."""

    some_number: Annotated[int, msgspec.Meta(ge=1, lt=10)]
    ratio: Annotated[float, msgspec.Meta(gt=0)] = 0.5


class Outer(msgspec.Struct):
    """Everything at once."""

    inner: Inner
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_name: dict[str, int] = {}
    colour: Colour = Colour.RED
    word: Literal["only"] = "only"
    port: int | str = 80
    anything: Any = None
    flag: bool = False
    name: Annotated[str, msgspec.Meta(pattern="^[a-z]+$", max_length=9)] = ""


class Tree(msgspec.Struct):
    """A recursive one."""

    children: list["Tree"] = []


class Either(msgspec.Struct):
    """A union of objects."""

    what: dict[str, int] | list[int] = {}


INNER = {
    "type": "object",
    "description": "What is inside.",
    "required": ["someNumber"],
    "properties": {
        "someNumber": {
            "type": "integer",
            "format": "int64",
            "minimum": 1,
            "maximum": 10,
            "exclusiveMaximum": True,
        },
        "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "default": 0.5},
    },
}


def test_every_construct_has_its_structural_form() -> None:
    assert structural(Outer) == {
        "type": "object",
        "description": "Everything at once.",
        "required": ["inner"],
        "properties": {
            "inner": INNER,
            "maybe": {**INNER, "nullable": True},
            "many": {"type": "array", "items": INNER},
            "by_name": {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}},
            "colour": {"type": "string", "enum": ["blue", "red"], "default": "red"},
            "word": {"type": "string", "enum": ["only"], "default": "only"},
            "port": {"x-kubernetes-int-or-string": True, "default": 80},
            "anything": {"x-kubernetes-preserve-unknown-fields": True},
            "flag": {"type": "boolean", "default": False},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
        },
    }


def test_what_has_no_structural_form_is_refused() -> None:
    with pytest.raises(ValueError, match="Tree contains itself"):
        structural(Tree)
    with pytest.raises(ValueError, match="union of 2 types"):
        structural(Either)
    with pytest.raises(ValueError, match="tuple of different types"):
        structural(tuple[int, str])


def test_notes_add_to_a_field_and_to_the_struct_itself() -> None:
    rules = {"x-kubernetes-validations": [{"rule": "true"}]}
    schema = structural(Inner, {"Inner": {"ratio": {"description": "A ratio.", "minimum": 2}, "": rules}})
    assert schema["properties"]["ratio"] == {
        "type": "number",
        "minimum": 2,
        "exclusiveMinimum": True,
        "default": 0.5,
        "description": "A ratio.",
    }
    assert schema["x-kubernetes-validations"] == [{"rule": "true"}]


def test_a_note_about_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="Inner: ration"):
        structural(Inner, {"Inner": {"ration": {}}})
    with pytest.raises(ValueError, match="Other"):
        structural(Inner, {"Other": {"": {}}})
