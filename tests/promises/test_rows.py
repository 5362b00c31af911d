"""The table of promises: every row that is demanded is there, and every test that it names exists."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from promises.rows import DEMANDED, GROUPS, LEVELS, Row, level_of

ROOT = Path(__file__).parents[2]
ROWS = [row for _, rows in GROUPS for row in rows]
TESTS = sorted({test for row in ROWS for test in row.tests})


C_FUNCTION = re.compile(r"^static void (\w+)\(", re.MULTILINE)
SHELL_CASE = re.compile(r'^ *expect "([^"]+)"', re.MULTILINE)


def names_in(path: Path) -> set[str]:
    """The tests that a file defines for all to collect: functions, and test cases bound to a name; of the
    limiter's own tests functions in C and cases of a script.
    """
    if path.suffix != ".py":
        pattern = C_FUNCTION if path.suffix == ".c" else SHELL_CASE
        return set(pattern.findall(path.read_text(encoding="utf-8")))
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    bound = {
        t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    return {name for name in functions | bound if name.startswith(("test_", "Test"))}


@pytest.mark.parametrize("test", TESTS)
def test_a_test_that_is_named_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert (ROOT / path).is_file()
    assert name in names_in(ROOT / path)


def test_a_row_is_listed_once() -> None:
    keys = [row.key for row in ROWS]
    assert len(keys) == len(set(keys))


def test_every_row_that_is_demanded_is_listed() -> None:
    assert {row.key for row in ROWS} >= DEMANDED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_row_has_tests_or_says_why_it_has_none(row: Row) -> None:
    assert row.tests or row.absent
    assert len(row.tests) == len(set(row.tests))


@pytest.mark.parametrize("test", TESTS)
def test_a_level_is_one_that_is_explained(test: str) -> None:
    assert level_of(test) in {name for name, _ in LEVELS}


def test_a_test_whose_name_tells_a_row_is_named_there() -> None:
    """``test_row_7_...`` and ``test_rows_8_and_9_...`` stand in the table, so that it tells the whole truth."""
    files = [p for p in (ROOT / "tests").rglob("test_*.py") if p.parent.name != "house"]
    found = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in files
        for name in names_in(path)
        if name.startswith(("test_row_", "test_rows_")) and name[len("test_row") :].lstrip("s_")[:1].isdigit()
    }
    assert sorted(found - set(TESTS)) == []


def test_the_page_is_as_generated() -> None:
    run = subprocess.run(
        [sys.executable, "tools/promises_page.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
