"""The house rules that a machine can check: layering, sizes, rows without code, vendors named in one place."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/tessera"


def test_imports_point_down_only():
    run = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


PURE = ("core", "policy", "vendors", "allocator", "wire")
PROCESSES = ("webhook", "scheduler", "agent", "simulator")


def test_the_layering_contract_can_fail(tmp_path):
    """A core that imports the edge breaks the contract; without this the test above would say nothing."""
    package = tmp_path / "tessera"
    for room in (*PURE, "runtime", "local", *PROCESSES, "cluster", "cli"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for name in {name for contract in contracts for name in contract.get("forbidden_modules", ())}:
        if name.count(".") == 2 and name.startswith("tessera."):  # the linter wants to see what is forbidden
            (tmp_path / name.replace(".", "/")).with_suffix(".py").write_text("")
    (package / "core/bad.py").write_text("import tessera.local\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    run = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin"},
    )
    assert run.returncode == 1
    assert "tessera.core.bad -> tessera.local" in run.stdout


def test_functions_and_modules_keep_their_size():
    run = subprocess.run([sys.executable, "tools/sizes.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


ROWS = [SOURCE / "vendors/nvidia.py"]


@pytest.mark.parametrize("path", ROWS, ids=lambda p: p.stem)
def test_a_vendor_row_holds_declarations_only(path):
    code = ast.parse(path.read_text())
    banned = ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.For | ast.While | ast.Lambda
    assert not [type(n).__name__ for n in ast.walk(code) if isinstance(n, banned)]


def test_no_vendor_is_named_outside_of_vendors_and_the_probe():
    """Names in prose (docstrings, comments, help) are for readers; names in code would be decisions."""
    allowed = {"vendors", "runtime"}
    named = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(
                isinstance(c, ast.Constant)
                and isinstance(c.value, str)
                and re.search("nvidia|ascend|amd", c.value, re.I)
                for c in [node.left, *node.comparators]
            ):
                named.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not named


def test_tracked_files_hold_no_download_address_and_no_path_of_a_machine():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(
        r'("resolved": *"http|--(extra-)?index-url |^registry *= *http|files\.python' r"hosted)", re.M
    )
    texts = (
        (name, (ROOT / name).read_bytes().decode("utf-8", "replace")) for name in listed if (ROOT / name).is_file()
    )
    assert not [name for name, text in texts if pattern.search(text) or str(ROOT) in text]
