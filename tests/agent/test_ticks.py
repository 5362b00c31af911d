"""Limited shares are told, while they run, how long they were on their devices; nobody else costs anything."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.world import Rig
from tessera.agent.cgroups import Placement
from tessera.agent.grant import VERSION, ContainerGrant, GrantedDevice
from tessera.agent.layout import Layout
from tessera.agent.lending import Demand, Usage, borrower
from tessera.agent.running import Running
from tessera.agent.store import ShareStore, read_region
from tessera.agent.ticks import TICK_SECONDS, Ticker
from tessera.core.errors import UnavailableError
from tessera.runtime.busy import Moment
from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.metrics import Unavailable
from tessera.runtime.native import Borrower, LiveRegion
from tessera.runtime.nvml import DeviceProcess, ProcessSample
from tessera.wire.shm import FIELDS, SIZES, ComputeMode

CARD = "GPU-aaaa"
WALL_US = 1_800_000_000_000_000
MS = 1000


def at(milliseconds):
    """So long after the beginning, by both clocks."""
    return Moment(WALL_US + milliseconds * MS, (5_000 + milliseconds) * 1_000_000)


@dataclass
class Desk:
    """A ticker over real regions, with a driver and a process table that say what a test has them say."""

    directory: Path
    places: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    said: tuple[ProcessSample, ...] | None = ()
    scans: int = 0

    def __post_init__(self):
        self.store = ShareStore(Layout(self.directory))
        self.running = Running(self.shares, lambda share: share.gated, self)
        self.ticker = Ticker(self, self.running)

    def shares(self):
        self.scans += 1
        return self.store.shares()

    def share(self, name, milli):
        """A gated container with this limit, whose id is the name."""
        device = GrantedDevice(CARD, 0, 1024, 1024, milli, 100)
        grant = ContainerGrant(VERSION, f"uid-{name}", "team", name, "main", 37, (device,), "feed")
        self.store.admit(self.store.put(grant), name)
        return self.store.find(f"uid-{name}", "main")

    def placement(self, pid):
        return Placement("uid", self.places[pid]) if pid in self.places else None

    def start(self, pid):
        return None if pid in self.gone else 1

    def inner(self, pid):
        return 1, pid

    def samples(self, uuid, after_us):
        return None if self.said is None else tuple(s for s in self.said if s.stamp_us > after_us)

    def learn(self, *pids):
        self.running.learn([DeviceProcess(pid, CARD, 0) for pid in pids])
        self.ticker.learn()

    def look(self, milliseconds, **percents):
        """A look at which each process was busy by so many percent of the period that ends there."""
        stamp = WALL_US + milliseconds * MS
        self.said = tuple(ProcessSample(int(pid[1:]), stamp, percent) for pid, percent in percents.items())
        self.ticker.look(at(milliseconds))


def heartbeat(share):
    """When a region was ticked last, in nanoseconds; 0 for never."""
    offset, size = FIELDS["control.agent_heartbeat_ns"]
    start = FIELDS["region.control"][0] + offset
    return int.from_bytes(share.region.read_bytes()[start : start + size], "little")


def granted(share):
    """The part of the device that is granted, without the dilation."""
    compute = read_region(share.region).devices[0].compute
    return round(compute.rate / compute.dilation, 3)


@pytest.fixture
def desk(tmp_path):
    found = Desk(tmp_path)
    yield found
    found.running.close()


def test_the_time_of_all_processes_of_a_container_is_that_of_its_share(desk):
    one, other = desk.share("one", 500), desk.share("other", 300)
    desk.places = {1: "one", 2: "one", 3: "other", 4: "stranger"}
    desk.learn(1, 2, 3, 4)
    desk.look(0)
    desk.look(200, p1=30, p2=20, p3=10, p4=40)
    # 200 ms: 60 + 40 of the first share, 20 of the second
    assert desk.ticker.busy_seconds(one, CARD) == pytest.approx(0.1)
    assert desk.ticker.busy_seconds(other, CARD) == pytest.approx(0.02)
    desk.look(400, p1=100)
    assert desk.ticker.busy_seconds(one, CARD) == pytest.approx(0.3)
    assert (heartbeat(one), heartbeat(other)) == (5_400_000_000, 5_400_000_000)
    assert (granted(one), granted(other)) == (0.5, 0.3)


@pytest.mark.parametrize("milli", [0, 1000])
def test_shares_without_a_compute_limit_wake_nobody_and_are_not_measured(desk, milli):
    share = desk.share("whole", milli)
    desk.places = {1: "whole"}
    desk.learn(1)
    assert not desk.ticker.is_awake
    assert desk.ticker.busy_seconds(share, CARD) == Unavailable("no compute limit")


def test_on_an_idle_node_shares_are_not_even_read(desk):
    desk.share("idle", 500)
    for _ in range(3):
        desk.learn()
    assert (desk.scans, desk.ticker.is_awake) == (0, False)


def test_ticking_lasts_as_long_as_a_process_of_a_limited_share_is_on_a_device(desk):
    share = desk.share("one", 500)
    desk.places = {1: "one"}
    desk.learn(1)
    assert desk.ticker.is_awake
    desk.look(0)
    desk.look(200, p1=50)
    desk.learn()
    assert not desk.ticker.is_awake
    assert desk.ticker.busy_seconds(share, CARD) == pytest.approx(0.1), "what was used stays counted"
    desk.learn(1)
    desk.look(60_000)
    desk.look(60_200, p1=50)
    assert desk.ticker.busy_seconds(share, CARD) == pytest.approx(0.2), "nothing is made of the time between"


def test_a_share_that_is_removed_leaves_nothing_behind(desk):
    share = desk.share("one", 500)
    desk.places = {1: "one"}
    desk.learn(1)
    desk.look(0)
    desk.look(200, p1=50)
    desk.store.remove("uid-one")
    desk.learn(1)
    assert not desk.ticker.is_awake
    assert desk.ticker.busy_seconds(share, CARD) == 0.0


def test_the_loop_looks_five_times_a_second_while_awake_and_never_while_asleep(desk):
    async def scenario():
        clock = ManualClock()
        running = asyncio.create_task(desk.ticker.run(clock, lambda: at(round(clock.monotonic() * 1000))))
        desk.share("one", 500)
        desk.places = {1: "one"}
        await clock.advance(60)
        assert desk.ticker.ticks == 0
        desk.learn(1)
        await settle()
        await clock.advance(5.5 * TICK_SECONDS)
        assert desk.ticker.ticks == 6  # one at once
        desk.learn()
        await clock.advance(60)
        assert desk.ticker.ticks == 6
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_driver_that_does_not_sample_leaves_limits_to_the_processes(desk):
    share = desk.share("one", 500)
    desk.places = {1: "one"}
    desk.learn(1)
    desk.said = None
    desk.ticker.look(at(0))
    assert heartbeat(share) == 0
    assert desk.ticker.busy_seconds(share, CARD) == Unavailable("driver does not say")


def test_a_container_that_starts_between_two_patrols_counts_from_its_first_sample(desk):
    desk.share("one", 500)
    late = desk.share("late", 300)
    desk.places = {1: "one", 2: "late", 3: "stranger"}
    desk.learn(1)
    desk.look(0)
    desk.look(200, p1=50, p2=50, p3=50)
    scans = desk.scans
    desk.look(400, p1=50, p2=50, p3=50)
    # its course begins at the look that met it: the sample before that is of no known span
    assert desk.ticker.busy_seconds(late, CARD) == pytest.approx(0.1)
    assert heartbeat(late) == 5_400_000_000
    assert desk.scans == scans, "a stranger is asked after once, not at every look"


def test_a_process_that_ends_takes_nothing_of_the_sum_along(desk):
    share = desk.share("one", 500)
    desk.places = {1: "one", 2: "one"}
    desk.learn(1)
    desk.look(0)
    desk.look(200, p1=50)
    desk.gone = {1}
    desk.look(400)
    desk.look(600, p2=50)
    assert desk.ticker.busy_seconds(share, CARD) == pytest.approx(0.2)


def test_a_process_that_ended_before_it_was_sampled_is_believed_nothing(desk):
    """What it was charged has no busy time on the other side: the share would seem to be owed that much more."""
    share = desk.share("one", 500)
    desk.places = {1: "one"}
    slot, high_water = FIELDS["region.slot"][0], FIELDS["region.usage"][0] + FIELDS["usage.slot_high_water"][0]

    def registered(*words):
        with share.region.open("r+b") as file:
            for number, word in enumerate(words):
                file.seek(slot + number * SIZES["slot"])
                file.write(word.to_bytes(8, "little"))
            file.seek(high_water)
            file.write(len(words).to_bytes(8, "little"))

    live, next_live, free = 2 | 1 << 2, 2 | 2 << 2, 3 << 2
    registered(live, live)
    desk.learn(1)
    for at_ms in (0, 200):
        desk.look(at_ms, p1=50)
    (course,) = desk.ticker._courses.values()
    assert course.busy.began == at(0)
    registered(live, free)
    desk.look(400, p1=50)
    assert course.busy.began == at(400)
    registered(live, next_live)
    desk.look(600, p1=50)
    assert course.busy.began == at(400), "one more is no reason"
    registered(live, next_live + (1 << 2))
    desk.look(800, p1=50)
    assert course.busy.began == at(800), "another one in its slot"


def test_a_region_that_its_container_cut_off_costs_that_share_alone(desk):
    """Touching a page that is no more would end the agent."""
    broken, sound = desk.share("broken", 500), desk.share("sound", 500)
    desk.places = {1: "broken", 2: "sound"}
    desk.learn(1, 2)
    desk.look(0)
    with broken.region.open("r+b") as file:
        file.truncate(0)
    desk.look(200, p1=50, p2=50)
    desk.learn(1, 2)
    desk.look(400, p1=50, p2=50)
    assert heartbeat(sound) == 5_400_000_000


def test_a_share_in_burst_mode_has_what_others_leave(desk):
    eager, idle = desk.share("eager", 500), desk.share("idle", 300)
    with LiveRegion(eager.region, 1) as region:
        region.limit_compute(0, 500, ComputeMode.BURST)
    desk.places = {1: "eager", 2: "idle"}
    desk.learn(1, 2)
    for milliseconds in (0, 200, 400, 600):
        desk.look(milliseconds, p1=60, p2=5)
    # the other one keeps twice its 50 milli, the eager one its 500: 400 are lent
    assert (granted(eager), granted(idle)) == (0.9, 0.3)


def test_what_is_used_now_is_the_mean_of_the_last_looks():
    usage = Usage()
    assert usage.used_milli == 0
    for look, busy_ms in enumerate((0, 100, 150, 150, 250)):
        usage.busy_ns = busy_ms * 1_000_000
        usage.note(look * 200_000_000)
    assert usage.used_milli == 250  # the last four looks: 150 of 600 ms


def test_who_has_no_limit_keeps_what_it_uses_and_borrows_nothing():
    assert borrower(Demand(300, 2, 900), 250, 0, 1000) == Borrower(300, 2, 250, 1, waits=True)
    assert borrower(Demand(300, 1, 0), 250, 100, 1000) == Borrower(300, 1, 250, 100, waits=False)
    assert borrower(Demand(300, 1, 1), 250, 100, 250_000_001) == Borrower(300, 1, 250, 100, waits=False)
    for whole in (Demand(0, 0, 0), Demand(1000, 1, 900), Demand(300, 0, 900)):
        assert borrower(whole, 700, 100, 1000) == Borrower(1000, 0, 700, 100, waits=False)


def test_throttling_and_device_time_are_shown_as_nothing_before_the_first_launch(tmp_path):
    """Rows 52 and 53: a series that only appears with its first event cannot be alerted on."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind()
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            shown = rig.parts.metrics.render().decode().splitlines()
            labels = f'{{namespace="team",pod="p",container="main",device="{rig.uuids[0]}"}}'
            assert f"tessera_container_throttled_seconds_total{labels} 0.0" in shown
            assert f"tessera_container_throttled_launches_total{labels} 0" in shown
            assert f"tessera_container_busy_seconds_total{labels} 0.0" in shown

    asyncio.run(scenario())


