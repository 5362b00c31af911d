"""Simulated machines: which devices they have."""

import re

import pytest

from tessera.local.machine import simulated_machine, simulated_uuid


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_STATE_DIR", str(tmp_path))


def uuids(node):
    """What stands in the description, from which the simulated driver has its devices."""
    return re.findall(r"^device uuid=(\S+)", simulated_machine("2xT4", node).description.read_text(), re.MULTILINE)


def test_no_two_nodes_have_a_simulated_device_in_common():
    first, second, alone = uuids("gpu-1"), uuids("gpu-2"), uuids("")
    assert len({*first, *second, *alone}) == 6
    assert uuids("gpu-1") == first, "the same after a restart"


def test_a_simulated_device_without_a_node_is_as_it_ever_was():
    assert simulated_uuid("Tesla T4", 3) == "GPU-51300000-1e57-4000-8000-000000000003"
