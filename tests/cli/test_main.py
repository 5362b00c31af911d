"""The table of verbs, help, completion, and how calls end."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tessera import __version__
from tessera.cli.exits import Exit, exit_code
from tessera.cli.main import VERBS, cli
from tessera.core.errors import InputErrors, Problem, UnavailableError

COMMAND = [sys.executable, "-c", "from tessera.cli.main import main; main()"]


def test_help_lists_every_verb_with_its_summary(tessera) -> None:
    text = tessera("--help").stdout
    for name, verb in VERBS.items():
        assert f"{name} " in text
        assert verb.summary in text


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys; from tessera.cli.main import cli\n"
        "try: cli(['--help'], prog_name='tessera')\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "yaml", "msgspec", "rich", "textual", "pynvml", "tessera.cli.plan", "tessera.allocator"}
    assert not heavy & set(done.stderr.split())


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help_with_examples_and_both_spellings(tessera, verb: str) -> None:
    long, short = tessera(verb, "--help"), tessera(verb, "-h")
    assert (long.exit_code, short.exit_code) == (0, 0)
    assert long.stdout == short.stdout
    assert f"tessera {verb}" in long.stdout.partition("\n")[2], "an example below the usage line"


def test_the_version_is_the_packages(tessera) -> None:
    assert tessera("--version").stdout == f"tessera {__version__}\n"


@pytest.mark.parametrize(("word", "said"), [("pln", "did you mean 'plan'?"), ("zzz", "choose from plan")])
def test_an_unknown_verb_is_met_with_the_nearest(tessera, word: str, said: str) -> None:
    result = tessera(word)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_our_name(tessera, shell: str) -> None:
    result = tessera("completion", shell)
    assert result.exit_code == 0
    assert "_TESSERA_COMPLETE" in result.stdout
    assert f"{shell}_complete" in result.stdout


def test_the_bash_script_is_accepted_by_bash(tessera) -> None:
    script = tessera("completion", "bash").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def completions(line: str) -> list[str]:
    """What bash would offer for the last word of ``line``."""
    words = line.split(" ")
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TESSERA_COMPLETE": "bash_complete"}
    result = CliRunner(env=env).invoke(cli, [], prog_name="tessera")
    return [item.partition(",")[2] for item in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tessera pl", "plan"),
        ("tessera --ver", "--version"),
        ("tessera plan --fl", "--fleet"),
        ("tessera plan --policy spr", "spread"),
        ("tessera plan -o js", "json"),
        ("tessera plan --fleet this", "this-machine"),
        ("tessera plan --fleet 4x8xA100-SX", "4x8xA100-SXM-80GB"),
        ("tessera plan --fleet 8xT4,2xL4", "8xT4,2xL40S-48GB"),
        ("tessera completion z", "zsh"),
    ],
)
def test_words_complete(line: str, offered: str) -> None:
    assert offered in completions(line)


def test_a_fleet_completes_to_files() -> None:
    result = CliRunner(
        env={"COMP_WORDS": "tessera plan --fleet fl", "COMP_CWORD": "3", "_TESSERA_COMPLETE": "bash_complete"}
    ).invoke(cli, [], prog_name="tessera")
    assert result.stdout == "file,fl\n"


def raising(error: BaseException):
    def call() -> None:
        raise error

    return call


PROBLEMS = (
    Problem("a.yaml", "Pod/x/y", "spec", "v", "is wrong", "mend it"),
    Problem("b.yaml", "", "", "", "is there", "go on"),
)


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        (lambda: None, Exit.OK, ""),
        (lambda: 1, Exit.NO, ""),
        (raising(click.Abort()), Exit.INTERRUPTED, ""),
        (raising(KeyboardInterrupt()), Exit.INTERRUPTED, ""),
        (raising(UnavailableError("no driver", "install one")), Exit.NO, "error: no driver; install one\n"),
        (
            raising(InputErrors(PROBLEMS)),
            Exit.INVALID,
            "error: a.yaml: Pod/x/y: spec: is wrong (got 'v'); mend it\nerror: b.yaml: is there; go on\n",
        ),
    ],
)
def test_every_end_has_one_code_and_its_lines(capsys, call, code: Exit, said: str) -> None:
    assert exit_code(call) == code
    assert capsys.readouterr().err == said


def test_a_reader_that_went_away_ends_the_call_in_silence() -> None:
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "--help"], stdout=written, stderr=subprocess.PIPE, text=True, check=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (Exit.BROKEN_PIPE, "")


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_on_terminals_only_and_never_where_unwanted(env: dict[str, str], coloured: bool) -> None:
    # A pseudo-terminal stands for the terminal; the error's prefix is what would be coloured.
    ours, theirs = os.openpty()
    done = subprocess.run(
        [*COMMAND, "plan", "x", "--fleet", "nowhere"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={"PATH": os.environ["PATH"], "TERM": "xterm", **env},
        check=False,
    )
    os.close(theirs)
    text = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 2
    assert ("\x1b[" in text) is coloured
