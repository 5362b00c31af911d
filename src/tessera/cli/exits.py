"""How a call ends: the exit codes, and the one place where errors become lines on stderr.

======  ===========================================================================================
0       done; for ``plan``: every pod that asks for accelerators was placed
1       a no: something was rejected, or the world lacks something (a driver, a device)
2       invalid input or usage; nothing was done, every problem has a line on stderr
130     interrupted (Ctrl-C)
141     the reader of our output went away, as ``head`` does
======  ===========================================================================================
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from tessera.core.errors import InputErrors, Problem, Severity, TesseraError


class Exit(IntEnum):
    """Exit codes of every verb."""

    OK = 0
    NO = 1
    INVALID = 2
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_PREFIX = {
    Severity.ERROR: click.style("error:", fg="red", bold=True),
    Severity.WARNING: click.style("warning:", fg="yellow", bold=True),
}


def say_problems(problems: Iterable[Problem]) -> None:
    """One line on stderr for each problem, in the order given."""
    for problem in problems:
        click.echo(f"{_PREFIX[problem.severity]} {problem}", err=True)


def say_error(error: TesseraError) -> Exit:
    """Lines on stderr for ``error``; what the call exits with."""
    if isinstance(error, InputErrors):
        say_problems(error.problems)
        return Exit.INVALID
    click.echo(f"{_PREFIX[Severity.ERROR]} {error}", err=True)
    return Exit.NO


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the call in silence where the reader of our output went away (click would exit with 1)."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes stdout once more at exit and would complain; give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(Exit.BROKEN_PIPE) from None


def exit_code(call: Callable[[], object]) -> int:
    """What to exit with after ``call``, whose result is an exit code or ``None``; says what went wrong."""
    try:
        code = call()
        with quiet_pipe():
            sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except TesseraError as error:
        return say_error(error)
    return code if isinstance(code, int) else Exit.OK
