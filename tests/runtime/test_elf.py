"""What a program's first bytes say about preloading, on programs that the compiler makes here."""

import subprocess
from pathlib import Path

import pytest

from tessera.runtime.elf import preload_obstacle


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elf") / "main.c"
    path.write_text("int main(void) { return 0; }\n")
    return path


def _built(source: Path, name: str, *options: str) -> Path:
    made = source.with_name(name)
    subprocess.run(["cc", *options, "-o", made, source], check=True)
    return made


def test_an_ordinary_program_can_be_limited(source: Path) -> None:
    assert preload_obstacle(_built(source, "ordinary")) == ""


@pytest.mark.parametrize("option", ["-static", "-static-pie"])
def test_a_static_program_cannot(source: Path, option: str) -> None:
    assert "static" in preload_obstacle(_built(source, f"static{option}", option))


def test_a_program_for_musl_cannot(source: Path) -> None:
    made = _built(source, "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    assert "musl" in preload_obstacle(made)


def test_a_script_is_as_its_interpreter(source: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{_built(source, 'interpreter', '-static')} -x\n")
    assert "static" in preload_obstacle(script)
    script.write_text("#!/bin/sh\n")
    assert preload_obstacle(script) == ""


@pytest.mark.parametrize("content", [b"", b"#!", b"\x7fELF", b"\x7fELF\2" + b"\0" * 20, b"text\n"])
def test_nothing_is_claimed_about_what_is_not_understood(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    assert preload_obstacle(path) == ""


def test_another_processor_is_told(source: Path, tmp_path: Path) -> None:
    data = bytearray(_built(source, "native").read_bytes())
    data[18:20] = (8).to_bytes(2, "little")  # EM_MIPS
    other = tmp_path / "mips"
    other.write_bytes(data)
    assert "processor" in preload_obstacle(other)
