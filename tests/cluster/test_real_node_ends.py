"""What a real node leaves on the machine: nothing, with either containerd. Apart from other tests of a real node,
because a machine has room for one at a time.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.engine.node import PLUGINS, NodeOptions, RealNode, listens
from cluster.engine.pods import await_phase, run_pod
from cluster.engine.service import wait_until
from cluster.engine.sweep import mounts_below, pod_cgroups, pod_processes, shims


@pytest.mark.parametrize("version", ["2", "1.7"])
def test_a_stopped_node_leaves_nothing_behind(fresh_control_plane, bare_machine, version):
    plane = fresh_control_plane
    with RealNode(plane, NodeOptions(containerd=version)) as node:
        run_pod(plane, "default", "left", args=["sleep 1000"])
        await_phase(plane, "default", "left", "Running")
        runtime = plane.api.get("/api/v1/nodes/localhost")["status"]["nodeInfo"]["containerRuntimeVersion"]
        assert runtime.startswith(f"containerd://{version}")
        interfaces = set(Path("/sys/class/net").iterdir())
        assert pod_processes()
        assert shims(node.folder)
        namespaces = set(Path("/run/netns").glob("cni-*"))
        assert namespaces
    assert not pod_processes()
    assert not pod_cgroups()
    assert not shims(node.folder)
    assert not mounts_below(node.folder)
    assert not node.folder.exists()
    assert not listens(PLUGINS / "kubelet.sock")
    assert not namespaces & set(Path("/run/netns").glob("cni-*"))
    wait_until(lambda: set(Path("/sys/class/net").iterdir()) < interfaces, "its interface is gone", 120)


KILLED = """
import sys, time
from pathlib import Path
from cluster.engine.node import RealNode
from cluster.engine.plane import ControlPlane
from cluster.engine.pods import await_phase, run_pod
with ControlPlane(Path(sys.argv[1])) as plane, RealNode(plane) as node:
    run_pod(plane, "default", "orphan", args=["sleep 1000"])
    await_phase(plane, "default", "orphan", "Running")
    print(node.folder, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_run_left_is_removed_by_the_next(control_plane, bare_machine, tmp_path):
    """A killed run's containers and shims are nobody's children: they stay until the next node starts."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        left = Path(run.stdout.readline().strip())
        assert left.is_dir()
        run.kill()
    orphans = pod_processes()
    assert orphans
    assert shims(left)
    with RealNode(control_plane):
        assert not orphans & pod_processes()
        assert not shims(left)
        assert not left.exists()
