import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.wire.documents import read_documents


def raws(text):
    documents, problems = read_documents("f.yaml", text)
    assert not problems, problems
    return [document.raw for document in documents]


def problem(text):
    (one,) = read_documents("f.yaml", text)[1]
    return one


def test_yaml_holds_many_documents_and_empty_ones_are_none():
    assert raws("---\na: 1\n---\n\n---\n- b\n") == [{"a": 1}, ["b"]]


def test_every_document_knows_its_file_and_line():
    documents, _ = read_documents("f.yaml", "a: 1\n---\nb: 2\n")
    assert [(d.source, d.line) for d in documents] == [("f.yaml", 1), ("f.yaml", 3)]


def test_json_is_read_as_such():
    assert raws(' {"a": [1, 2.5, null, true, "x"]} ') == [{"a": [1, 2.5, None, True, "x"]}]


def test_yaml_that_starts_like_json_is_read_as_yaml():
    assert raws("{a: 1}") == [{"a": 1}]


def test_a_byte_order_mark_is_no_text():
    assert raws("\ufeffa: 1") == [{"a": 1}]


def test_scalars_mean_what_they_mean_in_kubernetes():
    text = "a: 2026-01-01\nb: 1e3\nc: 010\nd: .inf\ne: 'on'\nf: ~\ng: =\n"
    assert raws(text) == [
        {"a": "2026-01-01", "b": "1e3", "c": 8, "d": float("inf"), "e": "on", "f": None, "g": "="}
    ]


def test_a_merge_gives_way_to_the_mappings_own_keys_and_to_earlier_merges():
    text = "x: &x {a: 1, b: 2, d: 1}\ny: &y {b: 7, c: 8, d: 2}\nz:\n  b: 3\n  <<: [*x, *y]\n"
    assert raws(text)[0]["z"] == {"b": 3, "a": 1, "c": 8, "d": 1}


def test_aliases_are_shared_and_not_copied():
    first = raws("a: &a [1]\nb: *a\n")[0]
    assert first["a"] is first["b"]


def test_merges_of_merges_do_not_unfold():
    rows = ["l0: &l0 {k: v}"] + [f"l{n}: &l{n} {{<<: [*l{n - 1}, *l{n - 1}]}}" for n in range(1, 60)]
    assert raws("\n".join(rows))[0]["l59"] == {"k": "v"}


def test_broken_yaml_names_file_line_and_column_and_keeps_what_came_before():
    documents, (found,) = read_documents("f.yaml", "a: 1\n---\nb: [1\nc: 2\n")
    assert [d.raw for d in documents] == [{"a": 1}]
    assert found.source == "f.yaml"
    assert found.field == "line 4, column 2"
    assert "broken YAML" in found.message


@pytest.mark.parametrize(
    "text", ["a:\n\tb: 1", '{"a": 1', "[" * 3000, "a: \x01", "a: \udc80", "a: b: c", "? [a]\n: 1"]
)
def test_text_that_is_no_yaml_is_one_problem(text):
    assert problem(text).message


@pytest.mark.parametrize("value", ["!!python/object/apply:os.system [x]", "!!python/none 1", "!x {a: 1}"])
def test_a_tag_that_would_build_an_object_is_a_problem(value):
    assert "unknown tag" in problem(f"a: {value}").message


def test_nesting_without_end_is_a_problem():
    assert "nest" in problem("- " * 990 + "x").message


def test_a_number_of_too_many_digits_is_a_problem():
    assert "digits" in problem("a: " + "9" * 5000).message


def test_a_key_that_stands_twice_in_yaml_is_a_problem_and_its_document_is_not_delivered():
    documents, (found,) = read_documents("f.yaml", "a: 1\n---\nb: 1\nc: {d: 1, d: 2}\n---\ne: 1\n")
    assert [d.raw for d in documents] == [{"a": 1}, {"e": 1}]
    assert (found.field, found.value) == ("line 4, column 11", "d")


def test_a_key_that_stands_twice_in_json_is_a_problem():
    assert problem('{"a": {"b": ":", "c": 1, "b": "\\":"}}').value == "b"


def test_equal_keys_of_different_mappings_are_no_problem():
    assert raws('{"a": {"b": 1}, "c": {"b": "a\\": :"}}') == [{"a": {"b": 1}, "c": {"b": 'a": :'}}]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), _json, max_size=4))
def test_json_without_repeated_keys_comes_back_whole(value):
    assert raws(json.dumps(value)) == [value]


@given(st.text(alphabet="ab:-[]{}&*!<>|'\"\n\t 01#%@`?,.", max_size=40))
def test_no_text_raises(text):
    read_documents("f.yaml", text)
