"""The keeper of the certificate, on an API server in memory and a clock that the test owns.

What must hold at every moment is looked at from the API server's side: the leaf that is served verifies against
the authorities that the webhook configurations carry.
"""

import asyncio
import base64

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import MUTATING_WEBHOOKS, SECRETS, ApiError
from tessera.runtime.tls import Lifetimes, ReloadingContext
from tessera.webhook.certificate import CONFIGURATIONS, VALIDATING_WEBHOOKS, CertificateKeeper, Place
from tessera.wire.kube.webhooks import Target, mutating, validating

PLACE = Place("tessera-system", "tls", "tessera-webhook")
NAMES = ("webhook.svc",)
LIFETIMES = Lifetimes(authority=1_200, leaf=300, settle=20)


class World:
    """A cluster with the webhook's configurations, and replicas that look after one certificate."""

    def __init__(self):
        self.clock = ManualClock()
        self.cluster = MemoryCluster(wall=self.clock.wall)
        self.repaired = []
        self.contexts = []

    async def install(self):
        for kind, made in ((MUTATING_WEBHOOKS, mutating), (VALIDATING_WEBHOOKS, validating)):
            await self.cluster.create(kind, made(Target()), dict)
        return self

    def replica(self):
        context = ReloadingContext()
        self.contexts.append(context)
        return CertificateKeeper(
            self.cluster,
            PLACE,
            NAMES,
            context,
            lifetimes=LIFETIMES,
            clock=self.clock,
            repaired=lambda secret, why: self.repaired.append((secret.name, why)),
        )

    async def bundles(self):
        found = [await self.cluster.get(kind, "tessera-webhook", dict) for kind in CONFIGURATIONS]
        return [w["clientConfig"].get("caBundle", "") for one in found for w in one["webhooks"]]

    async def secret(self):
        return await self.cluster.get(SECRETS, "tls", dict, namespace="tessera-system")

    async def write(self, data):
        await self.cluster.patch(SECRETS, "tls", {"data": data}, dict, namespace="tessera-system")

    async def assert_trusted(self):
        """Every replica's leaf verifies against each webhook's bundle, now."""
        now = self.clock.wall()
        for context in self.contexts:
            leaf = context.loaded.x509
            assert leaf.not_valid_before_utc.timestamp() <= now < leaf.not_valid_after_utc.timestamp()
            for bundle in await self.bundles():
                assert any(signed(leaf, ca) for ca in authorities(bundle))


def authorities(bundle):
    return x509.load_pem_x509_certificates(base64.b64decode(bundle)) if bundle else []


def signed(leaf, authority):
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def test_the_first_replica_makes_the_certificate_and_the_second_serves_the_same():
    async def scenario():
        world = await World().install()
        first, second = world.replica(), world.replica()
        assert first.unready() == "the certificate was not looked at yet"
        await first.attend()
        await second.attend()
        assert world.contexts[0].loaded == world.contexts[1].loaded
        await world.assert_trusted()
        assert (first.unready(), second.unready()) == (None, None)
        assert len(set(await world.bundles())) == 1
        assert world.repaired == []

    asyncio.run(scenario())


def test_replicas_that_start_at_the_same_moment_agree():
    async def scenario():
        world = await World().install()
        keepers = [world.replica() for _ in range(3)]
        await asyncio.gather(*(keeper.attend() for keeper in keepers))
        await asyncio.gather(*(keeper.attend() for keeper in keepers))
        assert len({context.loaded.certificate for context in world.contexts}) == 1
        await world.assert_trusted()

    asyncio.run(scenario())


def test_at_every_moment_of_two_lives_of_an_authority_what_is_served_is_trusted():
    async def scenario():
        world = await World().install()
        keepers = [world.replica(), world.replica()]
        running = [asyncio.create_task(keeper.run()) for keeper in keepers]
        await world.clock.advance(0)
        leaves, bundles = set(), set()
        for _ in range(160):  # 2,400 seconds in steps of 15
            await world.assert_trusted()
            leaves.add(world.contexts[0].loaded.certificate)
            bundles.update(await world.bundles())
            assert [keeper.unready() for keeper in keepers] == [None, None]
            await world.clock.advance(15)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert len(leaves) >= 2_400 / 300
        assert max(len(authorities(bundle)) for bundle in bundles) == 2  # old and new at the same time
        assert len({ca.serial_number for bundle in bundles for ca in authorities(bundle)}) >= 3
        assert world.repaired == []

    asyncio.run(scenario())


def test_a_look_at_what_is_in_order_writes_nothing():
    async def scenario():
        world = await World().install()
        keeper = world.replica()
        await keeper.attend()
        before = len(world.cluster.calls)
        pause = await keeper.attend()
        assert {call.verb for call in world.cluster.calls[before:]} == {"get"}
        assert 1 <= pause <= 10

    asyncio.run(scenario())


