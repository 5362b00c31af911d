"""Fences of containers on a made-up cgroup tree and the simulated driver: put up, looked at, taken down."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.tree import MIB, REGION, Tree
from agent.world import a_container_grant
from tessera.agent.cgroups import CgroupTree
from tessera.agent.fence import Held
from tessera.agent.fence_figures import tier_of
from tessera.agent.fence_nvml import NvmlFence
from tessera.agent.fence_record import read_record, write_record
from tessera.agent.fences import Fences, TierPolicy
from tessera.agent.fencing import FenceKeeper, Outcome
from tessera.agent.grant import encode_grant
from tessera.agent.layout import Layout
from tessera.agent.machine import Machine
from tessera.agent.store import ShareStore

CARDS = ("GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002")
MISC, DMEM, OLD = "driver=615.71.09", "driver=615.71.09 memacct=dmem", "driver=580.65.06"
PID = 4711
FIRST, SECOND = "a" * 64, "b" * 64

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root sets limits")


class Bench:
    """A keeper with a store, a driver and a tree of its own. ``again`` is the next agent on the same disk."""

    def __init__(self, directory: Path, words: str = MISC, policy: TierPolicy = TierPolicy.AUTO) -> None:
        self.directory, self.policy = directory, policy
        self.description = directory / "machine.conf"
        self.tree = Tree(directory / "cgroup", dmem="dmem" in words)
        self.store = ShareStore(Layout(directory / "state"))
        self.proc = directory / "proc"
        self.put("self", self.tree.group("system.slice", "agent"))
        self.describe(words)
        self.machine = Machine(self.description, lambda: directory)
        self.begin()

    def describe(self, words: str) -> None:
        cards = "".join(f"device uuid={uuid} memory_mib=81920\n" for uuid in CARDS)
        self.description.write_text(f"driver {words}\n{cards}")

    def begin(self) -> None:
        found = CgroupTree(self.tree.root, proc=self.proc)
        self.fences = Fences(self.machine, found, self.policy)
        self.keeper = FenceKeeper(self.store, self.fences, found)
        self.losses = []
        self.keeper.told = self.losses.append
        self.look_at_machine()

    def look_at_machine(self) -> None:
        found = self.machine.look()
        if found.inventory.devices:
            self.fences.look(device.uuid for device in found.inventory.devices)

    def put(self, pid: object, group: Path) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        text = f"9:name=systemd:/x:y\n0::/{group.relative_to(self.tree.root)}\n"
        (directory / "cgroup").write_text(text)

    def share(self, memory: int = 1024, *uuids: str):
        grant = a_container_grant(uuid=CARDS[0], memory=memory)
        devices = tuple(msgspec.structs.replace(grant.devices[0], uuid=uuid) for uuid in uuids or CARDS[:1])
        return self.store.put(msgspec.structs.replace(grant, devices=devices))

    def admit(self, share, container_id: str = FIRST):
        """A container of the share starts; why not, and its cgroup."""
        group = self.tree.container(container_id)
        self.put(PID, group)
        return self.keeper.admit(share, PID, container_id), group

    def held(self, group: Path, uuid: str = CARDS[0]):
        return NvmlFence(self.machine.group_limits, lambda _: None).held(uuid, group)

    def interfere(self, group: Path, limit: int | None) -> None:
        limits = self.machine.group_limits()
        assert limits is not None
        assert limits.set(CARDS[0], str(group), limit) is None


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.machine.close()


@pytest.mark.parametrize("words", [MISC, DMEM])
def test_a_container_starts_with_its_limit_in_force(tmp_path, words):
    bench = Bench(tmp_path, words)
    share = bench.share(1024)
    said, group = bench.admit(share)
    assert said == ""
    assert bench.held(group) == Held(1024 * MIB, 0)
    assert bench.keeper.is_fenced(share)
    assert bench.keeper.counts[Outcome.SET] == 1
    bench.machine.close()


def test_every_device_of_a_container_has_its_own_limit(bench):
    share = bench.share(2048, *CARDS)
    said, group = bench.admit(share)
    assert (said, bench.held(group), bench.held(group, CARDS[1])) == ("", Held(2048 * MIB, 0), Held(2048 * MIB, 0))


def test_asking_twice_changes_nothing(bench):
    share = bench.share()
    assert [bench.admit(share)[0] for _ in range(2)] == ["", ""]
    assert bench.held(bench.tree.container(FIRST)) == Held(1024 * MIB, 0)


REFUSALS = {
    "set is forbidden": ("nvmlDeviceSetMemoryLimits_v1:1+:4", "run the agent privileged"),
    "set fails": ("nvmlDeviceSetMemoryLimits_v1:1+:15", "see nvidia-smi"),
    "the card is lost": ("nvmlDeviceGetMemoryLimits_v1:1+:15", "see nvidia-smi"),
    "it is set and is not there": ("nvmlDeviceGetMemoryLimits_v1:1+:3", "holds nothing"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_limit_that_is_not_in_force_keeps_the_container_from_starting(bench, monkeypatch, name):
    calls, why = REFUSALS[name]
    share = bench.share()
    monkeypatch.setenv("TESSERA_SIM_FAIL", calls)
    bench.machine.close()
    bench.machine.look()  # the driver reads what fails when it is opened
    said, _ = bench.admit(share)
    assert said.startswith("tessera: container main of pod team/p is not started: ")
    assert why in said
    assert not bench.keeper.is_fenced(share)
    assert bench.keeper.counts[Outcome.REFUSED] == 1
    record = read_record(share.region.parent)
    assert (record.wanted, record.held) == ({CARDS[0]: 1024 * MIB}, {}), "on disk before anything is set"


def test_a_driver_that_makes_more_of_a_limit_is_given_less_and_never_more(tmp_path):
    bench = Bench(tmp_path, f"{MISC} limit_step_mib=256")
    said, group = bench.admit(bench.share(1000))
    assert said == ""
    assert bench.held(group) == Held(768 * MIB, 0)
    said, _ = bench.admit(bench.store.put(a_container_grant("uid-q", uuid=CARDS[0], memory=200)), SECOND)
    assert "makes 256 MiB of a limit of 200 MiB" in said
    bench.machine.close()


def test_a_container_in_no_cgroup_of_its_own_is_refused(bench):
    share = bench.share()
    bench.put(PID, bench.tree.root)
    assert "is in no cgroup of its own" in bench.keeper.admit(share, PID, FIRST)
    assert "is in no cgroup of its own" in bench.keeper.admit(share, 1, FIRST), "a process that is gone"


def test_an_older_driver_leaves_it_to_the_limiter_unless_that_is_not_enough(tmp_path):
    bench = Bench(tmp_path, OLD)
    share = bench.share()
    assert bench.admit(share)[0] == ""
    assert read_record(share.region.parent) is None
    assert not bench.keeper.is_fenced(share)
    bench.policy = TierPolicy.DRIVER
    bench.begin()
    assert "it takes driver r615 or newer" in bench.admit(share)[0]
    bench.machine.close()


def test_a_person_may_leave_it_to_the_limiter(tmp_path):
    bench = Bench(tmp_path, MISC, TierPolicy.HOOK)
    said, group = bench.admit(bench.share())
    assert (said, bench.held(group)) == ("", Held(None, 0))
    bench.machine.close()


def test_a_node_without_cgroup_v2_leaves_it_to_the_limiter(bench):
    (bench.tree.root / "cgroup.controllers").unlink()
    bench.begin()
    assert bench.admit(bench.share())[0] == ""
    assert bench.fences.problem is not None
    assert "in no tree of cgroup v2" in bench.fences.problem.what


def test_nobody_falls_back_to_the_limiter_because_the_driver_is_away(bench):
    share = bench.share()
    bench.machine.pause("somebody upgrades it")
    bench.look_at_machine()
    said, _ = bench.admit(share)
    assert "the driver is not open" in said
    bench.machine.pause("")
    bench.look_at_machine()
    assert bench.admit(share)[0] == ""


def test_a_limit_that_somebody_raised_is_set_again_and_told(bench):
    """kai 5, proof of enforcement: what the driver holds, not what was injected."""
    share = bench.share()
    _, group = bench.admit(share)
    bench.interfere(group, 8192 * MIB)
    bench.keeper.look()
    assert bench.held(group) == Held(1024 * MIB, 0)
    (loss,) = bench.losses
    assert (loss.is_lost, loss.group) == (False, group)
    assert (
        "on GPU-00000000-0000-4000-8000-000000000001 was 1,024 MiB and is 8,192 MiB; it was set again" in loss.note
    )
    bench.keeper.look()
    assert len(bench.losses) == 1
    assert bench.keeper.is_fenced(share)


def test_a_limit_that_cannot_be_set_again_is_lost_and_told(bench, monkeypatch):
    share = bench.share()
    _, group = bench.admit(share)
    bench.interfere(group, None)
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1+:4")
    bench.machine.close()
    bench.machine.look()
    bench.keeper.look()
    (loss,) = bench.losses
    assert loss.is_lost
    assert "was 1,024 MiB and is none; it cannot be set again" in loss.note
    assert not bench.keeper.is_fenced(share)
    bench.keeper.look()
    assert (len(bench.losses), bench.keeper.counts[Outcome.LOST]) == (1, 1), "it is told once"
    monkeypatch.setenv("TESSERA_SIM_FAIL", "")
    bench.machine.close()
    bench.machine.look()
    bench.keeper.look()
    assert (bench.held(group), bench.keeper.is_fenced(share)) == (Held(1024 * MIB, 0), True)
    assert [loss.is_lost for loss in bench.losses] == [True, False]


def test_what_is_not_known_while_the_driver_is_away_is_no_loss(bench):
    share = bench.share()
    bench.admit(share)
    bench.machine.pause("somebody upgrades it")
    bench.keeper.look()
    assert (bench.losses, bench.keeper.is_fenced(share)) == ([], False)
    bench.machine.pause("")
    bench.look_at_machine()
    bench.keeper.look()
    assert (bench.losses, bench.keeper.is_fenced(share)) == ([], True)


def test_a_device_that_cannot_be_asked_now_is_no_loss_and_keeps_its_fence(bench, monkeypatch):
    share = bench.share()
    bench.admit(share)
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceGetUUID:1+:15")  # both cards are lost
    bench.machine.close()
    bench.look_at_machine()
    bench.keeper.look()
    assert (bench.losses, bench.keeper.is_fenced(share)) == ([], False)
    another = bench.store.put(a_container_grant("uid-q", uuid=CARDS[0]))
    assert "cannot be read now" in bench.admit(another, SECOND)[0]
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1+:10")  # a time-out
    bench.machine.close()
    bench.look_at_machine()
    assert bench.fences.lacking(CARDS) == ()
    monkeypatch.setenv("TESSERA_SIM_FAIL", "")
    bench.machine.close()
    bench.look_at_machine()
    bench.keeper.look()
    assert (bench.losses, bench.keeper.is_fenced(share)) == ([], True)


def test_a_driver_that_is_replaced_by_one_without_limits_is_a_loss_for_what_runs(bench):
    share = bench.share()
    bench.admit(share)
    bench.machine.close()
    bench.describe(OLD)
    bench.look_at_machine()
    bench.keeper.look()
    bench.keeper.look()
    (loss,) = bench.losses
    assert loss.is_lost
    assert "was 1,024 MiB and is none; it cannot be set again" in loss.note
    assert "r615 or newer" in loss.note


def test_a_driver_that_was_replaced_under_a_running_container_gets_its_limits_again(bench):
    share = bench.share()
    _, group = bench.admit(share)
    bench.machine.close()
    bench.describe("driver=616.10")
    bench.look_at_machine()
    assert bench.held(group) == Held(None, 0)
    bench.keeper.look()
    assert bench.held(group) == Held(1024 * MIB, 0)
    assert bench.keeper.counts[Outcome.RESTORED] == 1


@pytest.mark.parametrize("mib", [4096, 512])
def test_a_share_that_is_given_more_or_less_while_it_runs_has_that_limit(bench, mib):
    """kai 5, live resize."""
    share = bench.share(1024)
    _, group = bench.admit(share)
    grant = msgspec.structs.replace(
        share.grant, devices=(msgspec.structs.replace(share.grant.devices[0], memory_limit_mib=mib),)
    )
    (share.region.parent / "share.json").write_bytes(encode_grant(grant))
    changed = replace(share, grant=grant)
    bench.keeper.follow(changed)
    assert bench.held(group) == Held(mib * MIB, 0)
    assert (bench.losses, bench.keeper.counts[Outcome.CHANGED]) == ([], 1)
    bench.keeper.look()
    assert bench.keeper.counts[Outcome.CHANGED] == 1


def test_a_limit_is_undone_when_the_last_process_of_its_cgroup_is_gone(bench):
    share = bench.share()
    _, group = bench.admit(share)
    bench.tree.populate(group, populated=False)
    bench.keeper.look()
    assert bench.held(group) == Held(None, 0)
    assert read_record(share.region.parent) is None
    assert bench.keeper.counts[Outcome.UNDONE] == 1


def test_nothing_is_undone_of_a_cgroup_that_took_the_place_of_ours(bench):
    share = bench.share()
    _, group = bench.admit(share)
    record = read_record(share.region.parent)
    write_record(share.region.parent, msgspec.structs.replace(record, inode=record.inode + 1))
    bench.interfere(group, 77 * MIB)
    bench.keeper.look()
    assert bench.held(group) == Held(77 * MIB, 0)
    assert (read_record(share.region.parent), bench.losses) == (None, [])


def test_a_record_goes_with_its_cgroup_even_while_the_driver_is_away(bench):
    share = bench.share()
    _, group = bench.admit(share)
    bench.machine.pause("somebody upgrades it")
    bench.tree.populate(group, populated=False)
    bench.keeper.look()
    assert bench.keeper.holds("uid-p"), "it cannot be undone yet"
    bench.tree.remove(group)
    bench.keeper.look()
    assert not bench.keeper.holds("uid-p")


def test_the_next_agent_undoes_what_one_left_that_was_killed_half_way(bench):
    """The record is on disk before the limit is: between the two, and between the limit and its proof."""
    share = bench.share()
    _, group = bench.admit(share)
    record = read_record(share.region.parent)
    write_record(share.region.parent, msgspec.structs.replace(record, held={}))
    bench.begin()
    bench.keeper.look()
    assert bench.held(group) == Held(1024 * MIB, 0), "its container may be starting: the gate asks again"
    assert not bench.keeper.is_fenced(share)
    bench.tree.populate(group, populated=False)
    bench.keeper.look()
    assert bench.held(group) == Held(None, 0)
    assert not bench.keeper.holds("uid-p")


def test_the_next_agent_knows_which_containers_are_fenced(bench):
    share = bench.share()
    bench.admit(share)
    bench.begin()
    assert not bench.keeper.is_fenced(share)
    bench.keeper.look()
    assert bench.keeper.is_fenced(share)
    assert bench.keeper.standing(share) == {CARDS[0]: 1024 * MIB}


def test_a_container_that_starts_again_leaves_nothing_on_the_cgroup_before(bench):
    share = bench.share()
    _, before = bench.admit(share, FIRST)
    bench.tree.populate(before, populated=False)
    _, now = bench.admit(share, SECOND)
    assert (bench.held(before), bench.held(now)) == (Held(None, 0), Held(1024 * MIB, 0))


def test_every_container_of_a_pod_has_its_own_limit(bench):
    """kai 5, several fractions in a pod: theirs holds one."""
    groups = {}
    for container, mib in (("init", 256), ("main", 1024), ("side", 512)):
        share = bench.store.put(a_container_grant(container=container, uuid=CARDS[0], memory=mib))
        said, groups[container] = bench.admit(share, container[0] * 64)
        assert said == ""
    assert [bench.held(group).limit // MIB for group in groups.values()] == [256, 1024, 512]


def test_a_device_that_could_not_be_asked_is_asked_again(bench, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1:10")  # a time-out
    bench.machine.close()
    bench.begin()
    assert bench.fences.lacking(CARDS) == (CARDS[0],)
    bench.look_at_machine()
    assert bench.fences.lacking(CARDS) == ()


def test_a_person_who_leaves_it_to_the_limiter_from_now_on_ends_no_limit_that_holds(bench):
    share = bench.share()
    _, group = bench.admit(share)
    bench.policy = TierPolicy.HOOK
    bench.begin()
    bench.keeper.look()
    assert bench.held(group) == Held(1024 * MIB, 0)
    assert (bench.keeper.is_fenced(share), bench.losses) == (False, []), "nobody proves it any more"
    bench.tree.populate(group, populated=False)
    bench.keeper.look()
    assert (bench.keeper.holds("uid-p"), bench.keeper.counts[Outcome.UNDONE]) == (False, 0)


def test_a_damaged_record_is_no_fence(bench):
    share = bench.share()
    bench.admit(share)
    (share.region.parent / "fence").write_bytes(b'{"v": 1, "group": 7')
    bench.begin()
    bench.keeper.look()
    assert not bench.keeper.is_fenced(share)


def test_a_container_that_only_part_of_can_be_limited_is_no_better_than_the_limiter(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_SIM_FAIL", "nvmlDeviceSetMemoryLimits_v1:1:3")  # the first card is asked first
    bench = Bench(tmp_path)
    share = bench.share(1024, *CARDS)
    said, group = bench.admit(share)
    assert (said, bench.held(group, CARDS[1])) == ("", Held(1024 * MIB, 0))
    assert not bench.keeper.is_fenced(share)
    assert bench.fences.lacking(CARDS) == (CARDS[0],)
    bench.machine.close()


def test_the_kernel_holds_the_memory_of_a_device_whose_driver_charges_there(tmp_path):
    """AMD's and Intel's: the driver's own limits are NVIDIA's alone."""
    bench = Bench(tmp_path, OLD)
    bench.machine.close()
    (bench.tree.root / "dmem.capacity").write_text(f"{REGION} {81920 * MIB}\ndrm/0000:08:00.0/vram 0\n")
    (bench.tree.root / "cgroup.controllers").write_text("cpu dmem\n")
    bench.tree.dmem = True
    bench.begin()
    share = bench.share(1024)
    said, group = bench.admit(share)
    assert said == ""
    assert (group / "dmem.max").read_text() == f"{REGION} {1024 * MIB}\n"
    assert bench.keeper.standing(share) == {CARDS[0]: 1024 * MIB}
    (group / "dmem.max").write_text(f"{REGION} max\n")
    bench.keeper.look()
    assert bench.keeper.counts[Outcome.RESTORED] == 1
    bench.tree.populate(group, populated=False)
    bench.keeper.look()
    assert (group / "dmem.max").read_text().endswith(f"{REGION} max\n")
    bench.machine.close()


@pytest.mark.parametrize(
    ("isolation", "is_fenced", "tier"),
    [
        ("", True, ""),
        ("enforced", True, "driver"),
        ("absent", True, "driver"),
        ("enforced", False, "hook"),
        ("unverified", False, "unverified"),
        ("absent", False, "report"),
    ],
)
def test_a_containers_tier_is_what_holds_its_memory(isolation, is_fenced, tier):
    assert tier_of(isolation=isolation, is_fenced=is_fenced) == tier
