from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.wire.quantity import Malformed, parse_quantity, quantity_text, to_count, to_mib, to_milli
from wire.objects import canonical


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4000", 4000),
        ("4k", 4000),
        ("1000m", 1),
        ("500m", Fraction(1, 2)),
        ("250u", Fraction(1, 4000)),
        ("1n", Fraction(1, 10**9)),
        ("0.5Gi", 512 * 1024**2),
        ("512Mi", 512 * 1024**2),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12e-1", Fraction(6, 5)),
        ("+7", 7),
        ("-0", 0),
        ("3Ti", 3 * 1024**4),
        ("2Pi", 2 * 1024**5),
        ("1Ei", 1024**6),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_quantity_is_its_number(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "Gi", ".", "1 Gi", "1gi", "1K", "1KI", "NaN", "inf", "-inf", "1e", "1e1.5", "0x10",
     "1_000", "٣", "1" * 65, "1e999", "--1"],
)  # fmt: skip
def test_what_is_no_quantity_says_so(text):
    assert isinstance(parse_quantity(text), Malformed)


@pytest.mark.parametrize(
    ("text", "word"), [("-1", "negative"), ("-5Gi", "negative"), ("8Ei", "larger"), ("1e99", "larger")]
)
def test_what_is_out_of_range_says_which_way(text, word):
    found = parse_quantity(text)
    assert isinstance(found, Malformed)
    assert word in found.message


@pytest.mark.parametrize(
    ("raw", "text"), [(4000, "4000"), (" 4k ", "4k"), (0.5, "0.5"), (1e22, "1e+22"), (0, "0"), (-3, "-3")]
)
def test_yaml_numbers_become_the_text_that_stands_for_them(raw, text):
    assert quantity_text(raw) == text


@pytest.mark.parametrize(
    "raw", [True, False, None, float("nan"), float("inf"), -float("inf"), 2**63, [1], {"a": 1}]
)
def test_yaml_values_that_are_no_number_are_malformed(raw):
    assert isinstance(quantity_text(raw), Malformed)


def test_bytes_round_up_to_a_mib():
    assert [to_mib(Fraction(n)) for n in (0, 1, 1024**2, 1024**2 + 1, 10**10)] == [0, 1, 1, 2, 9537]


def test_milli_rounds_up():
    assert [to_milli(Fraction(n)) for n in (Fraction(1, 3), 1, Fraction(3, 2))] == [334, 1000, 1500]


def test_a_count_is_whole():
    assert to_count(Fraction(3)) == 3
    assert isinstance(to_count(Fraction(1, 2)), Malformed)


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_the_api_servers_spelling_means_the_same(number, suffix):
    text = f"{number}{suffix}"
    assert parse_quantity(canonical(text)) == parse_quantity(text)


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_malformed_and_never_raises(text):
    assert isinstance(parse_quantity(text), Fraction | Malformed)
