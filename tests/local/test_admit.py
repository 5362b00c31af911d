"""The book, the queue and repair: real SQLite, real processes, devices made up."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE

import pytest

from builders import a_device, a_node
from tessera.core.errors import InputErrors, UnavailableError
from tessera.local.admit import Admitted, Answer, Declined, admit, judge, readmit
from tessera.local.ask import Ask
from tessera.local.book import SCHEMA_VERSION, Book, Run, grants_of, open_book, region_path
from tessera.local.machine import Machine, this_machine
from tessera.local.refusal import changes, reasons, refusal_lines, snapshot_of
from tessera.local.repair import repair
from tessera.runtime.native import DeviceLimits, create_region
from tessera.runtime.proc import Identity, identity_of, own_identity


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine("here", tmp_path)
    made.regions.mkdir()
    return made


@pytest.fixture
def book(machine: Machine) -> Iterator[Book]:
    with open_book(machine) as opened:
        yield opened


TWO = a_node("here", [a_device("g0", 16384, model="Tesla T4"), a_device("g1", 16384, index=1)])
"""A T4 and an A100, of 16 GiB each."""


def a_dead() -> Identity:
    """Somebody who has been, of this boot."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        identity = identity_of(process.pid)
        assert process.stdin
        process.stdin.close()
    assert identity is not None
    return identity


def a_run(uid: str, ask: Ask, supervisor: Identity | None = None, name: str = "") -> Run:
    return Run(uid, name, "me", ("/bin/train", "now"), ask, supervisor or own_identity(), 0.0)


def _enter(book: Book, uid: str, ask: Ask, *, wait: bool = False, supervisor: Identity | None = None) -> Answer:
    return admit(book, TWO, a_run(uid, ask, supervisor), wait=wait)


def _devices(answer: Answer) -> list[int]:
    assert isinstance(answer, Admitted)
    return [grant.index for grant in grants_of(answer.run)]


def test_a_run_reads_back_as_it_was_written(book: Book) -> None:
    answer = _enter(book, "u1", Ask(1, "25%", "30%"))
    assert isinstance(answer, Admitted)
    (run,) = book.runs()
    assert replace(run, ticket=0) == answer.run
    assert run.name == "train-1"


def test_shares_fill_a_device_exactly_and_not_a_mib_more(book: Book) -> None:
    for uid in ("a", "b", "c", "d"):
        assert _devices(_enter(book, uid, Ask(memory="4Gi", model="T4"))) == [0]
    refused = _enter(book, "e", Ask(memory="1Mi", model="T4"))
    assert isinstance(refused, Declined)
    assert reasons(refused) == [
        "1 device of a model that is not allowed (A100)",
        "1 device short of memory (asked 1 MiB, largest free 0 MiB)",
    ]


def test_a_refusal_names_the_option_that_would_help(book: Book) -> None:
    _enter(book, "a", Ask(memory="10Gi", model="T4"))
    refused = _enter(book, "b", Ask(memory="10Gi", model="T4"))
    assert isinstance(refused, Declined)
    assert changes(refused) == ["--memory 6144Mi", "without --model"]
    assert any("train-1 (me, pid" in line for line in refusal_lines(refused))


def test_a_refusal_leaves_nothing_in_the_book(book: Book) -> None:
    assert isinstance(_enter(book, "a", Ask(memory="17Gi")), Declined)
    assert book.runs() == ()


def test_what_could_never_run_does_not_wait(book: Book) -> None:
    refused = _enter(book, "a", Ask(memory="17Gi"), wait=True)
    assert isinstance(refused, Declined)
    assert refused.hopeless
    assert book.runs() == ()


