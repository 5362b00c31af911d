"""Shares that go before each other, and memory beyond requests: what the agent tells their regions."""

import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tessera.agent.cgroups import Placement
from tessera.agent.governor import DEFAULT_FREEZE, Governor, Memory, Shortage
from tessera.agent.grant import VERSION, ContainerGrant, GrantedDevice
from tessera.agent.layout import Layout
from tessera.agent.reclaim import REFUSE, Reclaimer
from tessera.agent.running import Running
from tessera.agent.store import ShareStore, read_region
from tessera.agent.ticks import Ticker
from tessera.core.priority import Priority
from tessera.runtime.busy import Moment
from tessera.runtime.governing import Contender, Holding, Turn, ceilings, turns, victim
from tessera.runtime.nvml import DeviceProcess, ProcessSample
from tessera.wire.kube.objects import KubePod, Meta
from tessera.wire.shm import FIELDS, GAUGE_USED_SHIFT, GRANULE, SIZES

CARD = "GPU-aaaa"
WALL_US = 1_800_000_000_000_000
GIB = 1 << 30
LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH


def at(milliseconds):
    return Moment(WALL_US + milliseconds * 1000, (5_000 + milliseconds) * 1_000_000)


@dataclass
class Desk:
    """A ticker with a governor over real regions; driver and process table say what a test has them say."""

    directory: Path
    memory: Memory = field(default_factory=lambda: Memory(80 * GIB, None))
    places: dict[int, str] = field(default_factory=dict)
    said: tuple[ProcessSample, ...] = ()
    told: list[Shortage] = field(default_factory=list)

    def __post_init__(self):
        self.store = ShareStore(Layout(self.directory))
        self.running = Running(self.store.shares, lambda share: share.gated, self)
        governor = Governor(lambda _: self.memory, self.told.append, DEFAULT_FREEZE)
        self.ticker = Ticker(self, self.running, governor)

    def share(self, name, priority=MEDIUM, memory=(10, 10), compute=(0, 1000), spill=0):
        """A gated container whose id is the name; memory in GiB and compute in milli, as request and limit."""
        device = GrantedDevice(
            CARD, 0, memory[1] << 10, memory[0] << 10, compute[1], compute[0], int(priority), spill << 10
        )
        grant = ContainerGrant(VERSION, f"uid-{name}", "team", name, "main", 37, (device,), "feed")
        self.store.admit(self.store.put(grant), name)
        return self.store.find(f"uid-{name}", "main")

    def placement(self, pid):
        return Placement("uid", self.places[pid]) if pid in self.places else None

    def start(self, pid):
        return 1

    def inner(self, pid):
        return 1, pid

    def samples(self, uuid, after_us):
        return tuple(s for s in self.said if s.stamp_us > after_us)

    def learn(self, *pids):
        self.running.learn([DeviceProcess(pid, CARD, 0) for pid in pids])
        self.ticker.learn()

    def look(self, milliseconds, **percents):
        stamp = WALL_US + milliseconds * 1000
        self.said = tuple(ProcessSample(int(pid[1:]), stamp, percent) for pid, percent in percents.items())
        self.ticker.look(at(milliseconds))


@dataclass
class Log:
    """The pods of the node, and what was told of them: uid, reason, note."""

    told: list[tuple[str, str, str]] = field(default_factory=list)

    def by_uid(self, uid):
        return KubePod(metadata=Meta(name=uid.removeprefix("uid-"), namespace="team", uid=uid))

    def record(self, subject, kind, reason, note):
        self.told.append((subject.uid, reason, note))


@pytest.fixture
def desk(tmp_path):
    found = Desk(tmp_path)
    yield found
    found.running.close()


def poke(share, name, value, device=0):
    """Write a word as a process of the share would."""
    struct_, _, _ = name.partition(".")
    base = FIELDS["region.usage"][0] + device * SIZES["device_usage"]
    if struct_ == "slot":
        base = FIELDS["region.slot"][0]
    offset, size = FIELDS[name]
    with share.region.open("r+b") as file:
        file.seek(base + offset)
        file.write(value.to_bytes(size, "little"))


