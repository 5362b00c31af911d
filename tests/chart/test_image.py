"""The Containerfile, as far as it can be judged without an engine: it was not built here."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TEXT: Final = re.sub(r"\\\n\s*", " ", (ROOT / "Containerfile").read_text())
LINES: Final = [line.split(maxsplit=1) for line in TEXT.splitlines() if line and not line.startswith("#")]


def instructions(word: str) -> list[str]:
    return [rest for name, rest in LINES if name == word]


def test_only_known_instructions_stand_in_it() -> None:
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in LINES} <= known


def test_bases_are_named_in_full_and_fixed() -> None:
    for base in instructions("FROM"):
        assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-[a-z]+( AS build)?", base)


def test_it_runs_as_nobody() -> None:
    names = [name for name, _ in LINES]
    assert instructions("USER") == ["65532:65532"]
    assert "RUN" not in names[names.index("USER") :]
    assert instructions("ENTRYPOINT") == ['["tessera"]']


def test_python_packages_are_pinned_by_hash() -> None:
    installs = [part for run in instructions("RUN") for part in run.split("&&") if "pip install" in part]
    assert len(installs) == 3
    assert all("--require-hashes -r requirements/" in part or "--no-index" in part for part in installs)


@pytest.mark.parametrize("copied", [rest for rest in instructions("COPY") if not rest.startswith("--from")])
def test_what_is_copied_is_there_and_not_ignored(copied: str) -> None:
    ignored = (ROOT / ".containerignore").read_text().split()
    for source in copied.split()[:-1]:
        assert (ROOT / source).exists()
        assert f"!{source.rstrip('/')}" in ignored