def test_first_come_first_served(book: Book) -> None:
    _enter(book, "small", Ask(memory="1Gi", model="T4"))
    waiting = _enter(book, "big", Ask(devices=2), wait=True)
    assert isinstance(waiting, Declined)
    later = _enter(book, "later", Ask(memory="1Gi"), wait=True)
    assert isinstance(later, Declined)
    assert [run.uid for run in later.ahead] == ["big"]
    with book.change():
        book.remove("small")
    assert isinstance(readmit(book, TWO, "later"), Declined), "not before its turn"
    assert _devices(readmit(book, TWO, "big")) == [0, 1]
    with book.change():
        book.remove("big")
    assert isinstance(readmit(book, TWO, "later"), Admitted)


def test_who_does_not_wait_does_not_overtake(book: Book) -> None:
    _enter(book, "small", Ask(memory="1Gi"))
    _enter(book, "big", Ask(devices=2), wait=True)
    refused = _enter(book, "later", Ask(memory="1Gi"))
    assert isinstance(refused, Declined)
    assert reasons(refused) == ["1 run came first and still wait: train-2"]
    assert changes(refused) == ["--wait takes a place behind them"]


def test_a_waiter_for_another_model_is_in_nobodys_way(book: Book) -> None:
    _enter(book, "a", Ask(model="T4"))
    assert isinstance(_enter(book, "b", Ask(model="T4"), wait=True), Declined)
    assert _devices(_enter(book, "c", Ask(model="A100"))) == [1]


def test_a_waiter_who_died_is_in_nobodys_way(book: Book) -> None:
    _enter(book, "a", Ask(devices=1))
    _enter(book, "dead", Ask(devices=2), wait=True, supervisor=a_dead())
    assert isinstance(_enter(book, "b", Ask(devices=1)), Admitted)
    assert [run.uid for run in book.runs()] == ["a", "b"]


def test_names_are_the_first_free_ones_and_unique(book: Book) -> None:
    for uid in ("a", "b", "c"):
        _enter(book, uid, Ask(memory="1Gi"))
    with book.change():
        book.remove("b")
    _enter(book, "d", Ask(memory="1Gi"))
    assert {run.uid: run.name for run in book.runs()} == {"a": "train-1", "c": "train-3", "d": "train-2"}
    with pytest.raises(InputErrors, match="name of a run that lives"):
        admit(book, TWO, a_run("e", Ask(memory="1Gi"), name="train-2"), wait=False)


def test_the_share_of_the_dead_is_free_again(book: Book) -> None:
    _enter(book, "a", Ask(devices=2), supervisor=a_dead())
    assert _devices(_enter(book, "b", Ask(devices=2))) == [0, 1]
    assert [run.uid for run in book.runs()] == ["b"]


def test_the_share_stays_taken_while_the_child_lives(book: Book) -> None:
    _enter(book, "a", Ask(devices=2), supervisor=a_dead())
    with book.change():
        book.record_child("a", own_identity())
    assert isinstance(_enter(book, "b", Ask(memory="1Gi")), Declined)


def _with_slot(machine: Machine, uid: str, who: Identity) -> None:
    """A region of one device in which a process is registered."""
    path = region_path(machine, uid)
    create_region(path, uid, [DeviceLimits("g0", 1 << 30, 0, 1000, 0)])
    with path.open("r+b") as file:
        for offset, value in ((8192 + 4096, 1), (16384, 2), (16384 + 8, who.pid), (16384 + 16, who.start_ticks)):
            file.seek(offset)
            file.write(value.to_bytes(8, "little"))


def test_the_share_stays_taken_while_a_process_of_its_region_lives(
    native: Path, machine: Machine, book: Book
) -> None:
    for uid, who in (("alive", own_identity()), ("dead", a_dead())):
        _enter(book, uid, Ask(memory="1Gi"), supervisor=a_dead())
        _with_slot(machine, uid, who)
        with book.change():
            left = repair(book)
        assert [run.uid for run in left] == ["alive"]
    assert [path.name for path in machine.regions.iterdir()] == ["alive.region"]


