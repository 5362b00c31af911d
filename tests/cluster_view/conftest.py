"""Calling the command line in this process."""

from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from tessera.cli import kubectl
from tessera.cli.main import cli

Call = Callable[..., Result]


def _caller(command: click.Command) -> Call:
    def call(*args: str) -> Result:
        result = CliRunner().invoke(command, args)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def tessera() -> Call:
    """Call ``tessera``."""
    return _caller(cli)


@pytest.fixture
def plugin() -> Call:
    """Call ``kubectl tessera``; what is raised on purpose is raised."""
    return _caller(kubectl.command)
