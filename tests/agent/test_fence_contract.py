"""What every fence promises, whoever stands behind it, and what each of them does on its own."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.tree import MIB, REGION, Tree
from tessera.agent.cgroups import CgroupTree
from tessera.agent.fence import Held, Refused, put_up, take_down
from tessera.agent.fence_dmem import DmemFence, read_regions, region_of
from tessera.agent.fence_nvml import NvmlFence
from tessera.runtime.nvml import open_nvml

UUID = "GPU-00000000-0000-4000-8000-000000000001"
CARD = f"device uuid={UUID} memory_mib=81920 pci=0000:07:00.0\n"
DRIVERS = {"misc": "driver driver=615.71.09\n", "dmem": "driver driver=615.71.09 memacct=dmem\n"}
SETS_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root sets limits")


class Bench:
    """A fence over a made-up tree; whoever else changes limits does it through another fence of the same kind."""

    def __init__(self, directory, kind, stack, *, words=""):
        self.tree = Tree(directory / "cgroup", dmem=kind != "misc", capacity={REGION: 81920 * MIB})
        tree = CgroupTree(self.tree.root)
        if kind == "kernel":
            self.fence = DmemFence({UUID: REGION}, tree.enable)
            return
        description = directory / "machine.conf"
        description.write_text(DRIVERS[kind].rstrip() + f" {words}\n" + CARD)
        nvml = stack.enter_context(open_nvml(description))
        assert [device.uuid for device in nvml.inventory().devices] == [UUID]
        self.fence = NvmlFence(nvml.group_limits, tree.enable)


@pytest.fixture(params=["misc", "dmem", "kernel"])
def bench(request, tmp_path):
    with ExitStack() as stack:
        yield Bench(tmp_path, request.param, stack)


@SETS_AS_ROOT
def test_what_was_put_up_is_read_back(bench):
    group = bench.tree.container("a" * 64)
    assert put_up(bench.fence, UUID, group, 4000 * MIB) == 4000 * MIB
    assert bench.fence.held(UUID, group) == Held(4000 * MIB, 0)


@SETS_AS_ROOT
def test_a_cgroup_that_nobody_limited_holds_nothing(bench):
    assert bench.fence.held(UUID, bench.tree.container("a" * 64)) == Held(None, 0)


@SETS_AS_ROOT
def test_the_last_limit_counts_and_the_neighbour_has_its_own(bench):
    first, second = bench.tree.container("a" * 64), bench.tree.container("b" * 64)
    put_up(bench.fence, UUID, first, 100 * MIB)
    put_up(bench.fence, UUID, second, 200 * MIB)
    put_up(bench.fence, UUID, first, 50 * MIB)
    assert bench.fence.held(UUID, first) == Held(50 * MIB, 0)
    assert bench.fence.held(UUID, second) == Held(200 * MIB, 0)


@SETS_AS_ROOT
def test_what_was_taken_down_holds_nothing(bench):
    group = bench.tree.container("a" * 64)
    put_up(bench.fence, UUID, group, 100 * MIB)
    assert take_down(bench.fence, UUID, group) is None
    assert bench.fence.held(UUID, group) == Held(None, 0)


@SETS_AS_ROOT
def test_a_cgroup_that_is_gone_is_refused_and_not_made(bench):
    group = bench.tree.container("a" * 64)
    bench.tree.remove(group)
    found = put_up(bench.fence, UUID, group, 100 * MIB)
    assert isinstance(found, Refused)
    assert str(group) in found.what
    assert found.remedy
    assert not group.exists()


@SETS_AS_ROOT
def test_no_cycle_of_containers_leaves_anything_above(bench):
    """kai 5, soft-limit leak: containers end as runtimes end them, with nobody asked before."""
    parent = bench.tree.container("a" * 64).parent
    for cycle in range(300):
        group = bench.tree.container("c" * 64)
        assert put_up(bench.fence, UUID, group, 64 * MIB) == 64 * MIB
        if cycle % 2:
            take_down(bench.fence, UUID, group)
        bench.tree.remove(group)
    assert bench.fence.held(UUID, parent) == Held(None, 0)
    assert not bench.tree.dmem or read_regions(parent / "dmem.min") == {}


@SETS_AS_ROOT
def test_a_driver_that_rounds_up_is_asked_for_less(tmp_path):
    """Its manual's example: 4,000 MiB become 4,096; 15 times 256 MiB is the most that is not too much."""
    with ExitStack() as stack:
        bench = Bench(tmp_path, "misc", stack, words="limit_step_mib=256")
        group = bench.tree.container("a" * 64)
        assert put_up(bench.fence, UUID, group, 4000 * MIB) == 3840 * MIB
        refused = put_up(bench.fence, UUID, group, 100 * MIB)
        assert isinstance(refused, Refused)
        assert "makes 256.0 MiB of a limit of 100 MiB" in refused.what or "256 MiB" in refused.what


