"""Lines come out whole, however the bytes come in."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.runtime.kube import stream
from tessera.runtime.kube.port import ConnectionLostError
from tessera.runtime.kube.stream import batches


class Chunked:
    """Bytes in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def lines_of(pieces: list[bytes]) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [line async for batch in batches(Chunked(pieces)) for line in batch]

    return asyncio.run(collect())


@given(
    lines=st.lists(st.binary(min_size=1, max_size=6).map(lambda b: b.replace(b"\n", b"x")), max_size=6),
    cuts=st.lists(st.integers(0, 50), max_size=8),
)
def test_lines_do_not_depend_on_how_the_bytes_are_cut(lines, cuts):
    text = b"".join(line + b"\n" for line in lines)
    marks = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(marks)]
    assert lines_of(pieces) == lines


def test_empty_lines_say_nothing():
    assert lines_of([b"\n\na\n\n", b"\nb\n"]) == [b"a", b"b"]


def test_a_line_of_two_mebibytes_in_small_pieces_is_one_line():
    line = b"x" * (2 * 1024 * 1024)
    pieces = [line[i : i + 65_536] for i in range(0, len(line), 65_536)]
    assert lines_of([*pieces, b"\n"]) == [line]


def test_an_end_in_the_middle_of_a_line_is_a_loss():
    with pytest.raises(ConnectionLostError, match="middle of an event"):
        lines_of([b"a\nb"])


def test_a_line_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(stream, "LONGEST", 100)
    with pytest.raises(ConnectionLostError, match="over 100 bytes"):
        lines_of([b"x" * 60, b"x" * 60])
