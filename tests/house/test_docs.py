"""The documentation is true: every command shown parses, every link leads somewhere, every fleet is read."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest

from tessera.cli.main import VERBS
from tessera.wire.fleetfile import read_fleet

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDERS = {"[", "PATH...", "VERB"}


def shown_commands():
    """Every `tessera ...` of a fenced block that is a call and not a synopsis, with its page."""
    for page in PAGES:
        for _, block in FENCE.findall(page.read_text()):
            for line in re.split(r"[\n;|]", block):
                call = line.strip().removeprefix("$ ")
                if call.startswith("tessera ") and not any(p in call for p in PLACEHOLDERS):
                    yield page.relative_to(ROOT), call.partition(" #")[0]


@pytest.mark.parametrize(
    ("page", "call"), sorted(set(shown_commands()), key=str), ids=lambda v: str(v).replace(" ", "_")
)
def test_every_command_shown_is_one_that_the_program_takes(page, call):
    _, verb, *words = shlex.split(call)
    command = import_module(VERBS[verb].module).command
    assert isinstance(command, click.Command)
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
    ours = words[: words.index("--")] if "--" in words else words
    assert {w for w in ours if w.startswith("-") and w != "-"} <= known, page


def test_the_documentation_shows_commands():
    assert len(list(shown_commands())) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


def test_the_fleet_files_shown_are_read_without_a_problem():
    blocks = [b for kind, b in FENCE.findall((ROOT / "docs/fleet-file.md").read_text()) if kind == "yaml"]
    assert blocks
    assert [p for block in blocks for p in read_fleet("docs/fleet-file.md", block).problems] == []
