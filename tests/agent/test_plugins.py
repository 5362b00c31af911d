"""Sixteen plugins of one process, registered for as long as a kubelet is there."""

import asyncio

from agent.world import MiniKubelet, until
from tessera.agent.allocate import AllocateError
from tessera.agent.plugin import PluginServers, Readiness, ticket_plugins
from tessera.core.ticket import RESOURCES
from tessera.runtime.clock import SYSTEM, settle


async def nobody(resource, quantity):
    raise AllocateError(f"asked for {quantity} of {resource}")


class Served:
    """Plugins before a kubelet, looked after by hand."""

    def __init__(self, directory, *, ready=True):
        self.kubelet = MiniKubelet(directory)
        self.readiness = Readiness(ready=ready)
        self.servers = PluginServers(directory, ticket_plugins(nobody, self.readiness), SYSTEM)

    async def __aenter__(self):
        await self.kubelet.start()
        return self

    async def __aexit__(self, *_):
        await self.servers.close()
        await self.kubelet.stop()
        await settle()

    async def listed(self, healthy=2048):
        kubelet = self.kubelet
        await until(
            lambda: len(kubelet.healthy) == 16 and set(kubelet.healthy.values()) == {healthy},
            f"16 lists of {healthy} healthy devices",
        )


def test_all_ticket_resources_are_advertised(tmp_path):
    async def scenario():
        async with Served(tmp_path / "plugins") as served:
            await served.servers.look()
            await served.listed()
            assert set(served.kubelet.healthy) == set(RESOURCES)
            assert served.servers.registered

    asyncio.run(scenario())


def test_nothing_is_done_while_nothing_changes(tmp_path):
    async def scenario():
        async with Served(tmp_path / "plugins") as served:
            for _ in range(5):
                await served.servers.look()
            await served.listed()
            assert served.servers.registrations == 1
            assert set(served.kubelet.lists.values()) == {1}

    asyncio.run(scenario())


def test_a_kubelet_that_starts_again_is_told_again(tmp_path):
    """TensorFusion's plugins stay unregistered until their process restarts."""

    async def scenario():
        async with Served(tmp_path / "plugins") as served:
            for expected in (1, 2, 3):
                await served.servers.look()
                await served.listed()
                assert served.servers.registrations == expected
                await served.kubelet.stop()
                await served.servers.look()
                assert not served.servers.registered
                served.kubelet.healthy.clear()
                await served.kubelet.start()

    asyncio.run(scenario())


def test_a_socket_that_somebody_removed_is_made_anew(tmp_path):
    async def scenario():
        async with Served(tmp_path / "plugins") as served:
            await served.servers.look()
            (tmp_path / "plugins/tessera-ticket-7.sock").unlink()
            await served.servers.look()
            await served.listed()
            assert len(list((tmp_path / "plugins").glob("tessera-ticket-*.sock"))) == 16
            assert served.servers.registrations == 2

    asyncio.run(scenario())


def test_without_a_kubelet_nothing_is_registered_and_nothing_fails(tmp_path):
    async def scenario():
        (tmp_path / "plugins").mkdir()
        served = Served(tmp_path / "plugins")
        await served.servers.look()
        (tmp_path / "plugins/kubelet.sock").write_text("no socket")
        await served.servers.look()
        assert (served.servers.registered, served.servers.registrations) == (False, 0)
        await served.servers.close()

    asyncio.run(scenario())


def test_a_node_that_can_hand_out_nothing_offers_nothing_until_it_can(tmp_path):
    """Row 65: all unhealthy at the start, healthy later: the kubelet sees them."""

    async def scenario():
        async with Served(tmp_path / "plugins", ready=False) as served:
            await served.servers.look()
            await served.listed(healthy=0)
            served.readiness.set(ready=True)
            await served.listed()
            served.readiness.set(ready=True)
            served.readiness.set(ready=False)
            await served.listed(healthy=0)
            assert set(served.kubelet.lists.values()) == {3}

    asyncio.run(scenario())


def test_closing_takes_the_sockets_away(tmp_path):
    async def scenario():
        async with Served(tmp_path / "plugins") as served:
            await served.servers.look()
            await served.servers.close()
            assert [path.name for path in (tmp_path / "plugins").iterdir()] == ["kubelet.sock"]

    asyncio.run(scenario())
