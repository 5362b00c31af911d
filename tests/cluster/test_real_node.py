"""The harness's real node: pods really run on it, it survives restarts of its programs."""

import subprocess
from pathlib import Path

from cluster.engine.images import glibc_files, make_image
from cluster.engine.plane import ControlPlane
from cluster.engine.pods import await_phase, run_pod
from cluster.engine.service import wait_until


def container_of(plane: ControlPlane, namespace: str, name: str) -> tuple[str, int]:
    """Which container the pod runs, and how often it was started again."""
    (status,) = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


def test_a_pod_runs_and_what_it_wrote_is_read(control_plane, real_node, namespace):
    run_pod(control_plane, namespace, "talks", args=["echo one; echo two; cat /proc/self/cgroup"])
    await_phase(control_plane, namespace, "talks", "Succeeded")
    lines = real_node.log_of(namespace, "talks").splitlines()
    assert lines[:2] == ["one", "two"]
    uid = control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods/talks")["metadata"]["uid"]
    assert f"kubepods/besteffort/pod{uid}/" in lines[2]


def test_an_image_of_a_dynamic_program_runs_on_its_own_loader(control_plane, real_node, namespace, tmp_path):
    files = glibc_files(Path("/usr/bin/env"))
    real_node.import_image(make_image(tmp_path, "engine.test/env:1", files, ["/usr/bin/env"], {"GIVEN": "yes"}))
    run_pod(control_plane, namespace, "env", "engine.test/env:1")
    await_phase(control_plane, namespace, "env", "Succeeded")
    assert "GIVEN=yes" in real_node.log_of(namespace, "env").splitlines()


def test_an_image_of_one_static_file_runs(control_plane, real_node, namespace, tmp_path):
    source = tmp_path / "says.c"
    source.write_text('#include <unistd.h>\nint main(void) { return write(1, "static\\n", 7) != 7; }\n')
    subprocess.run(["gcc", "-static", "-o", tmp_path / "says", source], check=True)
    real_node.import_image(make_image(tmp_path, "engine.test/says:1", {"/says": tmp_path / "says"}, ["/says"]))
    run_pod(control_plane, namespace, "says", "engine.test/says:1")
    await_phase(control_plane, namespace, "says", "Succeeded")
    assert real_node.log_of(namespace, "says") == "static\n"


def test_a_running_container_survives_the_kubelet_and_the_runtime(control_plane, real_node, namespace):
    run_pod(control_plane, namespace, "stays", args=["echo started; sleep 1000"])
    await_phase(control_plane, namespace, "stays", "Running")
    wait_until(lambda: real_node.log_of(namespace, "stays") == "started\n", "it started", 120)
    before = container_of(control_plane, namespace, "stays")
    real_node.containerd.restart()
    real_node.kubelet.restart()
    real_node.await_ready()
    run_pod(control_plane, namespace, "after", args=["echo after"])
    await_phase(control_plane, namespace, "after", "Succeeded")
    assert container_of(control_plane, namespace, "stays") == before
    assert real_node.log_of(namespace, "stays") == "started\n"