def launch(share, number):
    """Process 0 of the share launched something again."""
    poke(share, "slot.launches", number)
    with share.region.open("r+b") as file:
        file.seek(FIELDS["region.usage"][0] + FIELDS["usage.slot_high_water"][0])
        file.write((1).to_bytes(8, "little"))


def use(share, gib, spilled=0):
    """The share's gauges say that it uses so much, and so much of it in host memory."""
    poke(share, "device_usage.gauge", gib * GIB // GRANULE << GAUGE_USED_SHIFT)
    poke(share, "device_usage.gauge", spilled * GIB // GRANULE << GAUGE_USED_SHIFT, device=8)


def seen(share):
    return read_region(share.region).devices[0]


def test_a_new_region_says_who_it_goes_before_and_what_it_may_spill(desk):
    found = seen(desk.share("one", HIGH, spill=4))
    assert (found.order.priority, found.memory.spill_limit) == (3, 4 * GIB)
    assert (found.memory.spilled_bytes, found.memory.ceiling, found.order.cap_milli) == (0, None, 0)
    assert not found.order.frozen


def test_the_low_is_capped_while_the_high_is_active_and_not_after(desk):
    high, low = desk.share("high", HIGH), desk.share("low", LOW)
    desk.places = {1: "high", 2: "low"}
    launch(high, 1)
    desk.learn(1, 2)
    assert desk.ticker.is_awake, "nobody has a limit, but one goes before the other"
    for step in range(4):
        launch(high, step + 1)
        desk.look(step * 200, p1=95, p2=5)
    assert (seen(high).order.cap_milli, seen(low).order.cap_milli) == (0, 50)
    # the high one is silent for half a second: the low one has everything again, in turns
    for step in range(4, 8):
        desk.look(step * 200, p2=95)
    assert seen(low).order.cap_milli == 1000


def test_shares_of_one_priority_are_told_nothing(desk):
    one = desk.share("one", LOW)
    desk.share("other", LOW)
    desk.places = {1: "one", 2: "other"}
    desk.learn(1, 2)
    assert not desk.ticker.is_awake
    assert seen(one).order.cap_milli == 0


def test_what_a_share_was_told_ends_with_the_reason_for_it(desk):
    high, low = desk.share("high", HIGH), desk.share("low", LOW, compute=(100, 300))
    desk.places = {1: "high", 2: "low"}
    desk.learn(1, 2)
    for step in range(3):
        launch(high, step + 1)
        desk.look(step * 200, p1=99, p2=1)
    assert seen(low).order.cap_milli == 100, "its request"
    desk.store.remove("uid-high")
    desk.learn(2)
    desk.look(600, p2=30)
    assert seen(low).order.cap_milli == 0


def test_an_idle_low_share_is_frozen_until_it_asks(desk):
    high, low = desk.share("high", HIGH), desk.share("low", LOW)
    desk.places = {1: "high", 2: "low"}
    desk.learn(1, 2)
    desk.look(0)
    desk.look(59_800)
    assert not seen(low).order.frozen
    desk.look(60_000)
    assert seen(low).order.frozen
    assert not seen(high).order.frozen, "nobody goes before it"
    poke(low, "device_usage.asked", 1)
    desk.look(60_200)
    assert not seen(low).order.frozen
    desk.look(60_400)
    assert not seen(low).order.frozen, "to ask is to be active"


def test_growth_beyond_a_request_stops_where_requests_begin(desk):
    one = desk.share("one", memory=(20, 60))
    desk.share("other", memory=(40, 40))  # allocated, and not running yet
    desk.places = {1: "one"}
    use(one, 10)
    desk.learn(1)
    desk.look(0)
    # 80 - 20 - 40 are spare: 20 + 20
    assert seen(one).memory.ceiling == 40 * GIB
    desk.memory = Memory(80 * GIB, 15 * GIB)  # somebody else has 5 of them
    desk.look(200)
    assert seen(one).memory.ceiling == 35 * GIB


def test_memory_in_the_host_does_not_count_for_the_device(desk):
    one = desk.share("one", memory=(20, 60), spill=40)
    desk.places = {1: "one"}
    use(one, 50, spilled=20)
    desk.memory = Memory(40 * GIB, 30 * GIB)
    desk.learn(1)
    desk.look(0)
    # it has 30 of 40 on the device: 10 are spare
    assert seen(one).memory.ceiling == 40 * GIB
    assert seen(one).memory.spilled_bytes == 20 * GIB


def test_who_has_most_beyond_its_request_is_named_for_who_finds_nothing(desk):
    greedy, owner = desk.share("greedy", memory=(20, 80)), desk.share("owner", memory=(40, 40))
    desk.places = {1: "greedy"}
    use(greedy, 70)
    desk.learn(1)
    desk.look(0)
    assert desk.told == []
    poke(owner, "device_usage.short_granules", 40 * GIB // GRANULE)
    poke(owner, "device_usage.short_ns", at(150).monotonic_ns)
    desk.look(200)  # the owner's process is not known yet: it has only just begun
    (shortage,) = desk.told
    assert (shortage.owner.grant.pod, shortage.victim.grant.pod) == ("owner", "greedy")
    assert shortage.lacking_bytes == 40 * GIB
    desk.look(600)
    assert len(desk.told) == 1, "nobody waits any more"


def test_a_share_beyond_its_request_is_owed_nothing_by_who_is_within(desk):
    greedy = desk.share("greedy", memory=(20, 80))
    desk.share("owner", memory=(40, 40))
    desk.places = {1: "greedy", 2: "owner"}
    use(greedy, 20)
    poke(greedy, "device_usage.short_ns", at(0).monotonic_ns)
    desk.learn(1, 2)
    desk.look(100)
    assert desk.told == []


def test_what_is_killed_is_what_the_victim_has_on_the_device(desk):
    greedy, owner = desk.share("greedy", memory=(20, 80)), desk.share("owner", memory=(40, 40))
    children = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(3)]
    pids = [child.pid for child in children]
    desk.places = {pids[0]: "greedy", pids[1]: "owner", pids[2]: "greedy"}
    desk.learn(*pids)
    using = [DeviceProcess(pids[0], CARD, 0), DeviceProcess(pids[1], CARD, 0), DeviceProcess(pids[2], "GPU-b", 0)]
    log = Log()
    reclaimer = Reclaimer(desk.running, lambda: using, log, log)
    shortage = Shortage(CARD, owner, greedy, 40 * GIB)
    try:
        reclaimer.meet(shortage)
        assert children[0].wait(10) == -signal.SIGKILL
        assert [child.poll() for child in children[1:]] == [None, None]
        reclaimer.meet(shortage)
        assert reclaimer.counts == {"stopped": 1, "refused": 0}, "the same shortage, a moment later"
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [(pod, reason) for pod, reason, _ in log.told] == [
        ("uid-greedy", "MemoryReclaimed"),
        ("uid-owner", "MemoryReclaimed"),
    ]
    assert "lacks 40,960 MiB that is within its request: ended 1 processes of container main" in log.told[0][2]


def test_by_policy_nobody_is_killed_and_the_owner_is_told(desk):
    greedy, owner = desk.share("greedy", memory=(20, 80)), desk.share("owner", memory=(40, 40))
    log = Log()
    reclaimer = Reclaimer(desk.running, lambda: pytest.fail("nobody is looked for"), log, log, REFUSE)
    reclaimer.meet(Shortage(CARD, owner, greedy, GIB))
    assert reclaimer.counts == {"stopped": 0, "refused": 1}
    assert [(pod, reason) for pod, reason, _ in log.told] == [("uid-owner", "DeviceFull")]


def test_the_library_s_formulas_are_called_as_they_are_meant():
    rows = [Contender(1000, 0, 0, 950, HIGH, False, True), Contender(1000, 0, 0, 50, LOW, False, True)]
    assert turns(rows) == (Turn(1000, 0), Turn(1000, 50))
    holdings = [Holding(20 * GIB, 60 * GIB, 30 * GIB, MEDIUM), Holding(40 * GIB, 40 * GIB, 0, MEDIUM)]
    assert ceilings(holdings, 80 * GIB) == (40 * GIB, 40 * GIB)
    assert victim(holdings) == 0
    assert victim(holdings[1:]) is None
