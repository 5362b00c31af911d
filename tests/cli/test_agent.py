"""The agent's flags, as far as they can be wrong, and what it takes away when it leaves."""

import asyncio
import subprocess
import sys

import click
import pytest

from tessera.agent.app import uninstall
from tessera.cli.agent import freezes
from tessera.core.priority import Priority
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import GPU_NODES, GPUS

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""

WRONG = {
    "--simulate": ("9xNothing", "names no known model"),
    "--metrics-bind": ("nowhere", "--metrics-bind"),
    "--escapes": ("pardon", "'warn', 'kill'"),
    "--without-cdi": ("maybe", "'refuse', 'allow'"),
    "--kubeconfig": ("/nowhere", "/nowhere"),
}


@pytest.mark.parametrize("flag", WRONG)
def test_a_wrong_flag_is_named_with_what_would_be_right(tessera, write, flag):
    value, said = WRONG[flag]
    result = tessera("agent", "--kubeconfig", write("kubeconfig", KUBECONFIG), flag, value)
    assert result.exit_code == 2
    assert said in result.output


def test_a_wrong_table_of_faults_is_named(tessera, write):
    policy = write("xid.json", '{"94": {"class": "bad"}}')
    result = tessera("agent", "--kubeconfig", write("kubeconfig", KUBECONFIG), "--xid-policy", policy)
    assert result.exit_code == 2
    assert "xid.json" in result.output


def test_leaving_takes_away_the_spec_and_this_nodes_objects_only(tmp_path):
    async def scenario():
        cluster = MemoryCluster()
        for node in ("n1", "n2"):
            await cluster.create(GPU_NODES, {"metadata": {"name": node}}, dict)
            labels = {"tessera.dev/node": node}
            await cluster.create(GPUS, {"metadata": {"name": f"gpu-{node}", "labels": labels}}, dict)
        (tmp_path / "tessera.dev-gpu.json").write_text("{}")
        (tmp_path / "other.json").write_text("{}")
        for _ in range(2):
            await uninstall(cluster, "n1", tmp_path)
        assert [o["metadata"]["name"] for o in (await cluster.list(GPU_NODES, dict)).items] == ["n2"]
        assert [o["metadata"]["name"] for o in (await cluster.list(GPUS, dict)).items] == ["gpu-n2"]
        assert [path.name for path in tmp_path.iterdir()] == ["other.json"]

    asyncio.run(scenario())


def test_the_agent_loads_nothing_heavy():
    """Its memory is paid on every node."""
    code = (
        "import sys, tessera.cli.agent\n"
        "print([m for m in ('numpy', 'cryptography', 'textual', 'rich', 'sqlite3', 'uvloop') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("low=60", {Priority.LOW: 60.0}),
        ("low=5, medium=300", {Priority.LOW: 5.0, Priority.MEDIUM: 300.0}),
        ("", {}),
    ],
)
def test_who_is_frozen_is_said_by_priority(text, seconds):
    assert freezes(text) == seconds


@pytest.mark.parametrize("text", ["low", "lwo=60", "low=0", "low=-1", "low=1m"])
def test_a_freeze_that_means_nothing_is_refused_with_the_words_that_do(text):
    with pytest.raises(click.BadParameter, match=r"low, medium, high, critical"):
        freezes(text)
