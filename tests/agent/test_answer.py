"""What a container is given, with CDI and without, and the spec behind the CDI names."""

from pathlib import Path

import pytest

from agent.world import UUID, a_container_grant
from builders import a_device
from tessera.agent.answer import AnswerMount, Sources, answer_of, has_cdi
from tessera.agent.cdi import remove_spec, spec_of, write_spec
from tessera.agent.driver import DriverFiles, DriverNode, real_files, simulated_files
from tessera.core.errors import UnavailableError
from tessera.vendors.nvidia import NVIDIA
from tessera.wire.kube.cdi import decode_spec, encode_spec, injected_devices, qualified

SOURCES = Sources("/s/region", "/l/lib.so", "/l/preload")
FILES = DriverFiles(
    (DriverNode(UUID, 0, ("/dev/gpu0",)), DriverNode("GPU-b", 1, ("/dev/gpu1",))),
    ("/dev/gpuctl",),
    (AnswerMount("/d/libcuda.so.1", "/usr/lib/libcuda.so.1"), AnswerMount("/m", "/run/m", read_only=False)),
    (("VISIBLE", "void"),),
)
GATE = Path("/b/tessera-gate")


def a_spec():
    return spec_of(FILES, GATE, Path("/run/gate.sock"))


def test_without_cdi_the_same_things_come_one_by_one():
    plain = FILES.plain([UUID])
    answer = answer_of(a_container_grant(), SOURCES, NVIDIA.node, plain)
    assert answer.cdi == ()
    assert answer.devices == ("/dev/gpu0", "/dev/gpuctl")
    assert set(FILES.mounts) < set(answer.mounts)
    assert answer.environment["VISIBLE"] == "void"


def test_with_cdi_devices_and_driver_come_by_name_alone():
    answer = answer_of(a_container_grant(), SOURCES, NVIDIA.node, None)
    assert (answer.cdi, answer.devices, len(answer.mounts)) == ((f"tessera.dev/gpu={UUID}",), (), 3)


RUNTIMES = {"containerd://2.1.9": True, "containerd://1.7.24": True, "containerd://1.6.33": False, "": None,
            "containerd://v1.7.0-rc.1": True, "cri-o://1.34.1": True, "cri-o://1.22.5": False,
            "docker://28.0.0": None, "containerd://": None, "containerd://2": None}  # fmt: skip


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_which_runtimes_inject_cdi_devices_is_known(runtime):
    assert has_cdi(runtime) is RUNTIMES[runtime]


def test_a_spec_is_read_as_it_was_written():
    spec = a_spec()
    assert decode_spec(encode_spec(spec)) == spec
    assert [qualified(device.name) for device in spec.devices] == [qualified(UUID), qualified("GPU-b")]


def test_gate_driver_and_shared_nodes_come_once_and_a_device_with_its_own_node():
    spec = a_spec()
    (hook,) = spec.container_edits.hooks
    assert (hook.hook_name, hook.path, hook.timeout) == ("createRuntime", "/b/tessera-gate", 10)
    assert hook.args == ("tessera-gate", "--socket", "/run/gate.sock", "--timeout", "5")
    assert [node.path for node in spec.container_edits.device_nodes] == ["/dev/gpuctl"]
    assert [[node.path for node in d.container_edits.device_nodes] for d in spec.devices] == [
        ["/dev/gpu0"],
        ["/dev/gpu1"],
    ]


def test_what_a_device_leaves_in_the_environment_names_it():
    environment = tuple(v for device in a_spec().devices for v in device.container_edits.env)
    assert injected_devices(("PATH=/bin", *environment)) == {UUID, "GPU-b"}


def test_the_spec_is_written_on_change_only_and_removed(tmp_path):
    directory = tmp_path / "cdi"
    assert write_spec(directory, a_spec())
    inode = (directory / "tessera.dev-gpu.json").stat().st_ino
    assert not write_spec(directory, a_spec())
    assert (directory / "tessera.dev-gpu.json").stat().st_ino == inode
    assert [path.name for path in directory.iterdir()] == ["tessera.dev-gpu.json"]
    remove_spec(directory)
    remove_spec(directory)
    assert list(directory.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "cdi").write_text("")
    with pytest.raises(UnavailableError, match="--cdi-dir"):
        write_spec(tmp_path / "cdi", a_spec())


@pytest.mark.parametrize("data", [b"", b"[]", b'{"kind": 1}'])
def test_what_is_no_spec_is_refused(data):
    with pytest.raises(ValueError, match="is no CDI spec"):
        decode_spec(data)


def test_a_real_driver_is_described_by_what_is_there(tmp_path):
    """Only nodes and libraries that exist: a spec that names others fails every container."""
    for folder in ("dev", "usr/lib64", "opt/driver"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("dev/nvidia3", "dev/nvidiactl"):
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "dev/nvidia7").write_text("no device node")
    (tmp_path / "opt/driver/libcuda.so.580.1").write_text("")
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.580")
    (tmp_path / "usr/lib64/libcuda.so.580").symlink_to("/opt/driver/libcuda.so.580.1")
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to("/nowhere")
    devices = [
        (a_device("GPU-a", index=0), 3),
        (a_device("GPU-b", index=1), None),
        (a_device("GPU-c", index=2), 7),
    ]
    files = real_files(devices, NVIDIA.node, NVIDIA.visible_devices_env, tmp_path)
    assert [(d.uuid, d.nodes) for d in files.devices] == [("GPU-a", ("/dev/nvidia3",)), ("GPU-c", ())]
    assert files.shared_nodes == ("/dev/nvidiactl",)
    assert {m.host for m in files.mounts} == {"/opt/driver/libcuda.so.580.1"}
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in {m.inside for m in files.mounts}
    assert files.environment == (("NVIDIA_VISIBLE_DEVICES", "void"),)


def test_a_simulated_machine_brings_its_libraries_and_its_state(tmp_path):
    files = simulated_files([a_device()], tmp_path / "machine.conf", tmp_path)
    inside = {mount.inside: mount.read_only for mount in files.mounts}
    assert inside["/run/tessera/driver/libcuda.so.1"]
    assert inside["/run/tessera/machine"] is False
    assert ("TESSERA_SIM_MACHINE", "/run/tessera/machine/machine.conf") in files.environment
