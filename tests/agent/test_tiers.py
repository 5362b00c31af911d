"""The three tiers on a whole agent: what is published and shown, what a container without the limiter can take,
and a driver that is replaced under the agent.
"""

import asyncio
import signal
import sys
from pathlib import Path

import pynvml
import pytest
from grpclib.exceptions import GRPCError

from agent.test_gate import ask, bundle_of, state_of
from agent.tree import MIB, real_container, real_root, run_in
from agent.world import Rig, a_grant, an_allocation, until
from tessera.agent.fence import Held
from tessera.agent.fence_nvml import NvmlFence
from tessera.agent.fences import TierPolicy
from tessera.agent.store import read_region
from tessera.agent.upgrade import Upgrade, upgrade_of
from tessera.runtime.kube.port import EVENTS, GPU_NODES, NODES, PODS, PatchType
from tessera.runtime.native import LIMITER, NATIVE
from tessera.runtime.nvml import MACHINE_VARIABLE
from tessera.wire.kube.names import ALLOCATION

ROOT = real_root()
NEEDS_CGROUPS = pytest.mark.skipif(ROOT is None, reason="no cgroup can be made on this machine")
STATE = "nvidia.com/gpu-driver-upgrade-state"
TENANT = NATIVE / "sim" / "tenant"
R615 = "driver=615.71.09"


def a_rig(tmp_path, words=R615, **settings):
    """A rig whose machine has another driver."""
    rig = Rig(tmp_path, settings={"cgroup_root": ROOT or tmp_path, **settings})
    path = Path(rig.machine.description)
    first, rest = path.read_text().split("\n", 1)
    path.write_text(f"{first} {words}\n{rest}")
    return rig


def page_of(rig):
    return rig.parts.metrics.render().decode()


async def published(rig):
    await until(lambda: rig.parts.publisher.published is not None, "published")
    return (await rig.cluster.get(GPU_NODES, "n1", dict))["status"]


class Started:
    """A fresh pod's container with 1,024 MiB in a cgroup of the kernel's tree, with its first process."""

    def __init__(self, rig, directory):
        self.rig, self.directory = rig, directory

    async def __aenter__(self):
        rig = self.rig
        await rig.registered()
        self.pod = await rig.bind()
        self._container = real_container(ROOT, self.pod.metadata.uid, "a" * 64)
        self.group = self._container.__enter__()
        answer = await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
        self.process = run_in(self.group, ["sleep", "600"], {})
        procs = self.group / "cgroup.procs"
        await until(lambda: str(self.process.pid) in procs.read_text().split(), "it is in its cgroup")
        bundle = bundle_of(rig, answer, self.directory / "bundle")
        self.state = {**state_of(self.pod, bundle), "pid": self.process.pid}
        return self

    async def __aexit__(self, *failed):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._container.__exit__(None, None, None)

    def held(self):
        return NvmlFence(self.rig.parts.machine.group_limits, lambda _: None).held(self.rig.uuids[0], self.group)

    async def tenant(self, *arguments):
        """The tenant without the limiter."""
        return await self.run(str(TENANT), *arguments)

    async def run(self, *command, **environment):
        """A program without the limiter, as ``env -i`` or another libc makes it: what it says, and its exit
        status.
        """
        machine = str(self.rig.machine.description)
        environment |= {MACHINE_VARIABLE: machine, "LD_LIBRARY_PATH": str(NATIVE / "sim")}
        process = run_in(self.group, command, environment)
        said, _ = await asyncio.to_thread(process.communicate, timeout=60)
        return said, process.returncode


