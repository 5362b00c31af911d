"""Write docs/promises.md from ``tests/promises/rows.py``; ``--check`` only compares."""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PLACE: Final = ROOT / "docs/promises.md"
sys.path.insert(0, str(ROOT / "tests"))

from promises.rows import GROUPS, LEVELS, Row, level_of  # noqa: E402 - tests are no package that is installed

HEAD: Final = """# Promises

What users of shared accelerators suffered elsewhere, and the tests that show it does not happen here. Written by
`tools/promises_page.py --write` from `tests/promises/rows.py`; a test fails where one that is named here is
missing.

`U` rows are users' pains, `F` rows features and `D` rows defects of fractions that a driver or an agent enforces,
by the threads in which they were told (`TF` TensorFusion, `NDP` NVIDIA's device plugin, `KAI` KAI-Scheduler, `k8s`
Kubernetes). The numbers are those of the lists from which the rows were taken; numbers that are missing need a GPU
or are other parts of the product. How far a test goes:

| level | what is real |
|---|---|
"""


def page() -> str:
    """The whole page."""
    levels = "".join(f"| {name} | {what} |\n" for name, what in LEVELS)
    return HEAD + levels + "".join(section(title, rows) for title, rows in GROUPS)


def section(title: str, rows: tuple[Row, ...]) -> str:
    """A group of rows as a table."""
    head = f"\n## {title}\n\n| row | told in | pain | tests | not shown |\n|---|---|---|---|---|\n"
    return head + "".join(line(row) for row in rows)


def line(row: Row) -> str:
    """A row; its tests by name, each with its level and a link to its file."""
    tests = "<br>".join(cell(test) for test in row.tests) or "none"
    return f"| {row.key} | {row.source} | {row.pain} | {tests} | {row.absent or '-'} |\n"


def cell(test: str) -> str:
    """A test in the table."""
    path, _, name = test.partition("::")
    return f"{level_of(test)}: [`{name}`](../{path})"


def main() -> int:
    """Write or compare the page; 1 where it differs."""
    after = page()
    if "--check" not in sys.argv[1:]:
        PLACE.write_text(after, encoding="utf-8")
        return 0
    same = PLACE.exists() and PLACE.read_text(encoding="utf-8") == after
    print(
        "docs/promises.md is", "as generated" if same else "not as generated: run tools/promises_page.py --write"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