def test_of_another_boot_nothing_is_left(native: Path, machine: Machine, book: Book) -> None:
    _enter(book, "a", Ask(memory="1Gi"), supervisor=replace(own_identity(), boot="before"))
    _with_slot(machine, "a", own_identity())
    with book.change():
        assert repair(book) == ()
    assert list(machine.regions.iterdir()) == []


def test_half_a_region_goes_with_its_run_only(machine: Machine, book: Book) -> None:
    _enter(book, "a", Ask(memory="1Gi"))
    for name in ("a.region.123.new", "gone.region.123.new", "gone.region"):
        (machine.regions / name).touch()
    with book.change():
        repair(book)
    assert [path.name for path in machine.regions.iterdir()] == ["a.region.123.new"]


def test_a_change_that_fails_changes_nothing(book: Book) -> None:
    _enter(book, "a", Ask(memory="1Gi"))

    def change() -> None:
        with book.change():
            book.remove("a")
            book.add(a_run("b", Ask(), name="twice"))
            book.add(a_run("c", Ask(), name="twice"))

    with pytest.raises(sqlite3.IntegrityError):
        change()
    assert [run.uid for run in book.runs()] == ["a"]


def test_usage_is_what_the_runs_hold(book: Book) -> None:
    _enter(book, "a", Ask(memory="1Gi", compute="30%", model="T4"))
    _enter(book, "b", Ask(memory="50%", model="T4"))
    _enter(book, "c", Ask(devices=2), wait=True)
    usage = snapshot_of(TWO, book.runs()).usage
    assert usage.memory.tolist() == [1024 + 8192, 0]
    assert usage.compute.tolist() == [300, 0]


def test_judging_changes_nothing(book: Book) -> None:
    assert isinstance(judge(TWO, a_run("a", Ask()), book.runs()), Admitted)
    assert book.runs() == ()


def test_a_newer_schema_is_refused(machine: Machine) -> None:
    with open_book(machine):
        pass
    with sqlite3.connect(machine.directory / "ledger.db") as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(UnavailableError, match=f"schema {SCHEMA_VERSION + 1}"), open_book(machine):
        pass


def test_what_is_no_ledger_is_an_error_with_a_remedy(machine: Machine) -> None:
    (machine.directory / "ledger.db").write_bytes(b"no database at all, but long enough to look at" * 100)
    with pytest.raises(UnavailableError, match="cannot be used"), open_book(machine):
        pass


OPEN_IT = """
import sys
from pathlib import Path
from tessera.local.book import open_book
from tessera.local.machine import Machine
with open_book(Machine("here", Path(sys.argv[1]))) as book:
    print(len(book.runs()))
"""


def test_many_may_make_the_book_at_once(machine: Machine) -> None:
    command = [sys.executable, "-c", OPEN_IT, str(machine.directory)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate()[0] for process in processes] == ["0\n"] * 6
    assert not [path for path in machine.directory.iterdir() if ".new" in path.name]


@pytest.mark.parametrize("point", ["before-link-ledger.db", "after-link-ledger.db"])
def test_a_crash_while_making_the_book_is_mended(machine: Machine, point: str) -> None:
    command = [sys.executable, "-c", OPEN_IT, str(machine.directory)]
    crashed = subprocess.run(command, env={**os.environ, "TESSERA_TEST_CRASH_AT": point}, check=False)
    assert crashed.returncode == -9
    assert [path for path in machine.directory.iterdir() if ".new" in path.name], "it was killed half-way"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


def test_what_several_users_may_write_is_shared_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "shared"
    state.mkdir()
    state.chmod(0o1777)
    monkeypatch.setenv("TESSERA_STATE_DIR", str(state))
    machine = this_machine()
    with open_book(machine):
        pass
    modes = [S_IMODE(path.stat().st_mode) for path in (machine.directory, machine.regions)]
    assert modes == [0o1777, 0o1777]
    assert S_IMODE((machine.directory / "ledger.db").stat().st_mode) == 0o666