@NEEDS_CGROUPS
def test_the_driver_holds_what_runs_without_the_limiter_and_everybody_is_shown_that_it_does(tmp_path):
    async def scenario():
        async with a_rig(tmp_path) as rig, Started(rig, tmp_path) as container:
            assert await ask(rig, container.state) == (0, "")
            said, code = await container.tenant("fill", "100")
            assert (code, "1000" in said, "1100" in said) == (0, True, False), said
            page, who = page_of(rig), 'namespace="team",pod="p",container="main"'
            assert f'tessera_container_driver_limit_bytes{{{who},device="{rig.uuids[0]}"}} {1024 * MIB}' in page
            assert f'tessera_container_tier{{{who},tier="driver"}} 1' in page
            assert 'tessera_driver_limits_total{outcome="set"} 1' in page
            assert 'tessera_isolation_info{isolation="driver"} 1' in page
            assert (await published(rig))["isolation"] == "driver"
            container.process.send_signal(signal.SIGKILL)
            container.process.wait()
            await until(lambda: rig.parts.keeper.counts["undone"] == 1, "the limit is undone")
            assert container.held() == Held(None, 0)

    asyncio.run(scenario())


MANAGED = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value >> 20, cuda.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(2000 << 20), 1))
"""


@NEEDS_CGROUPS
def test_under_the_drivers_limit_the_limiter_still_counts_managed_memory(tmp_path):
    """The driver counts it as the system's. Both show the share as the whole device."""

    async def scenario():
        async with a_rig(tmp_path) as rig, Started(rig, tmp_path) as container:
            assert await ask(rig, container.state) == (0, "")
            share = rig.parts.store.find(container.pod.metadata.uid, "main")
            limiter = {"LD_PRELOAD": str(LIMITER), "TESSERA_REGION": str(share.region)}
            assert (await container.run(sys.executable, "-c", MANAGED))[0] == "1024 0\n", "by the driver alone"
            assert (await container.run(sys.executable, "-c", MANAGED, **limiter))[0] == "1024 2\n"
            assert read_region(share.region).devices[0].refused == 1

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_a_limit_outlives_the_agent_and_the_next_one_knows_it(tmp_path):
    async def scenario():
        async with a_rig(tmp_path) as rig, Started(rig, tmp_path) as container:
            assert (await ask(rig, container.state))[0] == 0
            await rig.stop_agent()
            said, code = await container.tenant("fill", "100")
            assert (code, "1100" in said) == (0, False), said
            await rig.start_agent()
            await until(lambda: 'tier="driver"} 1' in page_of(rig), "the next agent shows it")
            assert container.held() == Held(1024 * MIB, 0)

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_the_drivers_limit_follows_a_share_that_is_changed_while_it_runs(tmp_path):
    """kai 5, live resize: from the pod's new allocation to the driver, without a restart."""

    async def scenario():
        async with a_rig(tmp_path) as rig, Started(rig, tmp_path) as container:
            assert (await ask(rig, container.state))[0] == 0
            for mib in (4096, 512):
                grants = {"main": (a_grant(rig.uuids[0], mib),)}
                text = an_allocation(container.pod.metadata.uid, grants, {"main": 37})
                patch = {"metadata": {"annotations": {ALLOCATION: text}}}
                await rig.cluster.patch(PODS, "p", patch, dict, namespace="team", type_=PatchType.MERGE)
                limit = Held(mib * MIB, 0)
                await until(lambda limit=limit: container.held() == limit, f"{mib} MiB are in force", 10)
            assert rig.parts.keeper.counts["changed"] == 2
            assert rig.parts.keeper.counts["restored"] == 0

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_a_limit_that_somebody_takes_away_is_back_and_the_pod_is_told(tmp_path):
    """kai 5, tampering, and proof of enforcement within 10 s."""

    async def scenario():
        async with a_rig(tmp_path) as rig, Started(rig, tmp_path) as container:
            assert (await ask(rig, container.state))[0] == 0
            limits = rig.parts.machine.group_limits()
            assert limits.set(rig.uuids[0], str(container.group), None) is None
            await until(lambda: rig.parts.keeper.counts["restored"] == 1, "it is noticed", 10)
            assert container.held() == Held(1024 * MIB, 0)
            await rig.parts.recorder.flush()
            events = (await rig.cluster.list(EVENTS, dict)).items
            (event,) = [e for e in events if e["reason"] == "MemoryLimitChanged"]
            assert "was 1,024 MiB and is none; it was set again" in event["note"]
            assert event["regarding"]["name"] == "p"

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_a_container_whose_limit_cannot_be_had_again_is_ended_where_that_is_the_policy(tmp_path, monkeypatch):
    async def scenario():
        async with a_rig(tmp_path, kill=True) as rig, Started(rig, tmp_path) as container:
            assert (await ask(rig, container.state))[0] == 0
            limits = rig.parts.machine.group_limits()
            assert limits.set(rig.uuids[0], str(container.group), None) is None
            monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1+:4")
            pynvml.nvmlInit()  # reads it
            pynvml.nvmlShutdown()
            await until(lambda: container.process.poll() is not None, "it is ended", 10)
            assert container.process.returncode == -signal.SIGKILL
            assert rig.parts.keeper.counts["lost"] == 1
            assert "tessera_killed_processes 1" in page_of(rig)
            await rig.parts.recorder.flush()
            notes = [e["note"] for e in (await rig.cluster.list(EVENTS, dict)).items]
            assert any("it cannot be set again" in n and "its processes were ended" in n for n in notes)
            monkeypatch.setenv("TESSERA_SIM_FAIL", "")
            pynvml.nvmlInit()
            pynvml.nvmlShutdown()

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_no_container_starts_whose_limit_cannot_be_set(tmp_path, monkeypatch):
    async def scenario():
        async with a_rig(tmp_path) as rig, Started(rig, tmp_path) as container:
            monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1+:4")
            pynvml.nvmlInit()  # reads it
            pynvml.nvmlShutdown()
            code, said = await ask(rig, container.state)
            assert code == 1
            assert "container main of pod team/p is not started: the driver limits no memory" in said
            assert "run the agent privileged" in said
            assert rig.parts.store.find(container.pod.metadata.uid, "main").gated == ""
            assert 'tessera_driver_limits_total{outcome="refused"} 1' in page_of(rig)
            monkeypatch.setenv("TESSERA_SIM_FAIL", "")
            pynvml.nvmlInit()
            pynvml.nvmlShutdown()
            assert await ask(rig, container.state) == (0, "")

    asyncio.run(scenario())


