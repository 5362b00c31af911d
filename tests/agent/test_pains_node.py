"""Rows of the list of users' pains on a node: what a container gets is what was decided, or it does not start."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from functools import wraps

import pytest

from agent.test_gate import ask, bundle_of, state_of
from agent.test_restarts import tenant_of
from agent.world import Rig, a_grant, until
from tessera.agent.store import read_region


def own_process(test):
    """A test of another machine than those beside it: a process sees one machine for its whole life."""

    @wraps(test)
    def alone(tmp_path):
        if os.environ.get("TESSERA_OWN_PROCESS"):
            test(tmp_path)
            return
        run = subprocess.run(
            [sys.executable, "-m", "pytest", f"{__file__}::{test.__name__}"],
            env={**os.environ, "TESSERA_OWN_PROCESS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert run.returncode == 0, run.stdout
        assert "1 passed" in run.stdout

    return alone


# row 4


@own_process
def test_row_4_a_container_gets_the_devices_that_were_chosen_whatever_ids_the_kubelet_sends(tmp_path):
    """Eight devices by one ticket: five ids of the kubelet's, none of which names a device."""

    async def scenario():
        async with Rig(tmp_path, simulate="8xA100-SXM4-80GB") as rig:
            await rig.registered()
            chosen = rig.uuids[::-1]
            grants = tuple(a_grant(uuid, 1000 + place, 7 - place) for place, uuid in enumerate(chosen))
            pod = await rig.bind(tickets={"main": 4}, grants={"main": grants})
            answer = await rig.kubelet.allocate("tessera.dev/ticket-0", 5)
            assert {d.name for d in answer.cdi_devices} == {f"tessera.dev/gpu={uuid}" for uuid in chosen}
            share = rig.parts.store.find(pod.metadata.uid, "main")
            region = read_region(share.region)
            assert [(d.uuid, d.memory_limit >> 20) for d in region.devices] == [
                (uuid, 1000 + place) for place, uuid in enumerate(chosen)
            ]
            text = rig.parts.metrics.render().decode()
            rows = [line for line in text.splitlines() if line.startswith("tessera_container_memory_limit_bytes{")]
            told = {line.split('device="')[1].split('"')[0]: int(float(line.split()[-1])) >> 20 for line in rows}
            assert told == {uuid: 1000 + place for place, uuid in enumerate(chosen)}

    asyncio.run(scenario())


# row 26 and the list of KAI's complaints, section 5: nothing starts without its limit


def foreign(data):
    """The same library for another processor (EM_AARCH64 is 183; ELF header, e_machine)."""
    return data[:18] + (183).to_bytes(2, "little") + data[20:]


DAMAGES = {
    "truncated": lambda path: replace(path, path.read_bytes()[:4096]),
    "empty": lambda path: replace(path, b""),
    "of another processor": lambda path: replace(path, foreign(path.read_bytes())),
    "missing": lambda path: path.unlink(),
}


def replace(path, data):
    """Put another file in its place, as somebody would who copies one over it."""
    other = path.with_suffix(".other")
    other.write_bytes(data)
    other.replace(path)


@pytest.mark.parametrize("name", DAMAGES)
def test_row_26_a_limiter_that_would_not_load_keeps_the_container_from_starting(tmp_path, name):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            DAMAGES[name](rig.parts.node.payload.library)
            code, said = await ask(rig, state_of(pod, bundle))
            assert code == 1
            assert "container main of pod team/p is not started" in said
            assert "libtessera.so" in said

    asyncio.run(scenario())


