"""Size gate: no function over 60 lines, no module over 600, unless a ``# long: why`` comment says why.

Usage: ``python tools/sizes.py [PATH ...]`` (default: the tracked Python and C sources). Prints every
violation and exits 1 when there is one. Python functions are measured from ``def`` to their last line,
docstring included; C functions from the signature to the closing brace in column 0.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION_LINES = 60
MODULE_LINES = 600
EXCUSE = re.compile(r"(#|//|/\*|\*)\s*long: \S+")


def tracked() -> list[Path]:
    """The source files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", "*.py", "*.c", "*.h"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if Path(line).exists()]


def excused(lines: list[str], first: int) -> bool:
    """Whether the line itself or one of the two above carries an excuse (1-based line number)."""
    return any(EXCUSE.search(line) for line in lines[max(0, first - 3) : first])


def python_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of every function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of every function; relies on braces in column 0."""
    start: int | None = None
    name = ""
    for number, line in enumerate(lines, start=1):
        signature = re.match(r"^[A-Za-z_][\w\s*]*?\b(\w+)\s*\(", line)
        if signature and not line.rstrip().endswith(";"):
            start, name = number, signature.group(1)
        elif line.startswith("}") and start is not None:
            yield name, start, number - start + 1
            start = None


def violations(path: Path) -> Iterator[str]:
    """Everything in one file that is too long and says no reason."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    if len(lines) > MODULE_LINES and not any(EXCUSE.search(line) for line in lines[:40]):
        yield f"{path}: {len(lines)} lines, {MODULE_LINES} are allowed"
    functions = python_functions(source) if path.suffix == ".py" else c_functions(lines)
    for name, first, length in functions:
        if length > FUNCTION_LINES and not excused(lines, first):
            yield f"{path}:{first}: {name} has {length} lines, {FUNCTION_LINES} are allowed"


def main(arguments: list[str]) -> int:
    """Check the given files, or all."""
    paths = [Path(a) for a in arguments] or tracked()
    found = [line for path in paths for line in violations(path)]
    print("\n".join(found) if found else f"sizes: {len(paths)} files within the limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
