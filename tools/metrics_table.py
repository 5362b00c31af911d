"""Write the tables of metrics into docs/metrics.md from where processes declare them; ``--check`` only compares.

Declarations are read from the source, so that no process has to run. A module that declares metrics by a table of
its own is asked instead (:data:`ASKED`); any other declaration whose name is not written out is an error here.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from tessera.agent.figures import declare_containers, declare_devices
from tessera.runtime.metrics import PREFIX, Metric, Metrics

ROOT: Final = Path(__file__).parent.parent
PLACE: Final = ROOT / "docs/metrics.md"
PROCESSES: Final = ("webhook", "scheduler", "agent")
ASKED: Final = frozenset({"declare_containers", "declare_devices"})
"""Functions that declare by a table of their own, asked by :func:`_asked`."""

TYPES: Final = {"counter": "counter", "gauge": "gauge", "matrix": "gauge", "histogram": "histogram"}
_UNITS: Final = (
    ("_timestamp_seconds", "seconds since 1970"),
    ("_seconds", "seconds"),
    ("_bytes", "bytes"),
    ("_ratio", "0 to 1"),
    ("_total", "count"),
)
_TABLE: Final = re.compile(r"(<!-- metrics of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def declared(process: str) -> tuple[Metric, ...]:
    """Every metric of a process, by name."""
    found = [metric for path in sorted((ROOT / "src/tessera" / process).glob("*.py")) for metric in _written(path)]
    if process == "agent":
        found += _asked()
    common = [metric for metric in Metrics().table() if metric.name == f"{PREFIX}unavailable"]
    return tuple(sorted((*found, *common), key=lambda metric: metric.name))


def _asked() -> list[Metric]:
    metrics, nothing = Metrics(), cast("Any", None)
    declare_containers(metrics, nothing, nothing)
    declare_devices(metrics, nothing, nothing)
    return [metric for metric in metrics.table() if metric.name != f"{PREFIX}unavailable"]


def _written(path: Path) -> Iterator[Metric]:
    """Metrics whose names are written out in a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(call)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name in ASKED
        for call in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in skipped and _declares(node):
            yield _metric(path, node)


def _declares(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return isinstance(call.func, ast.Attribute) and name.lstrip("_") == "metrics" and call.func.attr in TYPES


def _metric(path: Path, call: ast.Call) -> Metric:
    assert isinstance(call.func, ast.Attribute)
    given: Mapping[str, ast.expr] = {word.arg: word.value for word in call.keywords if word.arg}
    try:
        name, help_ = (ast.literal_eval(argument) for argument in call.args[:2])
        labels = given.get("labels", call.args[2] if len(call.args) > 2 else None)
        shown = ast.literal_eval(labels) if isinstance(labels, ast.Tuple) else ()
    except ValueError:
        raise SystemExit(
            f"{path.relative_to(ROOT)}:{call.lineno}: write the metric's name, help and labels out, or list its "
            f"function in tools/metrics_table.py"
        ) from None
    counts = "counter" in given and ast.literal_eval(given["counter"])
    return Metric(PREFIX + name, "counter" if counts else TYPES[call.func.attr], help_, tuple(shown))


def unit(metric: Metric) -> str:
    """What a metric is counted in, by the end of its name as Prometheus asks."""
    return next((word for end, word in _UNITS if metric.name.endswith(end)), "count")


def table(process: str) -> str:
    """The table of a process in Markdown."""
    rows = [
        f"| `{m.name}` | {m.type} | {unit(m)} | {', '.join(f'`{name}`' for name in m.labels) or '-'} | {m.help} |"
        for m in declared(process)
    ]
    return "\n".join(("| metric | type | unit | labels | what |", "|---|---|---|---|---|", *rows)) + "\n"


def page(text: str) -> str:
    """The page with all of its tables as they must be."""
    return _TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", text)


def main() -> int:
    """Write or compare the page; 1 where it differs."""
    before = PLACE.read_text(encoding="utf-8")
    after = page(before)
    if "--check" in sys.argv[1:]:
        said = "as generated" if after == before else "not as generated: run tools/metrics_table.py --write"
        print("docs/metrics.md is", said)
        return 0 if after == before else 1
    PLACE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
