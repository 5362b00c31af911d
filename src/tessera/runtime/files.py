"""Reading what a command line names: manifests from files, folders and standard input; a fleet from anywhere.

What cannot be read becomes a Problem beside what could, so that a call can show all of its problems at once.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.core.device import Node
from tessera.core.errors import Problem, UnavailableError
from tessera.core.units import BYTES_PER_MIB
from tessera.wire import openb
from tessera.wire.fleetfile import FleetInput, is_shorthand, read_fleet, read_shorthand

STDIN: Final = "-"
THIS_MACHINE: Final = "this-machine"
FLEET_FLAG: Final = "--fleet"
MANIFEST_SUFFIXES: Final = (".json", ".yaml", ".yml")

_FLEET_REMEDY: Final = (
    f"name a fleet file, an openb node list, {THIS_MACHINE}, or a fleet in short such as 4x8xA100-SXM4-80GB"
)


@dataclass(frozen=True, slots=True)
class Texts:
    """``(source, text)`` of everything that could be read, and a problem for each thing that could not."""

    texts: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]


def read_texts(paths: Sequence[str]) -> Texts:
    """The texts of ``paths`` in order: files, folders (their manifests, sorted, at any depth) and ``-``.

    A file that is named twice is read once. In folders, what starts with a dot is left alone.
    """
    texts: list[tuple[str, str]] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for path in _files(paths, problems):
        identity = path if path == STDIN else str(Path(path).resolve())
        if identity in seen:
            continue
        seen.add(identity)
        text = _text(path)
        if isinstance(text, Problem):
            problems.append(text)
        else:
            texts.append(("stdin" if path == STDIN else path, text))
    return Texts(tuple(texts), tuple(problems))


def load_fleet(fleet: str) -> FleetInput:
    """The nodes that ``fleet`` names: a file, ``this-machine`` or the shorthand; a file of that name goes first.

    Raises:
        UnavailableError: ``this-machine`` has no driver or no device to be found.
    """
    if Path(fleet).is_file() or fleet == STDIN:
        text = _text(fleet)
        if isinstance(text, Problem):
            return FleetInput(problems=(text,))
        reader = openb.read_nodes if fleet.endswith(".csv") or openb.looks_like_nodes(text) else read_fleet
        return reader("stdin" if fleet == STDIN else fleet, text)
    if fleet == THIS_MACHINE:
        return _this_machine()
    if is_shorthand(fleet):
        return read_shorthand(FLEET_FLAG, fleet)
    message = "is a folder" if Path(fleet).is_dir() else "is neither a file nor a fleet in short"
    return FleetInput(problems=(Problem(FLEET_FLAG, "", "", fleet, message, _FLEET_REMEDY),))


def _this_machine() -> FleetInput:
    """This machine as a node with nothing on it: its devices, processors and memory."""
    # Imported here because it is the one way to name a fleet that needs a driver's library.
    from tessera.runtime.nvml import discover  # noqa: PLC0415

    try:
        devices = discover()
    except UnavailableError as error:
        raise UnavailableError(error.what, "name a fleet file, or one in short such as 8xT4") from error
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // BYTES_PER_MIB
    cpu_milli = len(os.sched_getaffinity(0)) * 1000
    return FleetInput((Node(os.uname().nodename, devices, cpu_milli=cpu_milli, memory_mib=memory_mib),))


def _files(paths: Sequence[str], problems: list[Problem]) -> Iterator[str]:
    for path in paths:
        if path == STDIN or not Path(path).is_dir():
            yield path
            continue
        found = sorted(_manifests(path))
        if not found:
            suffixes = ", ".join(f"*{suffix}" for suffix in MANIFEST_SUFFIXES)
            problems.append(Problem(path, "", "", "", f"has no {suffixes} in it", "name another folder"))
        yield from found


def _manifests(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(MANIFEST_SUFFIXES) and not name.startswith("."):
                yield str(Path(root) / name)


def _text(path: str) -> str | Problem:
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Problem(path, "", "", "", f"is not UTF-8 (byte {error.start:,})", "save it as UTF-8")
    except FileNotFoundError:
        return Problem(path, "", "", "", "is not there", "check the path")
    except OSError as error:
        return Problem(path, "", "", "", f"cannot be read: {error.strerror}", "check the path and its permissions")
