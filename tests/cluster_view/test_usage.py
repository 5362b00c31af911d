"""What is in use: told by agents, and unknown, never nothing, where no agent tells."""

import asyncio

import click
import pytest

from cluster_view.world import A100, T4, devices, place, put_node
from tessera.cli.cluster_lines import top_lines
from tessera.cluster.observe import observe
from tessera.cluster.top import Top, top_devices, top_pods
from tessera.cluster.usage import AGENT_LABELS, read_pages, used_now
from tessera.core.errors import UnavailableError
from tessera.runtime.kube.memory import MemoryCluster
from tessera.runtime.kube.port import PODS, ApiError
from tessera.wire.kube.inventory import GPUNodeStatus

BIG, SMALL = devices("big", A100, A100), devices("small", T4, model="T4")
LABELS = dict(pair.split("=") for pair in AGENT_LABELS.split(","))
MIB = 1024 * 1024

PAGE = f"""\
# HELP tessera_container_memory_used_bytes In use.
# TYPE tessera_container_memory_used_bytes gauge
tessera_container_memory_used_bytes{{namespace="n",pod="p",container="main",device="GPU-big-0"}} {512 * MIB}
tessera_container_memory_peak_bytes{{namespace="n",pod="p",container="main",device="GPU-big-0"}} {768 * MIB + 1}
tessera_container_refused_total{{namespace="n",pod="p",container="main",device="GPU-big-0"}} 3
tessera_container_isolation{{namespace="n",pod="p",container="main",state="enforced"}} 1
tessera_container_isolation{{namespace="m",pod="q",container="main",state="absent"}} 0
tessera_device_memory_used_bytes{{device="GPU-big-0",index="0",model="A100"}} {2048 * MIB}
tessera_device_utilization_ratio{{device="GPU-big-0",index="0",model="A100"}} 0.425
"""


class Proxied(MemoryCluster):
    """A server in memory whose proxy leads to pages that the test writes."""

    def __init__(self) -> None:
        super().__init__()
        self.exposed: dict[str, str | ApiError] = {}

    async def raw(self, path: str) -> bytes:
        page = self.exposed.get(path, ApiError(503, "ServiceUnavailable", "connection refused"))
        if isinstance(page, ApiError):
            raise page
        return page.encode()


async def agent(client: Proxied, node: str, page: str | ApiError | None, port: int = 9402) -> None:
    ports = [{"name": "grpc", "containerPort": 1}, {"name": "metrics", "containerPort": port}]
    body = {
        "metadata": {"name": f"agent-{node}", "labels": LABELS},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "ports": ports}]},
    }
    await client.create(PODS, body, dict, namespace="tessera-system")
    if page is not None:
        path = f"/api/v1/namespaces/tessera-system/pods/agent-{node}:{port}/proxy/metrics"
        client.exposed[path] = page


def tops(page: str | ApiError | None = PAGE) -> tuple[Top, Top]:
    """Pods, and devices, of a cluster whose one agent exposes this page."""

    async def look() -> tuple[Top, Top]:
        client = Proxied()
        await put_node(client, "big", GPUNodeStatus(gate=True, devices=BIG))
        await put_node(client, "small", GPUNodeStatus(gate=True, devices=SMALL))
        await place(client, ("n", "p"), (1024, 300), "big", BIG[:1], 1)
        await place(client, ("m", "q"), (2048, 100), "small", SMALL, 2)
        await agent(client, "big", page)
        used, seen = await used_now(client, "tessera-system"), await observe(client)
        return top_pods(seen, used), top_devices(seen, used)

    return asyncio.run(look())


def test_what_an_agent_tells_stands_beside_the_limits() -> None:
    pods, found = tops()
    other, told = pods.pods
    assert (told.pod, told.memory_used_mib, told.memory_limit_mib, told.refused) == ("p", 512, 1024, 3)
    assert told.memory_peak_mib == 769, "rounded up"
    assert (other.pod, other.memory_used_mib, other.memory_limit_mib) == ("q", None, 2048)
    first, second, third = found.devices
    assert (first.memory_used_mib, first.busy_percent, first.memory_allocated_mib) == (2048, 42.5, 1024)
    assert (second.memory_used_mib, third.busy_percent) == (None, None)
    assert [(s.node, s.why) for s in pods.silent] == [("small", "no agent runs on it")]


def test_what_nobody_tells_is_a_dash_and_never_zero() -> None:
    lines = [click.unstyle(line) for line in top_lines(tops()[0], devices=False)]
    assert lines[1].split() == ["m", "q", "main", "small", "0", "-", "2Gi", "-", "-", "10%", "-", "-"]
    assert lines[2].split() == [
        "n",
        "p",
        "main",
        "big",
        "0",
        "512Mi",
        "1Gi",
        "50%",
        "769Mi",
        "30%",
        "3",
        "enforced",
    ]
    assert lines[-1] == "not known: node small: no agent runs on it"


def test_an_agent_that_does_not_answer_is_named() -> None:
    pods, _ = tops(None)
    silent = {s.node: s.why for s in pods.silent}
    assert "503" in silent["big"]
    assert {row.memory_used_mib for row in pods.pods} == {None}


def test_a_missing_right_is_named_once_for_all() -> None:
    with pytest.raises(UnavailableError, match="you may not get pods/proxy in namespace tessera-system"):
        tops(ApiError(403, "Forbidden", "no"))


@pytest.mark.parametrize("page", ["", "<html>nginx</html>", PAGE[:300], "tessera_device_memory_used_bytes NaN\n"])
def test_a_page_that_is_none_is_not_read_as_zero(page: str) -> None:
    used = read_pages([page])
    assert used.device("tessera_device_memory_used_bytes", "GPU-big-0") is None
    assert used.device("tessera_device_memory_used_bytes", "") is None


def test_one_broken_page_spoils_nobody_elses() -> None:
    used = read_pages(["tessera_device_memory_used_bytes{", PAGE])
    assert used.device("tessera_device_memory_used_bytes", "GPU-big-0") == 2048 * MIB


def test_one_namespace_shows_its_own_pods_only() -> None:
    async def look() -> Top:
        client = Proxied()
        await put_node(client, "big", GPUNodeStatus(gate=True, devices=BIG))
        await place(client, ("n", "p"), (1024, 300), "big", BIG[:1], 1)
        await place(client, ("nn", "q"), (1024, 300), "big", BIG[1:], 2)
        return top_pods(await observe(client), await used_now(client, "tessera-system"), "n")

    assert [row.pod for row in asyncio.run(look()).pods] == ["p"]


def test_one_agent_that_may_not_be_asked_leaves_the_others() -> None:
    async def look() -> Top:
        client = Proxied()
        await put_node(client, "big", GPUNodeStatus(gate=True, devices=BIG))
        await put_node(client, "small", GPUNodeStatus(gate=True, devices=SMALL))
        await agent(client, "big", PAGE)
        await agent(client, "small", ApiError(403, "Forbidden", "no"))
        return top_devices(await observe(client), await used_now(client, "tessera-system"))

    found = asyncio.run(look())
    assert [row.memory_used_mib for row in found.devices] == [2048, None, None]
    assert [silence.node for silence in found.silent] == ["small"]