WORK = """
import ctypes, sys
cuda, p = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p
context, module, function = p(), p(), p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"work_ms_5") == 0
print(flush=True)
while True:
    assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    assert cuda.cuStreamSynchronize(None) == 0
"""

NEIGHBOURS = """
import json, os, subprocess, sys, time
from pathlib import Path
from tessera.agent.cgroups import Placement
from tessera.agent.layout import Layout
from tessera.agent.machine import Machine
from tessera.agent.rounds import ProcessEyes
from tessera.agent.running import Running
from tessera.agent.store import ShareStore, read_region
from tessera.agent.ticks import Ticker, present
from tessera.runtime.native import LIMITER, SIMULATED

description, state, work = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
places = {}

class Eyes(ProcessEyes):
    def placement(self, pid):
        return Placement("uid", places[pid]) if pid in places else None

machine = Machine(description, lambda: SIMULATED)
(device,) = machine.look().inventory.devices
store = ShareStore(Layout(state))
running = Running(store.shares, lambda share: share.gated, Eyes())
ticker = Ticker(machine, running)
children = []
for share in store.shares():
    environment = {"LD_PRELOAD": str(LIMITER), "TESSERA_REGION": str(share.region),
                   "TESSERA_SIM_MACHINE": str(description), "LD_LIBRARY_PATH": str(SIMULATED)}
    child = subprocess.Popen([sys.executable, "-c", work], env=environment, stdout=subprocess.PIPE)
    child.stdout.readline()
    children.append(child)
    places[child.pid] = share.gated
try:
    deadline = time.monotonic() + 30
    (limited,) = (s for s in store.shares() if s.grant.devices[0].compute_limit_milli == 400)
    compute = read_region(limited.region).devices[0].compute
    while time.monotonic() < deadline and compute.rate <= 0.6:
        running.learn(machine.processes())
        ticker.learn()
        ticker.look(present())
        time.sleep(0.1)
        compute = read_region(limited.region).devices[0].compute
    print(json.dumps([compute.rate, ticker.busy_seconds(limited, device.uuid)]))
finally:
    for child in children:
        child.kill()
    running.close()
"""


