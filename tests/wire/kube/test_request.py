"""The request annotation: read back as written, equal requests have equal text, nothing is half understood."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_claim, a_share
from laws.worlds import rules_of_all_kinds
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference, Request
from tessera.core.share import ComputeMilli, ComputeTflops, MemoryFraction, MemoryMiB, ShareSpec
from tessera.wire.kube.request import decode_request, encode_request

memories = st.builds(MemoryMiB, st.integers(0, 10**6)) | st.builds(MemoryFraction, st.integers(0, 1000))
computes = st.builds(ComputeMilli, st.integers(0, 1000)) | st.builds(ComputeTflops, st.integers(0, 10**7))
shares = st.builds(ShareSpec, memories, memories, computes, computes, st.booleans())
names = st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True).map(tuple)
claims = st.builds(Claim, names, st.integers(1, 8), shares, st.sampled_from([None, "NVIDIA"]))
requests = st.builds(
    Request,
    st.lists(claims, min_size=1, max_size=3).map(tuple),
    rules_of_all_kinds,
    st.builds(Preference, st.sampled_from([None, "spread"]), st.sampled_from([None, "binpack"])),
)


@given(requests, st.sampled_from(Dialect))
def test_what_is_written_is_read_back(request, dialect):
    assert decode_request(encode_request(request, dialect)) == (request, dialect)


def test_the_text_of_a_quarter_of_a_device():
    request = Request((a_claim(a_share(20480, 250)),), Constraints(models_allowed=(ModelRule("A100"),)))
    assert json.loads(encode_request(request, Dialect.HAMI)) == {
        "v": 1,
        "dialect": "hami",
        "claims": [
            {"containers": ["main"], "count": 1, "share": {"memory": {"mib": 20480}, "compute": {"milli": 250}}}
        ],
        "constraints": {"modelsAllowed": [{"pattern": "A100"}]},
    }


def test_sets_have_one_order():
    uuids = [f"GPU-{i}" for i in range(20)]
    one, other = (
        Request((a_claim(a_share(1)),), Constraints(uuids_allowed=frozenset(u))) for u in (uuids, uuids[::-1])
    )
    assert encode_request(one, Dialect.NATIVE) == encode_request(other, Dialect.NATIVE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no request"),
        ("[]", "is no request"),
        ('{"v":1}', "is no request"),
        ('{"v":1,"claims":[]}', "without a claim"),
        ('{"v":2,"claims":[]}', "of version 2; version 1 is read"),
        ('{"v":1,"claims":[],"more":1}', "is no request"),
        (
            '{"v":1,"claims":[{"containers":["a"],"count":0,"share":{"memory":{"mib":1},"compute":{"milli":1}}}]}',
            "asks for 0",
        ),
        (
            '{"v":1,"claims":[{"containers":["a"],"count":1,"share":{"memory":{},"compute":{"milli":1}}}]}',
            "amount of memory",
        ),
        (
            '{"v":1,"claims":[{"containers":["a"],"count":1,"share":{"memory":{"mib":1,"milli":1},"compute":{"milli":1}}}]}',
            "amount of memory",
        ),
        (
            '{"v":1,"claims":[{"containers":["a"],"count":1,"share":{"memory":{"mib":-1},"compute":{"milli":1}}}]}',
            "amount of memory",
        ),
        (
            '{"v":1,"claims":[{"containers":["a"],"count":1,"share":{"memory":{"mib":1},"compute":{"mib":1}}}]}',
            "amount of compute",
        ),
        (
            '{"v":1,"dialect":"other","claims":[{"containers":["a"],"count":1,"share":{"memory":{"mib":1},"compute":{"milli":1}}}]}',
            "other",
        ),
    ],
)
def test_what_is_no_request_says_why(text, message):
    with pytest.raises(ValueError, match=message):
        decode_request(text)


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_any_other_text_is_refused_and_nothing_else_is_raised(text):
    with pytest.raises(ValueError, match="is no request"):
        decode_request(text)
