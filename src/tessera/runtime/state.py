"""Where Tessera keeps what it knows about a machine, and how files appear there: whole or not at all.

::

    <state>/machine/              this machine:  ledger.db, regions/
    <state>/sim/<machine>/        a simulated one:  machine.conf, machine.conf.state, ledger.db, regions/

``<state>`` is ``TESSERA_STATE_DIR``; without it ``/var/lib/tessera`` where that can be written (one ledger for all
users of the machine), else ``$XDG_STATE_HOME/tessera``. A file is written beside its place as ``<name>.<pid>.new``
and renamed; what a process that was killed left under such a name is swept by the next one.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Final

from tessera.core.errors import UnavailableError
from tessera.runtime.proc import crash_point, identity_of

STATE_VARIABLE: Final = "TESSERA_STATE_DIR"
SYSTEM_STATE: Final = Path("/var/lib/tessera")
_TEMPORARY: Final = re.compile(r"\.(\d+)\.new(-wal|-shm|-journal)?$")


def state_directory() -> Path:
    """The state directory; it need not exist yet.

    Raises :class:`UnavailableError` where the machine has a common ledger that we may not write: a second ledger
    for the same devices would hand them out twice.
    """
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.access(SYSTEM_STATE if SYSTEM_STATE.exists() else SYSTEM_STATE.parent, os.W_OK):
        return SYSTEM_STATE
    if (SYSTEM_STATE / "machine" / "ledger.db").exists():
        what = f"this machine's shares are kept in {SYSTEM_STATE}, which you may not write"
        remedy = f"ask for write access to it, or set {STATE_VARIABLE} to keep a ledger apart from the others"
        raise UnavailableError(what, remedy)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tessera"


def make_directory(state: Path, *parts: str) -> Path:
    """A directory in the state directory, made at need. Raises :class:`UnavailableError` where it cannot be.

    It gets the mode of the state directory: what several users may write is shared as a whole.
    """
    path = state
    try:
        state.mkdir(parents=True, exist_ok=True)
        for part in parts:
            path = path / part
            if not path.is_dir():
                path.mkdir(exist_ok=True)
                path.chmod(S_IMODE(state.stat().st_mode))
    except OSError as error:
        raise UnavailableError(f"cannot make {path}: {error.strerror}", f"set {STATE_VARIABLE}") from error
    return path


def share_file(path: Path) -> None:
    """Let whoever may write the directory of ``path`` write the file as well."""
    path.chmod(S_IMODE(path.parent.stat().st_mode) & 0o666)


def temporary_for(path: Path) -> Path:
    """The name under which this process may prepare ``path``."""
    return path.with_name(f"{path.name}.{os.getpid()}.new")


def write_once(path: Path, text: str) -> None:
    """Let ``path`` hold ``text`` if it does not exist; whole or not at all, whoever comes first."""
    if path.exists():
        return
    temporary = temporary_for(path)
    temporary.write_text(text)
    crash_point(f"before-link-{path.name}")
    link_once(temporary, path)


def link_once(temporary: Path, path: Path) -> None:
    """Give a prepared file its name, unless another process was first; the temporary name is gone after."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        crash_point(f"after-link-{path.name}")
        temporary.unlink(missing_ok=True)


def sweep_temporaries(directory: Path) -> None:
    """Remove what processes that are gone had prepared in ``directory``."""
    for path in directory.iterdir():
        found = _TEMPORARY.search(path.name)
        if found and int(found[1]) != os.getpid() and identity_of(int(found[1])) is None:
            with suppress(PermissionError):  # another user's, in a sticky directory: they sweep it themselves
                path.unlink(missing_ok=True)
