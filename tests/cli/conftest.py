"""Calling the command line in this process, and files for it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tessera.cli.main import cli

Call = Callable[..., Result]
Write = Callable[[str, str], str]


@pytest.fixture
def tessera() -> Call:
    """Call the command line; an exception that is not an exit fails the test with its traceback."""

    def call(*args: str, stdin: str = "") -> Result:
        result = CliRunner().invoke(cli, args, input=stdin, prog_name="tessera")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file below the test's own folder; the path of it."""

    def put(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return put
