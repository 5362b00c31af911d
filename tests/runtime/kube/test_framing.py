"""Answers are read whole however they are cut, and what is no answer of HTTP/1.1 is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.runtime.kube.framing import LONGEST_HEAD, LONGEST_LINE, Chunked, Sized, body_of, take_head

CHUNKS = b"3\r\nabc\r\nA;note=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"


def fed(body, data: bytes, cuts: list[int]) -> bytes:
    """What a body gives of ``data`` that comes in pieces."""
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return b"".join(part for at, to in itertools.pairwise(bounds) if to > at for part in body.feed(data[at:to]))


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_a_chunked_body_is_the_same_however_it_is_cut(cuts):
    body = Chunked()
    assert fed(body, CHUNKS, cuts) == b"abc0123456789"
    assert (body.ended, body.rest) == (True, b"")


@given(st.lists(st.integers(0, 1000), max_size=6))
def test_a_body_of_a_length_is_the_same_however_it_is_cut(cuts):
    body = Sized(5)
    assert fed(body, b"abcde", cuts) == b"abcde"
    assert (body.ended, body.rest) == (True, b"")


@pytest.mark.parametrize(("body", "data"), [(Chunked(), b"1\r\na\r\n0\r\n\r\nmore"), (Sized(1), b"amore")])
def test_what_comes_after_a_body_is_kept_apart(body, data):
    assert body.feed(data) == [b"a"]
    assert body.rest == b"more"


def test_a_body_that_has_not_come_whole_has_not_ended():
    for body, data in ((Sized(3), b"ab"), (Chunked(), b"3\r\nab"), (Chunked(), b"1\r\na\r\n0\r\n")):
        body.feed(data)
        assert not body.ended


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b"123456789\r\n",
        b"1\r\nabc\r\n",
        b"1" * (LONGEST_LINE + 1),
    ],
)
def test_wrong_chunks_are_refused(data):
    with pytest.raises(ValueError, match="a chunk of the answer"):
        Chunked().feed(data)


@pytest.mark.parametrize(
    ("head", "status", "length", "keeps", "retry"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, 5, True, ""),
        (b"HTTP/1.1 200\r\ncontent-length:5\r\nCONNECTION: Close\r\n\r\n", 200, 5, False, ""),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 200, 0, False, ""),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", 200, 0, True, ""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 200, None, True, ""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, 0, True, ""),
        (b"HTTP/1.1 429 X\r\nRetry-After:  3 \r\nContent-Length: 0\r\n\r\n", 429, 0, True, "3"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", 200, 1, True, ""),
    ],
)
def test_a_head_says_how_the_body_comes(head, status, length, keeps, retry):
    taken = take_head(head + b"rest")
    assert taken is not None
    found, rest = taken
    assert (found.status, found.length, found.keeps, found.retry_after) == (status, length, keeps, retry)
    assert rest == b"rest"
    assert isinstance(body_of(found), Chunked if length is None else Sized)


def test_a_head_that_has_not_come_whole_is_waited_for():
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    assert all(take_head(whole[:cut]) is None for cut in range(len(whole)))


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 " + b"x" * LONGEST_HEAD,
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * LONGEST_HEAD + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(ValueError, match="answer"):
        take_head(data)