@pytest.mark.parametrize("part", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("text", [b"garbage", b"", None])
def test_a_secret_that_somebody_spoilt_is_repaired(part, text):
    async def scenario():
        world = await World().install()
        keeper = world.replica()
        await keeper.attend()
        await world.write({part: None if text is None else base64.b64encode(text).decode()})
        await keeper.attend()
        await world.assert_trusted()
        assert keeper.unready() is None

    asyncio.run(scenario())


def test_a_secret_that_was_made_empty_is_filled_without_a_word():
    async def scenario():
        world = await World().install()
        await world.cluster.create(SECRETS, {"metadata": {"name": "tls"}}, dict, namespace="tessera-system")
        await world.replica().attend()
        await world.assert_trusted()
        assert world.repaired == []

    asyncio.run(scenario())


def test_a_secret_of_somebody_else_is_taken_over_and_told():
    async def scenario():
        world = await World().install()
        body = {"metadata": {"name": "tls"}, "data": {"ca.crt": "Zm9v", "ca.key": "YmFy", "note": "aGk="}}
        await world.cluster.create(SECRETS, body, dict, namespace="tessera-system")
        await world.replica().attend()
        await world.assert_trusted()
        assert "note" not in (await world.secret())["data"]
        assert world.repaired == [("tls", "it cannot be read, or its key is another's")]

    asyncio.run(scenario())


def test_a_certificate_that_expired_while_nobody_looked_is_made_anew():
    async def scenario():
        world = await World().install()
        keeper = world.replica()
        await keeper.attend()
        await world.clock.advance(2_000)  # past the authority's life
        assert keeper.unready() == "the certificate expired"
        await keeper.attend()
        await world.assert_trusted()
        assert keeper.unready() is None
        assert world.repaired == [("tls", "it expired")]

    asyncio.run(scenario())


def test_a_bundle_that_somebody_overwrote_is_put_right():
    async def scenario():
        world = await World().install()
        keeper = world.replica()
        await keeper.attend()
        await world.cluster.patch(VALIDATING_WEBHOOKS, "tessera-webhook", validating(Target()), dict)
        assert "" in await world.bundles()
        await keeper.attend()
        await world.assert_trusted()

    asyncio.run(scenario())


def test_a_clock_that_runs_behind_by_less_than_an_hour_accepts_the_certificate():
    async def scenario():
        world = await World().install()
        await world.replica().attend()
        world.clock.jump(-3_500)
        await world.assert_trusted()

    asyncio.run(scenario())


def test_without_a_configuration_it_says_so_and_renews_all_the_same():
    async def scenario():
        world = World()
        keeper = world.replica()
        await keeper.attend()
        named = "MutatingWebhookConfiguration and ValidatingWebhookConfiguration tessera-webhook"
        assert keeper.unready() == f"{named} is not there, so that nobody asks"
        first = world.contexts[0].loaded
        await world.clock.advance(210)  # past two thirds of the leaf's life
        await keeper.attend()
        assert world.contexts[0].loaded != first
        await world.install()
        await keeper.attend()
        await world.assert_trusted()
        assert keeper.unready() is None

    asyncio.run(scenario())


def test_an_api_server_that_is_away_costs_nothing_while_the_certificate_lasts():
    async def scenario():
        world = await World().install()
        keeper = world.replica()
        running = asyncio.create_task(keeper.run())
        await world.clock.advance(1)
        world.cluster.away = True
        await world.clock.advance(60)
        assert keeper.unready() is None
        world.cluster.away = False
        world.cluster.fail(Fault("get", SECRETS, error=ApiError(500, "Internal", "no"), times=3))
        await world.clock.advance(240)
        await world.assert_trusted()
        assert keeper.unready() is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_write_that_another_replica_made_first_is_looked_at_again():
    async def scenario():
        world = await World().install()
        world.cluster.fail(Fault("create", SECRETS, error=ApiError(409, "AlreadyExists", "no")))
        world.cluster.fail(Fault("patch", MUTATING_WEBHOOKS, error=ApiError(422, "Invalid", "test failed")))
        keeper = world.replica()
        await keeper.attend()
        await world.assert_trusted()

    asyncio.run(scenario())


def test_a_refusal_by_the_api_server_is_not_taken_for_a_conflict():
    async def scenario():
        world = await World().install()
        world.cluster.fail(Fault("create", SECRETS, error=ApiError(403, "Forbidden", "no")))
        with pytest.raises(ApiError, match="403"):
            await world.replica().attend()

    asyncio.run(scenario())
