"""Patches against the examples of their RFCs."""

import pytest

from tessera.runtime.kube.patch import PatchFailed, apply_patch, json_patch, merge_patch


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_as_the_rfc_has_it(target, patch, result):
    assert merge_patch(target, patch) == result


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [  # RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "q"}], {"foo": "bar", "baz": "q"}),
        ({"foo": ["a", "b"]}, [{"op": "add", "path": "/foo/1", "value": "q"}], {"foo": ["a", "q", "b"]}),
        ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": "b"}], {"foo": ["a", "b"]}),
        ({"baz": "q", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["a", "q", "b"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "b"]}),
        ({"baz": "q"}, [{"op": "replace", "path": "/baz", "value": "b"}], {"baz": "b"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        ({"foo": ["a", "b", "c"]}, [{"op": "move", "from": "/foo/0", "path": "/foo/2"}], {"foo": ["b", "c", "a"]}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": 2}], 2),
    ],
)
def test_a_json_patch_is_as_the_rfc_has_it(target, operations, result):
    assert json_patch(target, operations) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/l/2", "value": 1},
        {"op": "add", "path": "/l/-1", "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "twist", "path": "/a"},
        {"op": "remove", "path": ""},
    ],
)
def test_an_operation_that_cannot_be_says_which(operation):
    target = {"a": 1, "l": [0]}
    with pytest.raises(PatchFailed, match="operation 1"):
        json_patch(target, [{"op": "test", "path": "/a", "value": 1}, operation])
    assert target == {"a": 1, "l": [0]}


def test_applying_again_removes_what_is_left_out_and_leaves_what_others_wrote():
    target = {"m": {"mine": 1, "dropped": 1, "theirs": 1}, "l": [1]}
    applied = {"m": {"mine": 2}, "l": [2]}
    assert apply_patch(target, applied, {"m": {"mine": 1, "dropped": 1}}) == {
        "m": {"mine": 2, "theirs": 1},
        "l": [2],
    }
