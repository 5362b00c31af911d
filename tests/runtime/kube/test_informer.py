"""What an informer promises under faults, each on the API server in memory and over HTTP."""

import asyncio
import random

import pytest

from runtime.kube.watching import World, run, running, watching
from tessera.runtime.kube.informer import LONGEST_PAUSE_SECONDS, Informer
from tessera.runtime.kube.memory import Fault
from tessera.runtime.kube.port import PODS, ApiError, Select
from tessera.wire.kube.objects import KubePod

both = pytest.mark.parametrize("kind", ["memory", "http"])


@both
def test_what_is_there_and_what_comes_is_told_in_order(kind):
    async def law(world: World) -> None:
        await world.make("a")
        async with running(world):
            await world.make("b")
            await world.change("a", "1")
            await world.drop("b")
            await world.agree()
            assert world.told.words == ["+a", "+b", "~a", "~b", "-b"]  # a pod is marked before it goes

    run(law, kind)


@both
def test_a_stream_that_ends_in_silence_is_resumed_without_a_list(kind):
    async def law(world: World) -> None:
        async with running(world):
            await world.make("a")
            await world.agree()
            for name in ("b", "c", "d"):
                world.cluster.end_streams()
                await world.make(name)
                await world.agree()
            lists = [call for call in world.cluster.calls if call.verb == "list"]
            assert len(lists) == 1 + 4  # its own first, and one for each comparison of this test
            assert world.told.words == ["+a", "+b", "+c", "+d"]

    run(law, kind)


@both
def test_a_reset_in_the_middle_of_an_event_loses_nothing(kind):
    async def law(world: World) -> None:
        async with running(world):
            await world.make("a")
            await world.agree()
            await world.cut()
            await world.make("b")
            await world.change("a", "1")
            await world.agree()
            assert world.told.words == ["+a", "+b", "~a"]

    run(law, kind)


@both
@pytest.mark.parametrize("how", ["forgotten", "refused"])
def test_an_expired_version_leads_to_a_comparison_with_deletions_first(kind, how):
    """Gone meanwhile: b. Made again under its name: c. Changed: a. The same: d, which says nothing."""

    async def law(world: World) -> None:
        for name in "abcd":
            await world.make(name)
        async with running(world):
            refusal = ApiError(410, "Expired", "too old") if how == "refused" else None
            async with world.unseen(refusal):
                await world.change("a", "1")
                await world.drop("b")
                await world.drop("c")
                await world.make("c")
                if how == "forgotten":
                    world.cluster.compact()
            await world.agree()
            assert world.told.words[4:] in (["-b", "~a", "-c", "+c"], ["-b", "-c", "+c", "~a"])

    run(law, kind)


@both
def test_a_stream_that_ends_with_a_410_event_is_listed_again(kind):
    async def law(world: World) -> None:
        await world.make("a")
        async with running(world):
            world.cluster.expire_streams()
            await world.drop("a")
            await world.make("b")
            await world.agree()
            assert sorted(world.told.words[1:]) in (["+b", "-a"], ["+b", "-a", "~a"])

    run(law, kind)


@both
def test_a_bookmark_moves_the_version_on_so_that_a_compaction_does_not_matter(kind):
    async def law(world: World) -> None:
        await world.make("a")
        async with running(world):
            world.cluster.compact()
            world.cluster.bookmark()
            version = str(world.cluster.history.revision)
            await world.until(lambda: world.informer.resource_version == version)
            world.cluster.end_streams()
            await world.make("b")
            await world.until(lambda: len(world.informer.store) == 2)
            assert [call.verb for call in world.cluster.calls if call.verb == "list"] == ["list"]

    run(law, kind)


@both
def test_a_server_that_is_away_for_ten_seconds_is_asked_seldom_and_then_followed(kind):
    async def law(world: World) -> None:
        await world.make("a")
        async with running(world):
            await world.agree()
            world.leave()
            await world.until(lambda: bool(world.informer.error))
            before = world.front.requests if world.front else len(world.cluster.calls)
            until = world.clock.monotonic() + 10
            await world.until(lambda: world.clock.monotonic() >= until)
            asked = (world.front.requests if world.front else len(world.cluster.calls)) - before
            assert 3 <= asked <= 12
            assert world.informer.age() >= 9
            assert world.informer.error
            world.come_back()
            await world.make("b")
            await world.agree()
            assert not world.informer.error

    run(law, kind)


