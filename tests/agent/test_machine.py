"""The node's devices: found, lost and found again, whatever the driver does."""

import pytest

from agent.world import Rig
from tessera.agent.driver import DriverFiles
from tessera.agent.layout import Layout
from tessera.agent.machine import Machine
from tessera.agent.payload import install_simulator
from tessera.runtime.nvml import Reading, open_nvml


@pytest.fixture
def rig(tmp_path):
    # One process sees one simulated machine for its life: the one that all tests of the agent have.
    return Rig(tmp_path)


def machine_of(rig, description=None):
    layout = Layout(rig.state)
    return Machine(description or rig.machine.description, lambda: install_simulator(layout))


def test_devices_and_what_containers_need_of_them_are_found(rig):
    machine = machine_of(rig)
    found = machine.look()
    assert [d.uuid for d in found.inventory.devices] == rig.uuids
    assert (found.problem, [d.nodes for d in found.files.devices]) == ("", [(), ()])
    assert {m.host.rsplit("/", 1)[1] for m in found.files.mounts} == {
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "2xNVIDIA-A100-SXM4-80GB",
    }
    assert all(str(rig.state.parent) in m.host for m in found.files.mounts[:2])
    assert machine.reading(rig.uuids[0]).used_bytes == 0
    assert machine.processes() == ()
    machine.close()
    assert machine.reading(rig.uuids[0]) == Reading(None, None)


def test_a_driver_that_is_missing_is_no_failure_and_is_found_once_it_comes(rig, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlInitWithFlags:1+:9,nvmlInit_v2:1+:9")
    machine = machine_of(rig)
    found = machine.look()
    assert (found.inventory.devices, found.files) == ((), DriverFiles(()))
    assert "no NVIDIA driver found" in found.problem
    assert machine.take_faults() == ()
    monkeypatch.setenv("TESSERA_SIM_FAIL", "")
    assert [d.uuid for d in machine.look().inventory.devices] == rig.uuids
    machine.close()


def test_a_device_whose_memory_the_driver_does_not_tell_is_set_aside(rig, monkeypatch):
    """kai 6, row 3: a card that shares the system's memory ran without a limit, or waited for ever."""
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceGetMemoryInfo:1+:3,nvmlDeviceGetMemoryInfo_v2:1+:3")
    machine = machine_of(rig)
    found = machine.look()
    assert (found.inventory.devices, found.problem) == (
        (),
        "device 0 is set aside: Not Supported; device 1 is set aside: Not Supported",
    )
    monkeypatch.setenv("TESSERA_SIM_FAIL", "")
    assert [d.uuid for d in machine.look().inventory.devices] == rig.uuids
    machine.close()


def test_a_device_that_fails_to_answer_hides_no_other(rig, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceGetUUID:2:15")  # the second device is lost
    machine = machine_of(rig)
    found = machine.look()
    assert [d.uuid for d in found.inventory.devices] == rig.uuids[:1]
    assert found.problem.startswith("device 1 is set aside: ")
    assert machine.reading(rig.uuids[0]).used_bytes is not None, "the others are still watched"
    monkeypatch.setenv("TESSERA_SIM_FAIL", "")
    assert [d.uuid for d in machine.look().inventory.devices] == rig.uuids
    machine.close()


def test_a_driver_that_reports_no_faults_is_one_without_faults(rig):
    with open_nvml(rig.machine.description) as nvml:
        nvml.inventory()
        assert nvml.watch_faults() is None
        assert nvml.minor(rig.uuids[0]) in (0, None)
