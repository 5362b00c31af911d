"""Leadership on a virtual clock: never two at once, and a loss is told in time."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.election import Elector, LeaseWatch, Timing
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import LEASES, ApiError, ConnectionLostError
from tessera.wire.kube.objects import Lease

LEASE = "system/lock"


class Skewed:
    """The same passing time on a wall clock that is wrong and a monotonic clock that began elsewhere."""

    def __init__(self, clock: ManualClock, offset: float) -> None:
        self._clock, self.offset, self._origin = clock, offset, abs(offset) / 7

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._origin

    def pass_unnoticed(self, seconds: float) -> None:
        """Time goes by while the process does not run."""
        self._origin += seconds

    def wall(self) -> float:
        return self._clock.wall() + self.offset

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def elector(server: MemoryCluster, clock: Any, name: str = "a", seed: int = 1) -> Elector:
    return Elector(server, LEASE, name, clock=clock, chance=random.Random(seed))


@contextmanager
def running(*starts: Callable[[], Awaitable[None]]) -> Iterator[list[asyncio.Task[None]]]:
    """Tasks that are cancelled at the end."""
    tasks = [asyncio.ensure_future(start()) for start in starts]
    try:
        yield tasks
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()  # none ends by itself but by a fault
    finally:
        for task in tasks:
            task.cancel()


def play(scene: Callable[[MemoryCluster, ManualClock], Awaitable[None]]) -> None:
    """Run a scene on an empty server and a virtual clock."""

    async def main() -> None:
        clock = ManualClock()
        await scene(MemoryCluster(wall=clock.wall), clock)

    asyncio.run(main())


async def held(server: MemoryCluster) -> Lease:
    return await server.get(LEASES, "lock", Lease, namespace="system")


async def put(
    server: MemoryCluster, holder: str, transitions: int = 0, renewed: str = "2020-01-01T00:00:00.000000Z"
) -> None:
    """Write the lease as another candidate would."""
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "acquireTime": renewed,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
    body = {"metadata": {"name": "lock", "namespace": "system"}, "spec": spec}
    try:
        await server.replace(LEASES, "lock", body, Lease, namespace="system")
    except ApiError:
        await server.create(LEASES, body, Lease, namespace="system")


def test_the_first_candidate_leads_and_the_second_waits() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a, b = elector(server, clock, "a", 1), elector(server, clock, "b", 2)
        with running(a.run):
            await clock.advance(1)
            with running(b.run):
                await clock.advance(300)
                assert (a.leading, b.leading) == (True, False)
                assert (await held(server)).spec.holder_identity == a.identity

    play(scene)


def test_a_leader_that_ends_releases_and_the_next_takes_over_without_waiting_for_the_duration() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a, b = elector(server, clock, "a", 1), elector(server, clock, "b", 2)
        lost = list[str]()
        a.on_loss = lost.append
        with running(a.run, b.run) as tasks:
            await clock.advance(10)
            tasks[0].cancel()
            await clock.advance(0)
            assert (await held(server)).spec.holder_identity == ""
            assert (a.leading, lost) == (False, ["ended"])
            await clock.advance(3)
            assert b.leading
            assert (await held(server)).spec.lease_transitions == 1

    play(scene)


@pytest.mark.parametrize(("writer", "left"), [("its own", ""), ("another's", "b")])
def test_a_leader_that_ends_while_a_write_is_on_its_way_releases_only_what_is_its_own(
    writer: str, left: str
) -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock, "a", 1)
        with running(a.run) as tasks:
            await clock.advance(1)
            await put(server, a.identity if writer == "its own" else "b")
            tasks[0].cancel()
            await clock.advance(0)
            assert (await held(server)).spec.holder_identity == left

    play(scene)


def test_a_leader_that_cannot_renew_stops_before_another_may_start() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a, b = elector(server, clock, "a", 1), elector(server, clock, "b", 2)
        lost = list[float]()
        a.on_loss = lambda _: lost.append(clock.monotonic())
        with running(a.run, b.run):
            await clock.advance(10)
            renewed = clock.monotonic() - 2.2  # it renews every 2 s, 10 % more at most
            for _ in range(40):  # from now on nothing that a writes arrives
                server.fail(Fault("replace", LEASES, error=ConnectionLostError("cut")))
            await clock.advance(10.0)
            assert len(lost) == 1
            assert renewed + 10 <= lost[0] <= renewed + 12.3
            assert not a.leading
            assert not b.leading

    play(scene)


class Turmoil:
    """Candidates on one server, and everything that may go wrong with them."""

    def __init__(self, server: MemoryCluster, clock: ManualClock, chance: random.Random) -> None:
        self.server, self.clock, self.chance = server, clock, chance
        self.clocks = [Skewed(clock, chance.choice([0, -86400, 86400, 3.0])) for _ in range(3)]
        self.electors = [self.candidate(n) for n in range(3)]
        self.tasks: list[asyncio.Task[None]] = []

    def candidate(self, n: int) -> Elector:
        return elector(self.server, self.clocks[n], f"c{n}", self.chance.randrange(10**6))

    def fail_calls(self) -> None:
        error = self.chance.choice([ConnectionLostError("cut"), ApiError(500, "InternalError", "x")])
        verb, late = self.chance.choice(["get", "replace", "create", ""]), self.chance.random() < 0.5
        self.server.fail(Fault(verb, LEASES, error=error, times=self.chance.randrange(1, 9), late=late))

    def jump(self) -> None:
        self.chance.choice(self.clocks).offset += self.chance.choice([-3600.0, 3600.0, 5.0])

    def part(self) -> None:
        self.server.away = not self.server.away

    def restart(self) -> None:
        n = self.chance.randrange(3)
        self.tasks[n].cancel()
        self.electors[n] = self.candidate(n)
        self.tasks[n] = asyncio.ensure_future(self.electors[n].run())

    def strike(self) -> None:
        quiet = self.chance.random() < 0.4
        if not quiet:
            self.chance.choice([self.fail_calls, self.jump, self.part, self.restart])()


@pytest.mark.parametrize("seed", range(8))
def test_never_two_leaders_whatever_wall_clocks_and_network_do(seed: int) -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        world = Turmoil(server, clock, random.Random(seed))
        led = 0
        with running(*(e.run for e in world.electors)) as world.tasks:
            for _ in range(60):
                world.strike()
                for _ in range(world.chance.randrange(1, 12)):
                    await clock.advance(0.7)
                    leading = [e.identity for e in world.electors if e.leading]
                    assert len(leading) <= 1, leading
                    led += len(leading)
        assert led > 20, "somebody led at times"

    play(scene)


def test_a_write_whose_answer_was_lost_is_found_to_be_ours() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock)
        server.fail(Fault("create", LEASES, error=ConnectionLostError("cut"), late=True))
        with running(a.run):
            await clock.advance(3)
            assert a.leading
            server.fail(Fault("replace", LEASES, error=ConnectionLostError("cut"), late=True))
            await clock.advance(30)
            assert a.leading
            assert (await held(server)).spec.lease_transitions == 0

    play(scene)


def test_somebody_who_edits_the_lease_does_not_cost_the_leadership_nor_lose_the_edit() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock)
        lost = list[str]()
        a.on_loss = lost.append
        with running(a.run):
            await clock.advance(5)
            await server.patch(LEASES, "lock", {"metadata": {"labels": {"x": "y"}}}, Lease, namespace="system")
            await clock.advance(30)
            assert a.leading
            assert lost == []
            assert (await held(server)).metadata.labels == {"x": "y"}

    play(scene)


def test_a_lease_that_was_taken_away_is_lost_at_the_next_renewal() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock)
        lost = list[str]()
        a.on_loss = lost.append
        with running(a.run):
            await clock.advance(5)
            await put(server, "thief_1", 7)
            await clock.advance(2.5)
            assert not a.leading
            assert lost == ["thief_1 holds it"]

    play(scene)


def test_a_lease_that_was_deleted_is_made_again() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock)
        with running(a.run):
            await clock.advance(5)
            await server.delete(LEASES, "lock", namespace="system")
            await clock.advance(5)
            assert a.leading
            assert (await held(server)).spec.holder_identity == a.identity

    play(scene)


def test_a_process_that_was_stopped_knows_on_waking_that_it_leads_no_more() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        own = Skewed(clock, 0)
        a = elector(server, own)
        with running(a.run):
            await clock.advance(5)
            own.pass_unnoticed(8)
            assert a.leading
            own.pass_unnoticed(2.1)
            assert not a.leading, "before any task of ours has run"

    play(scene)


def test_a_request_that_hangs_is_given_up_in_time_for_another() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock)
        lost = list[str]()
        a.on_loss = lost.append
        with running(a.run):
            await clock.advance(5)
            server.fail(Fault("replace", LEASES, gate=asyncio.Event(), error=ConnectionLostError("cut")))
            await clock.advance(30)
            assert a.leading
            assert lost == []

    play(scene)


def test_a_request_that_hangs_does_not_delay_the_loss() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        a = elector(server, clock)
        lost = list[float]()
        a.on_loss = lambda _: lost.append(clock.monotonic())
        with running(a.run):
            await clock.advance(5)
            start = clock.monotonic()
            server.fail(Fault("", LEASES, times=99, gate=asyncio.Event(), error=ConnectionLostError("cut")))
            await clock.advance(30)
            assert len(lost) == 1
            assert lost[0] <= start + 10

    play(scene)


def test_timing_that_would_let_two_lead_is_refused() -> None:
    for timing in ((15, 15.0, 2.0), (15, 10.0, 10.0), (15, 10.0, 0.0)):
        with pytest.raises(ValueError, match="retry < deadline < duration"):
            Timing(*timing)


# LeaseWatch


def test_a_lease_is_held_once_it_was_seen_renewed_and_not_before() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        assert watch.obstacle("node-1") == "nobody has been seen to hold lease system/lock"
        await put(server, "node-1_u1", renewed="t1")
        with running(watch.run):
            await clock.advance(60)
            assert not watch.holds("node-1"), "an old lease of a dead holder"
            assert watch.term is None
            await put(server, "node-1_u1", renewed="t2")
            await clock.advance(1)
            assert watch.holds("node-1")

    play(scene)


@pytest.mark.parametrize("holder", ["node-10_u", "node-1", "node-1-b_u", "xnode-1_u", "node-1_b_u", "_u", ""])
def test_another_holder_is_not_taken_for_ours(holder: str) -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        await watch.look()
        await put(server, holder)
        await watch.look()
        assert not watch.holds("node-1")

    play(scene)


def test_a_lease_that_is_not_renewed_ends_a_duration_after_the_last_look_before_its_renewal() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        await watch.look()
        looked = clock.monotonic()
        await clock.advance(0.5)
        await put(server, "node-1_u1")
        with running(watch.run):
            await clock.advance(0.4)
            assert watch.holds("node-1")
            await clock.advance(looked + 15 - clock.monotonic() - 0.01)
            assert watch.holds("node-1")
            await clock.advance(0.02)
            assert watch.obstacle("node-1") == "lease lock was not seen renewed within its 15 s"

    play(scene)


def test_after_a_gap_a_renewal_counts_as_old_as_it_may_be() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        with running(watch.run):
            await clock.advance(1)
            await put(server, "node-1_u1", renewed="t1")
            await clock.advance(2)
            assert watch.holds("node-1")
            server.away = True
            await clock.advance(20)
            assert not watch.holds("node-1")
            server.away = False
            await put(server, "node-1_u1", renewed="t2")
            await clock.advance(1.5)
            assert not watch.holds("node-1"), "it may have been renewed 20 s ago"
            await put(server, "node-1_u1", renewed="t3")
            await clock.advance(1.5)
            assert watch.holds("node-1")

    play(scene)


def test_each_time_in_office_is_a_term_of_its_own() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        await watch.look()
        terms = []
        for transitions, holder in enumerate(("a_1", "b_2", "a_1")):
            await put(server, holder, transitions, f"t{transitions}")
            await watch.look()
            assert watch.holds(holder[0])
            terms.append(watch.term)
        await put(server, "", 2, "t8")
        await watch.look()
        assert watch.term is None, "released"
        await server.delete(LEASES, "lock", namespace="system")
        await watch.look()
        await put(server, "a_1", 2, "t9")
        await watch.look()
        terms.append(watch.term)
        assert len(set(terms)) == 4
        assert None not in terms

    play(scene)


def test_an_edit_of_labels_is_no_renewal() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        await put(server, "node-1_u1")
        await watch.look()
        await server.patch(LEASES, "lock", {"metadata": {"labels": {"x": "y"}}}, Lease, namespace="system")
        await watch.look()
        assert not watch.holds("node-1")

    play(scene)


def test_looks_at_the_same_time_ask_once() -> None:
    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        watch = LeaseWatch(server, LEASE, clock=clock)
        await asyncio.gather(*(watch.look() for _ in range(20)))
        assert len(server.calls) == 1

    play(scene)


@pytest.mark.parametrize("seed", range(5))
def test_watches_of_two_hosts_never_both_say_yes(seed: int) -> None:
    """Two kube-schedulers (electors) with their watchers, lookings failing at random."""
    chance = random.Random(seed)

    async def scene(server: MemoryCluster, clock: ManualClock) -> None:
        electors = [elector(server, clock, name, seed + n) for n, name in enumerate("ab")]
        watches = [LeaseWatch(server, LEASE, clock=clock, period=chance.choice([0.5, 1.0, 3.0])) for _ in "ab"]
        said = 0
        with running(*(x.run for x in (*electors, *watches))) as tasks:
            for _ in range(60):
                match chance.randrange(5):
                    case 0:
                        error = ConnectionLostError("cut")
                        verb = chance.choice(["get", "replace"])
                        server.fail(Fault(verb, LEASES, error=error, times=chance.randrange(1, 12)))
                    case 1:
                        server.away = not server.away
                    case 2:
                        n = chance.randrange(2)
                        tasks[n].cancel()  # without a release, as kill -9 would
                        server.fail(Fault("replace", LEASES, error=ConnectionLostError("killed")))
                        await clock.advance(0)
                        electors[n] = elector(server, clock, "ab"[n], chance.randrange(10**6))
                        tasks[n] = asyncio.ensure_future(electors[n].run())
                    case _:
                        pass
                for _ in range(chance.randrange(1, 12)):
                    await clock.advance(0.7)
                    yes = [name for name, watch in zip("ab", watches, strict=True) if watch.holds(name)]
                    assert len(yes) <= 1
                    said += len(yes)
            for task in tasks:
                task.cancel()
        assert said > 20

    play(scene)