@both
def test_duplicates_and_old_events_after_a_reconnect_are_dropped(kind):
    async def law(world: World) -> None:
        async with running(world):
            await world.make("a")
            await world.change("a", "1")
            await world.drop("a")
            await world.make("a")
            await world.agree()
            steps = list(world.told.words)
            world.cluster.replay = 100
            for _ in range(3):
                world.cluster.end_streams()
                await watching(world)
            await world.change("a", "2")
            await world.agree()
            assert world.told.words == [*steps, "~a"]

    run(law, kind)


@both
def test_an_object_made_again_under_its_name_is_two_steps(kind):
    async def law(world: World) -> None:
        first = await world.make("a")
        async with running(world):
            async with world.unseen():
                await world.drop("a")
                second = await world.make("a")
                world.cluster.compact()
            await world.agree()
            assert world.told.steps == [(None, first), (first, None), (None, second)]

    run(law, kind)


@both
def test_a_slow_list_is_waited_for(kind):
    async def law(world: World) -> None:
        await world.make("a")
        gate = asyncio.Event()
        world.cluster.fail(Fault("list", gate=gate))
        task = asyncio.create_task(world.informer.run())
        await world.until(lambda: bool(world.cluster.calls[1:]))
        await world.clock.advance(5)
        assert not world.informer.synced.is_set()
        gate.set()
        await world.until(world.informer.synced.is_set)
        task.cancel()
        await asyncio.wait({task})

    run(law, kind)


@both
def test_a_jump_of_the_wall_clock_changes_nothing(kind):
    async def law(world: World) -> None:
        async with running(world):
            for seconds in (86_400, -172_800):
                world.clock.jump(seconds)
                await world.make(f"p{seconds}".replace("-", "m"))
                await world.agree()
            assert world.informer.age() < 60

    run(law, kind)


@both
def test_an_event_of_over_a_mebibyte_arrives(kind):
    async def law(world: World) -> None:
        async with running(world):
            await world.make("large", x="v" * 1_500_000)
            await world.agree()
            assert len(world.informer.store["n/large"].metadata.labels["x"]) == 1_500_000

    run(law, kind)


def test_a_server_that_ends_every_watch_at_once_causes_no_busy_loop():
    async def law(world: World) -> None:
        async with running(world):
            before = len(world.cluster.calls)
            until = world.clock.monotonic() + 120
            while world.clock.monotonic() < until:
                world.cluster.end_streams()
                await world.clock.advance(0.1)
            # 0.2 s doubling to 30 s, each at least half: at most 9 rounds to the top, then one in 15 s
            assert len(world.cluster.calls) - before <= 9 + 8

    run(law, "memory")


def test_a_list_that_is_always_too_old_by_the_time_of_the_watch_causes_no_busy_loop():
    async def law(world: World) -> None:
        world.cluster.fail(Fault("watch", error=ApiError(410, "Expired", "too old"), times=10_000))
        task = asyncio.create_task(world.informer.run())
        await world.clock.advance(120)
        assert len(world.cluster.calls) <= 2 * (9 + 8)
        task.cancel()
        await asyncio.wait({task})

    run(law, "memory")


def test_a_server_that_asks_to_be_left_alone_is_for_so_long_but_not_for_ever():
    async def law(world: World) -> None:
        busy = ApiError(429, "TooManyRequests", "later")
        busy.retry_after = 3600.0
        world.cluster.fail(Fault("list", error=busy))
        task = asyncio.create_task(world.informer.run())
        await world.clock.advance(LONGEST_PAUSE_SECONDS - 1)
        assert not world.informer.synced.is_set()
        await world.clock.advance(2)
        assert world.informer.synced.is_set()
        task.cancel()
        await asyncio.wait({task})

    run(law, "memory")


@pytest.mark.parametrize("code", [400, 504])
def test_a_version_from_the_future_is_answered_by_a_list(code):
    """A server that was restored from a backup is behind what we have seen."""

    async def law(world: World) -> None:
        await world.make("a")
        async with running(world):
            world.cluster.fail(Fault("watch", error=ApiError(code, "Timeout", "Too large resource version: 9")))
            world.cluster.end_streams()
            await world.make("b")
            await world.until(lambda: len(world.informer.store) == 2)
            assert len([call for call in world.cluster.calls if call.verb == "list"]) == 2

    run(law, "memory")


@both
def test_a_refresh_is_no_older_than_its_call(kind):
    async def law(world: World) -> None:
        async with running(world):
            task = asyncio.create_task(world.informer.refresh())
            await world.until(task.done)
            await world.make("a")
            world.cluster._faults.append(Fault("watch", gate=asyncio.Event()))  # no event will tell
            world.cluster.end_streams()
            task = asyncio.create_task(world.informer.refresh())
            await world.until(task.done)
            assert "n/a" in world.informer.store
            assert world.told.now == dict(world.informer.store)

    run(law, kind)