@NEEDS_CGROUPS
@pytest.mark.parametrize(
    ("words", "tier"),
    [("driver=550.90.07", "hook"), (f"{R615} memacct=off", "hook"), (R615, "driver")],
)
def test_the_strongest_tier_that_the_driver_has_is_chosen_and_said(tmp_path, words, tier):
    """kai 5, memory wall: the same pod on an old driver, one without accounting, and a new one."""

    async def scenario():
        async with a_rig(tmp_path, words) as rig, Started(rig, tmp_path) as container:
            assert await ask(rig, container.state) == (0, "")
            assert (await published(rig))["isolation"] == tier
            assert f'container="main",tier="{tier}"}} 1' in page_of(rig)

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_a_node_that_must_have_the_drivers_limit_hands_out_nothing_without_it(tmp_path):
    async def scenario():
        async with a_rig(tmp_path, "driver=550.90.07", tier=TierPolicy.DRIVER) as rig:
            await until(lambda: len(rig.kubelet.healthy) == 16, "listed")
            assert set(rig.kubelet.healthy.values()) == {0}
            status = await published(rig)
            assert status["isolation"] == "report"
            assert "it takes driver r615 or newer" in status["message"]
            await rig.bind()
            with pytest.raises(GRPCError, match="r615 or newer"):
                await rig.kubelet.allocate("tessera.dev/ticket-1", 6)

    asyncio.run(scenario())


@NEEDS_CGROUPS
def test_an_agent_that_may_not_set_limits_says_so_and_leaves_it_to_the_limiter(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1+:4")

    async def scenario():
        async with a_rig(tmp_path) as rig:
            status = await published(rig)
            assert status["isolation"] == "hook", "said, and not left to be guessed"
            assert "run the agent privileged" in status["message"]

    asyncio.run(scenario())


# A driver that is replaced
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["", "unknown", "upgrade-required", "uncordon-required", "upgrade-done"])
def test_a_driver_that_nobody_replaces_now_is_kept(state):
    assert upgrade_of({STATE: state}) == Upgrade()
    assert upgrade_of(None) == upgrade_of({"nvidia.com/gpu.deploy.client": "true"}) == Upgrade()