def test_a_busy_neighbour_does_not_cost_a_limited_share_its_part(tmp_path, native):
    """Under two who work, events show about twice the device time: twice the limit must be granted."""
    card = "GPU-00000000-0000-4000-8000-000000000001"
    description = tmp_path / "machine.conf"
    description.write_text(f'driver version=13.0\ndevice uuid={card} name="NVIDIA A100" memory_mib=81920\n')
    desk = Desk(tmp_path / "state")
    for name, milli in (("limited", 400), ("neighbour", 0)):
        grant = ContainerGrant(
            VERSION, name, "team", name, "main", 37, (GrantedDevice(card, 0, 2048, 2048, milli, 100),), "feed"
        )
        desk.store.admit(desk.store.put(grant), name)
    command = [sys.executable, "-c", NEIGHBOURS, description, tmp_path / "state", WORK]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rate, busy = json.loads(done.stdout)
    assert rate > 0.6
    assert busy > 0


def test_what_a_region_shows_of_its_limit_is_read_without_the_codec(desk):
    share = desk.share("one", 250)
    with LiveRegion(share.region, 1) as region:
        assert region.demand(0) == (250, ComputeMode.HARD, 0)
        region.set_unseen(0, 4096)
    assert read_region(share.region).devices[0].unseen_bytes == 4096


def test_a_device_that_a_region_does_not_have_is_no_part_of_another(desk):
    share = desk.share("one", 250)
    with LiveRegion(share.region, 1) as region, pytest.raises(UnavailableError, match="device 1 of a region of 1"):
        region.demand(1)
