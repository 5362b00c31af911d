"""Can a library be preloaded into this program? Read from the first bytes of the file, before it is started.

A static program has no dynamic loader that would honour ``LD_PRELOAD``; one for another libc or for another
machine cannot load a library built for ours. A script is judged by its interpreter. Where the file says nothing
that we understand, nothing is claimed.

Source: elf(5); e_ident, e_machine, program headers of type PT_INTERP.
"""

import os
import struct
from pathlib import Path
from typing import Final

_HEAD: Final = 1 << 16
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_CLASS_32: Final = 1
_PT_INTERP: Final = 3
_INTERPRETERS: Final = 4
"""How many interpreters of interpreters are followed, as the kernel does."""


def preload_obstacle(program: Path) -> str:
    """Why ``libtessera.so`` cannot be loaded into ``program``, in words; empty where nothing speaks against it."""
    for _ in range(_INTERPRETERS):
        head = _head(program)
        if not head.startswith(b"#!"):
            return _elf_obstacle(head)
        words = head[2:].split(b"\n", 1)[0].split()
        if not words:
            return ""
        program = Path(words[0].decode(errors="replace"))
    return ""


def _head(program: Path) -> bytes:
    try:
        with program.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def _elf_obstacle(head: bytes) -> str:
    if len(head) < 64 or not head.startswith(b"\x7fELF"):
        return ""
    if head[4] == _CLASS_32:
        return "it is a 32-bit program"
    machine = struct.unpack_from("<H", head, 18)[0]
    if machine != _MACHINES.get(os.uname().machine, machine):
        return "it is built for another kind of processor"
    loader = _loader(head)
    if loader is None:
        return "it is a static program"
    return "it uses another libc (musl)" if "ld-musl" in loader else ""


def _loader(head: bytes) -> str | None:
    """The path of the dynamic loader that the program names; ``None`` for a static one."""
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    for at in range(table, table + size * count, size):
        if at + 56 > len(head):
            return ""
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, at)
        if kind == _PT_INTERP:
            return head[offset : offset + length].rstrip(b"\0").decode(errors="replace")
    return None
