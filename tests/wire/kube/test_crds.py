"""Our CustomResourceDefinitions: complete, and the chart's files are current."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tessera.runtime.kube.port import GPU_NODES, GPUS
from tessera.wire.kube.crds import crds

OURS = (GPU_NODES, GPUS)
ROOT = Path(__file__).resolve().parents[3]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema, with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_our_kinds_are_those_that_the_client_knows() -> None:
    known = {(k.group, k.version, k.plural, k.kind, "Namespaced" if k.namespaced else "Cluster") for k in OURS}
    made = set()
    for spec in (crd["spec"] for crd in crds()):
        names = spec["names"]
        made.add((spec["group"], spec["versions"][0]["name"], names["plural"], names["kind"], spec["scope"]))
    assert made == known


def test_everything_in_a_status_is_described_for_kubectl_explain() -> None:
    bare = [
        f"{crd['metadata']['name']}{path}"
        for crd in crds()
        for path, part in nodes(schema_of(crd)["properties"]["status"], ".status")
        if not part.get("description") and path != ".status"
    ]
    assert bare == []


def test_no_text_and_no_list_is_unbounded() -> None:
    for crd in crds():
        for path, part in nodes(schema_of(crd)["properties"]["status"]):
            bounded = {"string": ("maxLength", "enum"), "array": ("maxItems",)}.get(
                part.get("type", ""), ("type",)
            )
            assert any(key in part for key in bounded), f"{crd['metadata']['name']}{path}"


def test_columns_show_what_is_there() -> None:
    for crd in crds():
        known = {path for path, _ in nodes(schema_of(crd))}
        for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]:
            path = column["jsonPath"].replace("[0]", "[]")
            assert path in known or path == ".metadata.creationTimestamp", path


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/crds.py as a module."""
    spec = importlib.util.spec_from_file_location("crds_tool", ROOT / "tools/crds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_charts_files_are_as_generated(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_the_check_fails_for_a_file_that_is_missing_changed_or_too_many(tool: ModuleType, tmp_path: Path) -> None:
    place = str(tmp_path)
    assert tool.main(["--check", place]) == 1
    assert tool.main(["--write", place]) == 0
    assert tool.main(["--check", place]) == 0
    (tmp_path / "gpus.yaml").write_text("changed")
    assert tool.main(["--check", place]) == 1
    tool.main(["--write", place])
    (tmp_path / "old.yaml").write_text("")
    assert tool.main(["--check", place]) == 1
    tool.main(["--write", place])
    assert tool.main(["--check", place]) == 0
    assert tool.main([]) == 2