@pytest.mark.parametrize("state", ["cordon-required", "wait-for-jobs-required"])
def test_pods_that_may_still_run_are_watched_and_no_new_ones_come(state):
    upgrade = upgrade_of({STATE: state})
    assert not upgrade.lets_go
    assert state in upgrade.why


@pytest.mark.parametrize(
    "labels",
    [
        {STATE: "pod-deletion-required"},
        {STATE: "drain-required"},
        {STATE: "pod-restart-required"},
        {STATE: "validation-required"},
        {STATE: "upgrade-failed"},
        {STATE: "a-state-of-a-later-operator"},
        {STATE: "upgrade-done", "nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"},
        {"nvidia.com/gpu.deploy.device-plugin": "paused-for-mig-change"},
    ],
)
def test_a_driver_that_goes_is_let_go_of(labels):
    assert upgrade_of(labels).lets_go


async def label(rig, value):
    patch = {"metadata": {"labels": {STATE: value}}}
    await rig.cluster.patch(NODES, "n1", patch, dict, type_=PatchType.MERGE)


def is_open(rig):
    """Whether this process has the driver open: NVML's word, and the kernel's."""
    try:
        pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError_Uninitialized:
        return rig.machine.description.name in Path("/proc/self/maps").read_text()
    return True


def test_an_agent_lets_go_of_a_driver_that_is_replaced_and_comes_back(tmp_path):
    """kai 6, row 13: a daemon that held on had the driver's pod crash, and the node lose its devices."""

    async def scenario():
        async with a_rig(tmp_path) as rig:
            await rig.registered()
            assert is_open(rig)
            await label(rig, "pod-restart-required")
            await until(lambda: not is_open(rig), "nothing of the driver is held", 10)
            await until(lambda: set(rig.kubelet.healthy.values()) == {0}, "no tickets are offered")
            await rig.bind()
            with pytest.raises(GRPCError, match=r"driver is being replaced .its label .* is pod-restart-required"):
                await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            await until(lambda: rig.healthy() == [False, False], "the devices are not healthy")
            assert "is being replaced" in rig.node_status()["message"]
            rig.parts.node.look()
            rig.parts.node.take_faults()
            assert not is_open(rig), "a later look does not open it"
            await label(rig, "upgrade-done")
            await until(lambda: rig.healthy() == [True, True], "the devices are back", 10)
            assert is_open(rig)
            await until(lambda: 0 not in rig.kubelet.healthy.values(), "tickets are offered")
            answer = await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            assert [d.name for d in answer.cdi_devices] == [f"tessera.dev/gpu={rig.uuids[0]}"]

    asyncio.run(scenario())


def test_an_agent_on_a_cordoned_node_watches_on_and_hands_out_nothing(tmp_path):
    async def scenario():
        async with a_rig(tmp_path) as rig:
            await rig.registered()
            await label(rig, "wait-for-jobs-required")
            await until(lambda: set(rig.kubelet.healthy.values()) == {0}, "no tickets are offered")
            assert is_open(rig)
            await until(lambda: "wait-for-jobs" in (rig.node_status() or {}).get("message", ""), "it is said")

    asyncio.run(scenario())


def test_an_agent_whose_library_is_of_the_driver_before_ends_for_its_successor(tmp_path, monkeypatch):
    async def scenario():
        async with a_rig(tmp_path) as rig:
            await rig.registered()
            await label(rig, "pod-restart-required")
            await until(lambda: not is_open(rig), "nothing of the driver is held", 10)
            monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlInitWithFlags:1+:18,nvmlInit_v2:1+:18")
            await label(rig, "upgrade-done")
            await until(rig.shell.stopping.is_set, "the process ends")
            assert rig.shell.exit_code == 1
            monkeypatch.setenv("TESSERA_SIM_FAIL", "")

    asyncio.run(scenario())