@both
def test_a_refresh_outlives_a_failed_list(kind):
    async def law(world: World) -> None:
        async with running(world):
            world.leave()
            task = asyncio.create_task(world.informer.refresh())
            until = world.clock.monotonic() + 3
            await world.until(lambda: world.clock.monotonic() >= until)
            assert not task.done()
            world.come_back()
            await world.until(task.done)

    run(law, kind)


@pytest.mark.parametrize("streaming", [False, True])
def test_no_refresh_is_forgotten_however_close_they_come(streaming):
    async def law(world: World) -> None:
        informer = world.an_informer(streaming=streaming)
        async with running(world, informer):
            tasks = []
            for _ in range(40):
                tasks.append(asyncio.create_task(informer.refresh()))
                await asyncio.sleep(0)
            await world.until(lambda: all(task.done() for task in tasks))

    run(law, "memory")


@both
def test_a_streamed_list_gives_the_same_and_goes_on_after_410(kind):
    async def law(world: World) -> None:
        for name in "ab":
            await world.make(name)
        informer = world.an_informer(streaming=True)
        informer.handlers.append(world.told)
        world.informer = informer
        async with running(world, informer):
            await world.agree()
            await world.make("c")
            await world.agree()
            await world.drop("a")
            world.cluster.compact()
            world.cluster.end_streams()
            await world.agree()
            assert world.told.words[:3] == ["+a", "+b", "+c"]
            task = asyncio.create_task(informer.refresh())
            await world.until(task.done)

    run(law, kind)


def test_a_server_that_cannot_stream_a_list_is_asked_for_pages():
    async def law(world: World) -> None:
        await world.make("a")
        world.cluster.fail(Fault("watch", error=ApiError(422, "Invalid", "sendInitialEvents is forbidden")))
        informer = world.an_informer(streaming=True)
        async with running(world, informer):
            assert list(informer.store) == ["n/a"]

    run(law, "memory")


def test_a_projection_keeps_what_it_gives_and_tells_only_of_changes_of_that():
    async def law(world: World) -> None:
        await world.make("a", x="1")
        await world.make("b")
        informer = world.an_informer(project=lambda pod: pod.metadata.label("x"))
        steps = []
        informer.handlers.append(lambda old, new: steps.append((old, new)))
        async with running(world, informer):
            assert dict(informer.store) == {"n/a": "1"}
            await world.cluster.patch(PODS, "a", {"metadata": {"annotations": {"y": "1"}}}, KubePod, namespace="n")
            await world.change("b", "2")
            await world.change("a", "3")
            await world.cluster.patch(PODS, "a", {"metadata": {"labels": None}}, KubePod, namespace="n")
            await world.until(lambda: dict(informer.store) == {"n/b": "2"})
            assert steps == [(None, "1"), (None, "2"), ("1", "3"), ("3", None)]

    run(law, "memory")


@both
def test_what_leaves_the_selection_leaves_the_store(kind):
    async def law(world: World) -> None:
        informer = Informer(
            world.client, PODS, KubePod, Select(labels="x=1"), clock=world.clock, rng=random.Random(1)
        )
        await world.make("a", x="1")
        await world.make("b", x="2")
        async with running(world, informer):
            assert list(informer.store) == ["n/a"]
            await world.change("a", "2")
            await world.change("b", "1")
            await world.until(lambda: list(informer.store) == ["n/b"])

    run(law, kind)


def test_a_list_that_expires_between_its_pages_is_begun_again():
    async def law(world: World) -> None:
        world.cluster._page = 2
        for name in "abcde":
            await world.make(name)
        world.cluster.fail(Fault("list", error=ApiError(410, "Expired", "continue is too old"), after=1))
        async with running(world):
            await world.agree()
            assert sorted(world.told.words) == ["+a", "+b", "+c", "+d", "+e"]

    run(law, "memory")


def test_age_counts_from_the_last_contact():
    async def law(world: World) -> None:
        async with running(world):
            world.cluster.bookmark()
            await world.clock.advance(0)
            began = world.informer.age()
            await world.clock.advance(42)
            assert world.informer.age() == pytest.approx(began + 42)
            world.cluster.bookmark()
            await world.clock.advance(0)
            assert world.informer.age() == pytest.approx(0)

    run(law, "memory")
