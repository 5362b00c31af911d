"""Logs of a process: one JSON object a line on standard error, or one readable line where that is a terminal.

::

    log = logger("scheduler")
    log.info("placed", pod="team/a", node="n1", devices=["GPU-1"])

    {"time":"2026-01-02T03:04:05.678Z","level":"info","logger":"scheduler","message":"placed","pod":"team/a",...}

The message is a constant word or two, what varies is a field: one line a decision. Fields never replace the four
that every line has. Secrets do not pass: fields that are named like one, data of Secret objects, bearer tokens and
private keys inside any text. It is the standard library underneath, so lines of other packages look the same.
"""

import logging
import re
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, TextIO

import msgspec

ROOT: Final = "tessera"
LEVELS: Final = ("debug", "info", "warning", "error")
REDACTED: Final = "[redacted]"
_LEVEL_NAMES: Final = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))
_OWN: Final = frozenset(("time", "level", "logger", "message"))
_SECRET_NAME: Final = re.compile(
    r"(^|[-_. ])(authorization|cookie|pass(word|wd)?|token|credentials?"
    r"|(private|tls|client)[-_. ]key([-_. ]data)?)$",
    re.I,
)
_SECRET_TEXT: Final = re.compile(
    r"(?P<word>[Bb]earer\s+)[\w.~+/=-]{8,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]+\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.S,
)
_SECRET_HINTS: Final = ("earer", "eyJ", "PRIVATE KEY")


class Log:
    """A named log; fields are keyword arguments."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, message: str, /, **fields: object) -> None:
        """A line for whoever looks for a fault."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """A line about a decision or a change."""
        if self._logger.isEnabledFor(logging.INFO):
            self._emit(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """A line about what is odd and was got over."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._emit(logging.WARNING, message, fields)

    def error(self, message: str, /, *, trace: BaseException | None = None, **fields: object) -> None:
        """A line about what failed; with ``trace`` also where."""
        self._logger.error(message, extra={"fields": fields}, exc_info=trace)

    def _emit(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        direct = _Direct.current
        if direct is None or not direct.write(level, self._name, message, fields):
            self._logger.log(level, message, extra={"fields": fields})


def logger(name: str) -> Log:
    """The log of a part of a process, such as ``scheduler.bind``."""
    return Log(name)


def configure(level: str = "info", *, human: bool | None = None, stream: TextIO | None = None) -> None:
    """Send everything that this process logs to ``stream`` (default: standard error).

    ``level`` is one of :data:`LEVELS`; other packages are heard from ``warning`` on. ``human`` lines are the
    default where the stream is a terminal.
    """
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    plain = out.isatty() if human is None else human
    json_lines = _JsonLines()
    handler.setFormatter(_HumanLines() if plain else json_lines)
    _Direct.current = None if plain else _Direct(out, handler, json_lines)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())
    # What no line shows need not be found out. Source: the Logging HOWTO of Python, section "Optimization".
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.captureWarnings(capture=True)


class _JsonLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._second, self._prefix = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        fields = _fields(getattr(record, "fields", {}))
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        name, level = record.name.removeprefix(f"{ROOT}."), record.levelname.lower()
        return self.compose(record.created, level, name, record.getMessage(), fields)

    def compose(self, created: float, level: str, name: str, message: str, fields: Mapping[str, object]) -> str:
        """One line of JSON, of fields that may be shown."""
        own = {"time": self._time(created), "level": level, "logger": name, "message": message}
        return scrub(self._encode({**own, **fields}).decode())

    def _time(self, created: float) -> str:
        second = int(created)
        if second != self._second:
            self._second, self._prefix = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._prefix}.{int((created - second) * 1000):03d}Z"


class _Direct:
    """Our own lines past the standard library's records and handlers, at half their price.

    Only while the handler that :func:`configure` installed is the only one: what else listens hears everything.
    """

    current: ClassVar["_Direct | None"] = None

    def __init__(self, stream: TextIO, handler: logging.Handler, lines: _JsonLines) -> None:
        self._stream, self._lines = stream, lines
        self._only, self._root = [handler], logging.getLogger()

    def write(self, level: int, name: str, message: str, fields: Mapping[str, object]) -> bool:
        """Write a line; false where it has to take the long road."""
        if self._root.handlers != self._only:
            return False
        line = self._lines.compose(time.time(), _LEVEL_NAMES[level], name, message, _fields(fields))
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            return False  # the standard library says what it says when a log cannot be written
        return True


class _HumanLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Time of day, level, log, message and fields; control characters made visible."""
        fields = "".join(
            f"  {name}={_shown(value)}" for name, value in _fields(getattr(record, "fields", {})).items()
        )
        name = record.name.removeprefix(f"{ROOT}.")
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{when}.{int(record.msecs):03d} {record.levelname:<7} {name}: {record.getMessage()}{fields}"
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return scrub(text.translate(_CONTROLS) + trace)


_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return repr(text) if not text or " " in text else text


def _fields(given: Mapping[str, object]) -> dict[str, object]:
    """The fields of a line without what is secret, under names that do not hide a line's own."""
    out: dict[str, object] = {}
    for name, value in given.items():
        public = value if type(value) in _PLAIN and not _names_secret(name) else _public(name, value)
        out[f"{name}_" if name in _OWN else name] = public
    return out


@lru_cache(maxsize=512)
def _names_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _public(name: str, value: Any) -> Any:
    if _names_secret(name):
        return REDACTED
    if isinstance(value, dict):
        hidden = ("data", "stringData") if value.get("kind") == "Secret" else ()
        return {str(k): REDACTED if k in hidden else _public(str(k), v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_public("", item) for item in value]
    return value


def scrub(text: str) -> str:
    """``text`` without bearer tokens, JSON web tokens and private keys."""
    if not any(hint in text for hint in _SECRET_HINTS):
        return text
    return _SECRET_TEXT.sub(lambda found: (found["word"] or "") + REDACTED, text)
