"""The book of one machine: who holds what and who waits, in SQLite.

A row is a run. One with a placement holds its share; one without waits, and its ticket (the order of arrival) is
its place in the queue. The book belongs to nobody: each call opens it, changes it in one short transaction and
may be killed at any instruction; what such a call leaves is mended by the next one (:mod:`tessera.local.repair`).

The file appears whole, with its schema. A schema newer than ours is refused, not guessed at.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tessera.core.errors import UnavailableError
from tessera.core.placement import Grant, Placement
from tessera.local.ask import CONTAINER, Ask
from tessera.local.machine import LEDGER, Machine
from tessera.runtime.proc import Identity, crash_point
from tessera.runtime.state import link_once, share_file, temporary_for

SCHEMA_VERSION: Final = 1
BUSY_SECONDS: Final = 30.0
_SCHEMA: Final = """
CREATE TABLE runs (
    ticket     INTEGER PRIMARY KEY AUTOINCREMENT,
    uid        TEXT NOT NULL UNIQUE,
    name       TEXT NOT NULL UNIQUE,
    user       TEXT NOT NULL,
    command    TEXT NOT NULL,
    ask        TEXT NOT NULL,
    placement  TEXT,
    why        TEXT NOT NULL DEFAULT '',
    supervisor TEXT NOT NULL,
    child      TEXT,
    created    REAL NOT NULL
)
"""
_COLUMNS: Final = "ticket, uid, name, user, command, ask, placement, why, supervisor, child, created"
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: who asked for what, what it holds, and which processes stand for it.

    ``placement`` is ``None`` while it waits. ``created`` is the wall clock's time of the request, for people only.
    ``why`` says how the devices were chosen.
    """

    uid: str
    name: str
    user: str
    command: tuple[str, ...]
    ask: Ask
    supervisor: Identity
    created: float
    placement: Placement | None = None
    why: str = ""
    child: Identity | None = None
    ticket: int = 0

    @property
    def waits(self) -> bool:
        """Whether it holds nothing yet."""
        return self.placement is None


def grants_of(run: Run) -> tuple[Grant, ...]:
    """The devices that a run holds, by index; none while it waits."""
    grants = () if run.placement is None else run.placement.grants[CONTAINER]
    return tuple(sorted(grants, key=lambda grant: grant.index))


def region_path(machine: Machine, uid: str) -> Path:
    """Where the shared region of a run is."""
    return machine.regions / f"{uid}.region"


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _decode(text: str, kind: type[_Value]) -> _Value:
    return msgspec.json.decode(text, type=kind)


def _run(row: tuple[int, str, str, str, str, str, str | None, str, str, str | None, float]) -> Run:
    ticket, uid, name, user, command, ask, placement, why, supervisor, child, created = row
    return Run(
        ticket=ticket,
        uid=uid,
        name=name,
        user=user,
        command=_decode(command, tuple[str, ...]),
        ask=_decode(ask, Ask),
        placement=None if placement is None else _decode(placement, Placement),
        why=why,
        supervisor=_decode(supervisor, Identity),
        child=None if child is None else _decode(child, Identity),
        created=created,
    )


class Book:
    """An open book; opened by :func:`open_book`. Changes belong inside :meth:`change`."""

    def __init__(self, machine: Machine, connection: sqlite3.Connection) -> None:
        self.machine = machine
        self._db = connection

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction that nobody else writes beside; undone as a whole where anything is raised."""
        self._ask(lambda: self._db.execute("BEGIN IMMEDIATE"))
        try:
            yield
        except BaseException:
            self._db.rollback()
            raise
        self._ask(self._db.commit)

    def version(self) -> int:
        """A number that changes whenever another process has changed the book; costs no lock."""
        found: int = self._ask(lambda: self._db.execute("PRAGMA data_version").fetchone()[0])
        return found

    def runs(self) -> tuple[Run, ...]:
        """All runs in the order of their tickets. Their placements are of this moment."""
        query = f"SELECT {_COLUMNS} FROM runs ORDER BY ticket"  # noqa: S608 -- a constant
        return tuple(_run(row) for row in self._ask(lambda: self._db.execute(query).fetchall()))

    def add(self, run: Run) -> int:
        """Write a new run; its ticket. Names and uids are unique."""
        values = (run.uid, run.name, run.user, _encode(run.command), _encode(run.ask), run.why)
        placed = None if run.placement is None else _encode(run.placement)
        ticket = self._db.execute(
            "INSERT INTO runs (uid, name, user, command, ask, why, placement, supervisor, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, placed, _encode(run.supervisor), run.created),
        ).lastrowid
        assert ticket is not None, "an insert gives a row number"
        return ticket

    def place(self, uid: str, placement: Placement, why: str) -> None:
        """The run waits no longer: it holds this."""
        self._db.execute("UPDATE runs SET placement = ?, why = ? WHERE uid = ?", (_encode(placement), why, uid))

    def resize(self, uid: str, ask: Ask, placement: Placement) -> None:
        """The run asks for this now, and holds this."""
        self._db.execute(
            "UPDATE runs SET ask = ?, placement = ? WHERE uid = ?", (_encode(ask), _encode(placement), uid)
        )

    def record_child(self, uid: str, child: Identity) -> None:
        """Write down who runs the command."""
        self._db.execute("UPDATE runs SET child = ? WHERE uid = ?", (_encode(child), uid))

    def remove(self, uid: str) -> None:
        """The run holds nothing any more."""
        self._db.execute("DELETE FROM runs WHERE uid = ?", (uid,))

    def _ask(self, call: Callable[[], _Value]) -> _Value:
        try:
            return call()
        except sqlite3.Error as error:
            raise _unavailable(self.machine.directory / LEDGER, error) from error


def _unavailable(path: Path, error: sqlite3.Error) -> UnavailableError:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        remedy = f"another process holds it; 'fuser {path}' names it"
        return UnavailableError(f"the ledger {path} has been locked for {BUSY_SECONDS:g} s", remedy)
    remedy = "check its disk and permissions; when no run is left, it can be deleted"
    return UnavailableError(f"the ledger {path} cannot be used ({error})", remedy)


@contextmanager
def open_book(machine: Machine) -> Iterator[Book]:
    """The machine's book, made at need. Raises :class:`UnavailableError`."""
    with closing(_connect(machine.directory / LEDGER)) as connection:
        yield Book(machine, connection)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        if not path.exists():
            _create(path)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute("PRAGMA synchronous = NORMAL")
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise _unavailable(path, error) from error
    except OSError as error:
        raise UnavailableError(f"the ledger {path} cannot be opened ({error})", "check its permissions") from error
    _check_version(path, version)
    return connection


def _check_version(path: Path, version: int) -> None:
    if version == SCHEMA_VERSION:
        return
    what = f"the ledger {path} has schema {version}, this tessera knows {SCHEMA_VERSION}"
    raise UnavailableError(what, "use the tessera that wrote it, or another TESSERA_STATE_DIR")


def _create(path: Path) -> None:
    """A new book under another name, then its own: nobody sees one without a schema. WAL is kept in the file."""
    temporary = temporary_for(path)
    with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    share_file(temporary)
    crash_point(f"before-link-{path.name}")
    link_once(temporary, path)
