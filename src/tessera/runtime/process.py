"""What every process shows of itself: processor time, memory, files, Python and its collector.

The names are those that Prometheus' client libraries have for it, so that dashboards find them.

Source: proc_pid_stat(5), fields 14, 15 (user and system ticks), 22 (start), 23 (bytes), 24 (resident pages).
"""

import gc
import os
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

Rows = list[tuple[tuple[str, ...], float]]
Figure = tuple[str, str, str, tuple[str, ...], Callable[[], Rows]]
"""Name, type, help, label names, and what reads it."""

_SELF: Final = Path("/proc/self")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def _stat() -> list[bytes]:
    """The fields of this process from the third on: the name before them may hold anything."""
    text = (_SELF / "stat").read_bytes()
    return text[text.rfind(b")") + 2 :].split()


def _booted() -> float:
    """When the machine booted, in seconds since 1970."""
    lines = Path("/proc/stat").read_bytes().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(b"btime "))


def _one(value: float) -> Rows:
    return [((), value)]


def _processor_seconds() -> Rows:
    fields = _stat()
    return _one((int(fields[11]) + int(fields[12])) / _TICKS)


def _start() -> Rows:
    return _one(_booted() + int(_stat()[19]) / _TICKS)


def _open_files() -> Rows:
    return _one(float(sum(1 for _ in (_SELF / "fd").iterdir())))


def _most_files() -> Rows:
    return _one(float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def _collector(key: str) -> Callable[[], Rows]:
    return lambda: [((str(n),), float(found[key])) for n, found in enumerate(gc.get_stats())]


def _python() -> Rows:
    version = platform.python_version_tuple()
    return [((platform.python_implementation(), *version, platform.python_version()), 1.0)]


_BY: Final = ("generation",)
_OF_PYTHON: Final = ("implementation", "major", "minor", "patchlevel", "version")

_FIGURES: Final[tuple[Figure, ...]] = (
    ("process_cpu_seconds_total", "counter", "Processor time of user and system.", (), _processor_seconds),
    ("process_open_fds", "gauge", "Open files.", (), _open_files),
    ("process_max_fds", "gauge", "Files that may be open.", (), _most_files),
    ("process_virtual_memory_bytes", "gauge", "Addresses.", (), lambda: _one(float(_stat()[20]))),
    ("process_resident_memory_bytes", "gauge", "Memory.", (), lambda: _one(float(_stat()[21]) * _PAGE)),
    ("process_start_time_seconds", "gauge", "Start of the process since 1970.", (), _start),
    ("python_gc_objects_collected_total", "counter", "Objects collected.", _BY, _collector("collected")),
    ("python_gc_objects_uncollectable_total", "counter", "Objects kept.", _BY, _collector("uncollectable")),
    ("python_gc_collections_total", "counter", "Collections.", _BY, _collector("collections")),
    ("python_info", "gauge", "The Python that runs this.", _OF_PYTHON, _python),
)


def _where_readable(read: Callable[[], Rows]) -> Callable[[], Rows]:
    """The same with nothing where the system does not show it."""

    def reading() -> Rows:
        try:
            return read()
        except OSError:
            return []

    return reading


FIGURES: Final[tuple[Figure, ...]] = tuple((n, t, h, ls, _where_readable(read)) for n, t, h, ls, read in _FIGURES)
"""Every figure; one that the system does not show is absent."""