def test_kai_5_of_a_hundred_containers_none_starts_while_the_agent_is_dead_or_stalled(tmp_path):
    """Each of them would be let in by an agent that answers: the same question passes before and afterwards."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            question = state_of(pod, bundle)
            assert await ask(rig, question) == (0, "")
            await rig.stop_agent()
            dead = await asyncio.gather(*(ask(rig, question, timeout="1") for _ in range(100)))
            path = rig.directory / "gate.sock"
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as stalled:
                stalled.bind(str(path))
                stalled.listen(200)
                slow = await asyncio.gather(*(ask(rig, question, timeout="1") for _ in range(100)))
            assert {code for code, _ in (*dead, *slow)} == {1}
            others = [said for _, said in (*dead, *slow) if "the node agent does not answer" not in said]
            assert not others, others[0]
            await rig.start_agent()
            assert await ask(rig, question) == (0, "")

    asyncio.run(scenario())


# row 85


def test_row_85_a_pod_that_waited_long_for_its_devices_still_gets_its_own(tmp_path):
    """The kubelet stalls before it asks for the first pod's, others come and are served in the meantime, and the
    agent is restarted; then it asks.
    """

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            sizes = {f"p{i}": 256 * (i + 1) for i in range(5)}
            pods = {
                name: await rig.bind(name, {"main": i}, {"main": (a_grant(rig.uuids[0], size),)})
                for i, (name, size) in enumerate(sizes.items())
            }
            order = ["p1", "p2", "p3", "p4", "p0"]
            for name in order:
                if name == "p0":
                    await rig.stop_agent()
                    rig.kubelet.healthy.clear()
                    await rig.start_agent()
                    await rig.registered()
                await rig.kubelet.allocate("tessera.dev/ticket-0", int(name[1]) + 1)
            for name, pod in pods.items():
                share = rig.parts.store.find(pod.metadata.uid, "main")
                assert read_region(share.region).devices[0].memory_limit >> 20 == sizes[name]

    asyncio.run(scenario())


# row 68


def test_row_68_a_restart_of_the_machine_changes_nothing_of_its_inventory(tmp_path):
    """What lies in memory (CDI specification, sockets) is gone, and the kubelet is another; the disk stays."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await until(lambda: rig.parts.publisher.published, "the inventory is published")
            before, calls = rig.parts.publisher.published, len(rig.cluster.calls)
            specification = rig.directory / "cdi/tessera.dev-gpu.json"
            spec = json.loads(specification.read_text())
            await rig.stop_agent()
            await rig.kubelet.stop()
            shutil.rmtree(specification.parent)
            (rig.directory / "gate.sock").unlink(missing_ok=True)
            rig.kubelet.healthy.clear()
            await rig.kubelet.start()
            await rig.start_agent()
            await rig.registered()
            await until(lambda: rig.parts.publisher.published, "the inventory is published")
            assert rig.parts.publisher.published == before
            assert json.loads(specification.read_text()) == spec
            written = [c for c in rig.cluster.calls[calls:] if c.verb in ("create", "replace", "patch", "delete")]
            assert not written
            pod = await rig.bind(grants={"main": (a_grant(rig.uuids[0], 256),)})
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            share = rig.parts.store.find(pod.metadata.uid, "main")
            with tenant_of(rig, share, "fill", "64") as tenant:
                said, _ = await asyncio.to_thread(tenant.communicate)
            assert b"reached_mib 256" in said

    asyncio.run(scenario())


# the list of KAI's complaints, section 6


def test_kai_15_two_processes_of_a_container_have_one_share_together(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind(grants={"main": (a_grant(rig.uuids[0], 1024),)})
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            share = rig.parts.store.find(pod.metadata.uid, "main")
            with tenant_of(rig, share, "hold", "640") as first:
                await until(
                    lambda: read_region(share.region).devices[0].used_bytes == 640 << 20, "640 MiB are held"
                )
                with tenant_of(rig, share, "fill", "64") as second:
                    said, _ = await asyncio.to_thread(second.communicate)
                first.kill()
            assert b"reached_mib 384" in said

    asyncio.run(scenario())


@own_process
def test_kai_5_every_name_that_is_handed_out_is_in_the_specification(tmp_path):
    async def scenario():
        async with Rig(tmp_path, simulate="8xA100-SXM4-80GB") as rig:
            await rig.registered()
            grants = tuple(a_grant(uuid, 100, i) for i, uuid in enumerate(rig.uuids))
            await rig.bind(tickets={"main": 4}, grants={"main": grants})
            answer = await rig.kubelet.allocate("tessera.dev/ticket-0", 5)
            spec = json.loads((rig.directory / "cdi/tessera.dev-gpu.json").read_text())
            known = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
            assert {device.name for device in answer.cdi_devices} <= known
            assert len(answer.cdi_devices) == 8

    asyncio.run(scenario())
