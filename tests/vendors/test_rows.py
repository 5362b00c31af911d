"""Vendors are rows: data only, complete, and the only place where a vendor is named."""

import ast
from pathlib import Path

import pytest

import tessera
from tessera.vendors.registry import BY_COUNT, MODES, VENDORS, canonical_vendor, foreign_resource

SOURCE = Path(tessera.__file__).parent
ROWS = [SOURCE / "vendors" / f"{vendor.name.lower()}.py" for vendor in VENDORS]
PURE = [path for part in ("core", "policy", "allocator", "wire") for path in sorted((SOURCE / part).rglob("*.py"))]


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.name)
def test_a_row_is_imports_assignments_and_a_docstring(path):
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [type(node).__name__ for node in tree.body if not isinstance(node, allowed)] == []
    loops = (ast.For, ast.While, ast.If, ast.FunctionDef, ast.Lambda, ast.comprehension)
    assert [type(node).__name__ for node in ast.walk(tree) if isinstance(node, loops)] == []


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_a_rows_names_are_distinct_and_its_modes_known(vendor):
    names = vendor.hami
    keys = [names.count, *names.shares, names.use_type, names.no_use_type, names.use_uuid, names.no_use_uuid]
    keys += [names.numa_bind, names.mode]
    assert len(set(keys)) == len(keys)
    assert all("/" in key for key in keys)
    assert set(names.modes.values()) <= MODES
    assert BY_COUNT[names.count] is vendor
    assert canonical_vendor(vendor.tensor_fusion.upper()) == vendor.name


def _strings_in_code(path):
    """String constants of a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_no_vendor_is_named_in_the_rest_of_the_pure_half(vendor):
    assert PURE
    domain = vendor.hami.count.partition("/")[0]
    found = [path.name for path in PURE for text in _strings_in_code(path) if domain in text]
    assert found == []


def test_foreign_resources_are_recognised_and_ours_are_not():
    assert foreign_resource("amd.com/gpu")
    assert foreign_resource("nvidia.com/mig-1g.5gb")
    assert not foreign_resource("nvidia.com/gpu")
    assert not foreign_resource("example.com/widget")
    assert canonical_vendor("nobody") is None
