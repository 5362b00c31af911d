"""The node's devices: found, lost and found again, whatever the driver does."""

import pytest
from agent.world import Rig

from tessera.agent.driver import DriverFiles
from tessera.agent.machine import Machine
from tessera.agent.payload import install_simulator
from tessera.runtime.nvml import Reading, open_nvml


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path, simulate="3xT4")


def machine_of(rig, description=None):
    from tessera.agent.layout import Layout

    layout = Layout(rig.state)
    return Machine(description or rig.machine.description, lambda: install_simulator(layout))


def test_devices_and_what_containers_need_of_them_are_found(rig):
    machine = machine_of(rig)
    found = machine.look()
    assert [d.uuid for d in found.inventory.devices] == rig.uuids
    assert (found.problem, [d.nodes for d in found.files.devices]) == ("", [(), (), ()])
    assert {m.host.rsplit("/", 1)[1] for m in found.files.mounts} == {"libcuda.so.1", "libnvidia-ml.so.1", "3xTesla-T4"}
    assert all(str(rig.state.parent) in m.host for m in found.files.mounts[:2])
    assert machine.reading(rig.uuids[0]).used_bytes == 0
    assert machine.processes() == ()
    machine.close()
    assert machine.reading(rig.uuids[0]) == Reading(None, None)


def test_a_driver_that_is_missing_is_no_failure_and_is_found_once_it_comes(rig):
    description = rig.machine.description
    text = description.read_text()
    description.write_text("not a description\n")
    machine = machine_of(rig)
    found = machine.look()
    assert (found.inventory.devices, found.files) == ((), DriverFiles(()))
    assert "no NVIDIA driver found" in found.problem
    assert machine.take_faults() == ()
    description.write_text(text)
    assert [d.uuid for d in machine.look().inventory.devices] == rig.uuids
    machine.close()


def test_a_device_that_fails_to_answer_hides_no_other(rig, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceGetUUID:2:15")  # the second device is lost
    machine = machine_of(rig)
    found = machine.look()
    assert [d.uuid for d in found.inventory.devices] == [rig.uuids[0], rig.uuids[2]]
    assert found.problem.startswith("device 1 is set aside: ")
    monkeypatch.delenv("TESSERA_SIM_FAIL")
    assert [d.uuid for d in machine.look().inventory.devices] == rig.uuids
    machine.close()


def test_a_driver_that_reports_no_faults_is_one_without_faults(rig):
    with open_nvml(rig.machine.description) as nvml:
        nvml.inventory()
        assert nvml.watch_faults() is None
        assert nvml.minor(rig.uuids[0]) in (0, None)
