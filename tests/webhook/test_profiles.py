"""WorkloadProfiles as the webhook knows them: followed, looked up when in doubt, absent where the kind is."""

import asyncio
import random

from tessera.runtime.clock import ManualClock, settle
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import ApiError, ConnectionLostError
from tessera.webhook.profiles import AGAIN_SECONDS, PROFILES, UNKNOWN_SECONDS, KnownProfiles


def a_profile(name="small", vram="2Gi"):
    return {"metadata": {"name": name}, "spec": {"gpuCount": 2, "resources": {"requests": {"vram": vram}}}}


PAIRS = (("gpu-count", "2"), ("vram-request", "2Gi"))


class World:
    def __init__(self):
        self.clock = ManualClock()
        self.cluster = MemoryCluster()
        self.profiles = KnownProfiles(self.cluster, clock=self.clock, rng=random.Random(1))

    async def make(self, profile):
        await self.cluster.create(PROFILES, profile, dict, namespace="team")

    def start(self):
        return asyncio.create_task(self.profiles.run())


async def end(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_profiles_are_followed():
    async def scenario():
        world = World()
        await world.make(a_profile())
        running = world.start()
        await world.clock.advance(1)
        assert world.profiles.unready() is None
        assert world.profiles("team", "small").pairs == PAIRS
        assert world.profiles("other", "small") is None
        await world.make(a_profile("large", "1"))
        await world.cluster.patch(PROFILES, "small", {"spec": {"gpuCount": 1}}, dict, namespace="team")
        await settle()
        assert world.profiles("team", "large").pairs == (("gpu-count", "2"), ("vram-request", "1"))
        assert world.profiles("team", "small").pairs == (("gpu-count", "1"), ("vram-request", "2Gi"))
        await world.cluster.delete(PROFILES, "small", namespace="team")
        await settle()
        assert world.profiles("team", "small") is None
        await end(running)

    asyncio.run(scenario())


def test_what_was_asked_for_in_vain_is_looked_up_once():
    async def scenario():
        world = World()
        await world.make(a_profile())
        assert world.profiles("team", "small") is None  # nobody follows anything yet
        assert world.profiles("team", "nowhere") is None
        assert world.profiles.missed == {("team", "small"), ("team", "nowhere")}
        assert await world.profiles.fetch()
        assert world.profiles.missed == set()
        assert world.profiles("team", "small").pairs == PAIRS
        assert world.profiles("team", "nowhere") is None
        assert not await world.profiles.fetch()

    asyncio.run(scenario())


def test_an_api_server_that_fails_a_look_up_leaves_the_profile_unknown():
    async def scenario():
        world = World()
        await world.make(a_profile())
        for error in (ApiError(500, "Internal", "no"), ConnectionLostError("gone")):
            world.cluster.fail(Fault("get", PROFILES, error=error))
            world.profiles("team", "small")
            assert not await world.profiles.fetch()

    asyncio.run(scenario())


def test_a_cluster_without_the_kind_is_ready_and_is_asked_again():
    async def scenario():
        world = World()
        world.cluster.fail(Fault("list", PROFILES, error=ApiError(404, "NotFound", "no such kind"), times=2))
        assert world.profiles.unready() == "WorkloadProfiles were not listed yet"
        running = world.start()
        await settle()
        assert world.profiles.unready() is None
        await world.make(a_profile())
        await world.clock.advance(2 * AGAIN_SECONDS + 1)
        assert world.profiles("team", "small").pairs == PAIRS
        await end(running)

    asyncio.run(scenario())


def test_a_server_that_is_away_at_the_start_is_not_taken_for_one_without_the_kind():
    async def scenario():
        world = World()
        await world.make(a_profile())
        world.cluster.away = True
        running = world.start()
        await world.clock.advance(1)
        assert world.profiles.unready() == "WorkloadProfiles were not listed yet"
        world.cluster.away = False
        await world.clock.advance(60)
        assert world.profiles.unready() is None
        assert world.profiles("team", "small").pairs == PAIRS
        await end(running)

    asyncio.run(scenario())


def test_what_is_wrong_with_a_profile_is_told_on_the_pods_that_name_it():
    async def scenario():
        world = World()
        profile = {"metadata": {"name": "bad"}, "spec": {"resources": {"requests": {"vram": True}}}}
        await world.make(profile)
        world.profiles("team", "bad")
        assert await world.profiles.fetch()
        (problem,) = world.profiles("team", "bad").problems
        assert str(problem).startswith("spec.resources.requests[vram]: is not a number (got 'true')")

    asyncio.run(scenario())


def test_an_api_server_that_is_away_at_the_start_leaves_open_whether_the_kind_is_there():
    """Neither does a webhook wait for ever for a kind that is not there, nor is it ready before it has looked."""

    async def scenario():
        for error in (ConnectionLostError("refused"), ApiError(503, "ServiceUnavailable", "not yet")):
            world = World()
            world.cluster.fail(Fault("list", PROFILES, error=error))
            absent = ApiError(404, "NotFound", "no such kind")
            running = world.start()
            await settle()
            assert world.profiles.unready() == "WorkloadProfiles were not listed yet"
            world.cluster.fail(Fault("list", PROFILES, error=absent, times=2))
            await world.clock.advance(UNKNOWN_SECONDS)
            assert world.profiles.unready() is None
            await world.make(a_profile())
            await world.clock.advance(2 * AGAIN_SECONDS)
            assert world.profiles.unready() is None
            assert world.profiles("team", "small").pairs == PAIRS
            await end(running)

    asyncio.run(scenario())