def refusing(tmp_path, words, group_of=lambda tree: tree.container("a" * 64), *, monkeypatch=None, dmem=False):
    with ExitStack() as stack:
        tree = Tree(tmp_path / "cgroup", dmem=dmem)
        description = tmp_path / "machine.conf"
        description.write_text(f"driver {words}\n{CARD}")
        nvml = stack.enter_context(open_nvml(description))
        nvml.inventory()
        return put_up(NvmlFence(nvml.group_limits, lambda _: None), UUID, group_of(tree), MIB)


REFUSALS = {
    "old": ("driver=580.65.06", "Function Not Found", "r615 or newer"),
    "off": ("driver=615.71.09 memacct=off", "Not Supported", "RmMemacctMode=3"),
    "no files": ("driver=615.71.09 memacct=dmem", "Not Found", "dmem controller"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_driver_that_refuses_is_told_with_what_to_do(tmp_path, name):
    words, said, remedy = REFUSALS[name]
    found = refusing(tmp_path, words)
    assert isinstance(found, Refused)
    assert said.lower() in found.what.lower()
    assert remedy in found.remedy
    assert not found.is_ours


def test_an_agent_without_the_right_is_told_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1+:4")
    found = refusing(tmp_path, "driver=615.71.09")
    assert isinstance(found, Refused)
    assert "privileged" in found.remedy
    assert found.is_ours


class Deaf:
    """A backend that takes every limit and keeps what it likes; ``keeps`` is what it is found to hold."""

    name = "a deaf driver"

    def __init__(self, keeps):
        self.keeps = keeps

    def held(self, uuid, group):
        return Held(self.keeps, 0)

    def set(self, uuid, group, limit):
        return None


@pytest.mark.parametrize("keeps", [None, 50 * MIB, 200 * MIB])
def test_a_limit_that_reads_back_as_another_is_none(keeps):
    """kai 6, row 10: everything was ready, and nothing was limited."""
    assert isinstance(put_up(Deaf(keeps), UUID, Path("/x"), 100 * MIB), Refused)


@pytest.mark.parametrize("keeps", [100 * MIB, 100 * MIB - 4096, 98 * MIB])
def test_a_limit_that_is_rounded_down_is_one(keeps):
    assert put_up(Deaf(keeps), UUID, Path("/x"), 100 * MIB) == keeps


REGIONS = {
    "drm/0000:08:00.0/vram": 1, "drm/0000:8a:00.0/stolen": 1, "drm/0000:8a:00.0/vram0": 1,
    "drm/0000:8a:00.0/vram1": 1, "nvidia/00000000:02:00.0/vidmem": 1, "drm/card/vram": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("address", "region"),
    [
        ("0000:08:00.0", "drm/0000:08:00.0/vram"),
        ("00000000:08:00.0", "drm/0000:08:00.0/vram"),
        ("0000:8A:00:0", "drm/0000:8a:00.0/vram0"),
        ("0000:09:00.0", None),
        ("0001:08:00.0", None),
        ("0000:02:00.0", None),
        ("nonsense", None),
    ],
)
def test_a_region_is_found_by_its_devices_address_however_it_is_written(address, region):
    assert region_of(address, REGIONS) == region


def test_a_kernel_file_that_is_none_is_refused(tmp_path):
    tree = Tree(tmp_path / "cgroup", dmem=True)
    group = tree.container("a" * 64)
    fence = DmemFence({UUID: REGION}, lambda _: None)
    (group / "dmem.max").write_text("rubbish\n")
    assert isinstance(fence.held(UUID, group), Refused)
    (group / "dmem.max").unlink()
    assert isinstance(fence.set(UUID, group, MIB), Refused)


def test_two_devices_of_one_cgroup_have_a_limit_each(tmp_path):
    tree = Tree(tmp_path / "cgroup", dmem=True)
    group, other = tree.container("a" * 64), "drm/0000:08:00.0/vram"
    fence = DmemFence({UUID: REGION, "GPU-2": other}, lambda _: None)
    assert put_up(fence, UUID, group, 100 * MIB) == 100 * MIB
    assert put_up(fence, "GPU-2", group, 200 * MIB) == 200 * MIB
    (group / "dmem.current").write_text(f"{REGION} 4096\n{other} 8192\n")
    assert fence.held(UUID, group) == Held(100 * MIB, 4096)
    assert fence.held("GPU-2", group) == Held(200 * MIB, 8192)


def test_the_controller_is_enabled_down_to_a_cgroup_and_only_where_the_kernel_has_it(tmp_path):
    """crun enables only what it needs: the files come from the parents' switches."""
    bare = Tree(tmp_path / "bare")
    group = bare.container("a" * 64)
    CgroupTree(bare.root).enable(group)
    assert (group.parent / "cgroup.subtree_control").read_text() == ""
    tree = Tree(tmp_path / "cgroup", dmem=True)
    group = tree.group("kubepods.slice", "pod", "c", dmem=False)
    CgroupTree(tree.root).enable(group)
    switches = [path / "cgroup.subtree_control" for path in (tree.root, group.parents[1], group.parent)]
    assert [switch.read_text() for switch in switches] == ["+dmem"] * 3
    assert (group / "cgroup.subtree_control").read_text() == ""
