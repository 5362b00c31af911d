"""HTTP/1.1 answers from bytes that come in any pieces: the head, and bodies of a known length or in chunks.

No I/O. An answer that says nothing of its length is refused: nobody could tell whether all of it came.

Source: RFC 9112 (HTTP/1.1), sections 4, 6.3 and 7.1.
"""

import re
from dataclasses import dataclass
from typing import Final

LONGEST_HEAD: Final = 64 * 1024
LONGEST_LINE: Final = 8 * 1024
"""Bytes of a chunk's size line with its extensions, and of one trailer."""

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?")
_HEADER: Final = re.compile(rb"([!#-'*+\-.0-9A-Z^_`a-z|~]+):[ \t]*(.*?)[ \t]*")
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?")
_BODILESS: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """What matters of an answer's head. ``length`` is ``None`` for a body in chunks."""

    status: int
    length: int | None
    keeps: bool
    """Whether the connection lives on after the body."""
    retry_after: str = ""


class Sized:
    """A body of so many bytes. ``rest`` is what came after it."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.rest = b""

    @property
    def ended(self) -> bool:
        """Whether all of it came."""
        return not self._left

    def feed(self, data: bytes) -> list[bytes]:
        """The parts of the body in what arrived."""
        taken = data[: self._left]
        self._left -= len(taken)
        self.rest = data[len(taken) :]
        return [taken] if taken else []


class Chunked:
    """A body in chunks; trailers are read past. ``rest`` is what came after it."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._expects = "size"
        self.ended = False
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The parts of the body in what arrived. Raises ``ValueError`` where the framing is wrong."""
        data, self._held = self._held + data, b""
        found: list[bytes] = []
        at = 0
        while not self.ended:
            if self._left:
                taken = data[at : at + self._left]
                if not taken:
                    return found
                found.append(taken)
                at += len(taken)
                self._left -= len(taken)
                continue
            end = data.find(b"\r\n", at)
            if (end if end >= 0 else len(data)) - at > LONGEST_LINE:
                raise ValueError("a chunk of the answer has no size")
            if end < 0:
                self._held = data[at:]
                return found
            self._take_line(data[at:end])
            at = end + 2
        self.rest = data[at:]
        return found

    def _take_line(self, line: bytes) -> None:
        """A line between chunks: the end of one, the size of the next, or a trailer."""
        if self._expects == "size":
            size = _SIZE.fullmatch(line)
            if size is None:
                raise ValueError("a chunk of the answer has no size")
            self._left = int(size[1], 16)
            self._expects = "end" if self._left else "trailer"
        elif self._expects == "trailer":
            self.ended = not line
        elif line:
            raise ValueError("a chunk of the answer is longer than it said")
        else:
            self._expects = "size"


Body = Sized | Chunked


def take_head(held: bytes) -> tuple[Head, bytes] | None:
    """The head of an answer and what follows it; ``None`` while it has not come whole.

    Heads that only announce another (100 and its like) are passed over. Raises ``ValueError`` for what is no
    answer of HTTP/1.1.
    """
    while (end := held.find(b"\r\n\r\n")) >= 0:
        if end > LONGEST_HEAD:
            break
        head, held = parse_head(held[:end]), held[end + 4 :]
        if head is not None:
            return head, held
    if len(held) > LONGEST_HEAD or not (b"HTTP/1.".startswith(held[:7])):
        raise ValueError("the answer is not HTTP/1.1")
    return None


def parse_head(raw: bytes) -> Head | None:
    """A head without its last line ends; ``None`` where it only announces another. Raises ``ValueError``."""
    first, *lines = raw.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise ValueError("the answer is not HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise ValueError("a header of the answer cannot be read")
        name = header[1].lower()
        if name == b"content-length" and headers.get(name, header[2]) != header[2]:
            raise ValueError("the answer has two lengths")
        headers[name] = header[2]
    code = int(status[2])
    if code < 200:
        return None
    options = headers.get(b"connection", b"").lower()
    keeps = b"keep-alive" in options if status[1] == b"0" else b"close" not in options
    return Head(code, _length(code, headers), keeps, headers.get(b"retry-after", b"").decode("latin-1"))


def _length(code: int, headers: dict[bytes, bytes]) -> int | None:
    """Bytes of the body, ``None`` where it comes in chunks. Raises ``ValueError`` where nothing says so."""
    if code in _BODILESS:
        return 0
    encoding = headers.get(b"transfer-encoding")
    if encoding is not None:
        if encoding.lower() != b"chunked":
            raise ValueError(f"the answer comes as {encoding.decode('latin-1')}, which nobody asked for")
        return None
    text = headers.get(b"content-length", b"")
    if not text.isdigit() or len(text) > 12:
        raise ValueError("the answer says nothing of its length")
    return int(text)


def body_of(head: Head) -> Body:
    """What reads the body behind a head."""
    return Chunked() if head.length is None else Sized(head.length)
