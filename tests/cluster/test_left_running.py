"""A cluster that a person leaves running: it outlives its starter, and ``down`` takes all of it away."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cluster.engine.service import wait_until
from cluster.engine.sweep import command_lines

TOOL = Path(__file__).parents[2] / "tools/real_cluster.py"


def run_tool(folder, *arguments):
    return subprocess.run(
        [sys.executable, TOOL, *arguments],
        env={**os.environ, "TESSERA_CLUSTER": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def programs_in(folder):
    """Processes whose command line names the folder."""
    return [pid for pid, words in command_lines() if any(str(folder).encode() in word for word in words)]


def test_a_cluster_outlives_its_starter_until_it_is_ended(engine, tmp_path):
    folder = tmp_path / "cluster"
    started = run_tool(folder, "up", "--simulated")
    try:
        assert started.returncode == 0, started.stderr
        assert f"export KUBECONFIG={folder}/kubeconfig" in started.stdout
        programs = json.loads((folder / "cluster.json").read_text())["programs"]
        assert list(programs) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        assert {pid for pid, _ in programs.values()} <= set(programs_in(folder))
        again = run_tool(folder, "up", "--simulated")
        assert "a cluster runs already" in again.stdout
    finally:
        ended = run_tool(folder, "down")
    assert ended.stdout == "the cluster is gone\n"
    wait_until(lambda: not programs_in(folder), "its programs are gone", 120)
    assert not folder.exists()
    assert run_tool(folder, "down").stdout == "no cluster runs\n"
