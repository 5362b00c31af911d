"""The gate without a container runtime: the real program asks a real agent about bundles made by hand."""

import asyncio
import json
import os
import socket

import pytest

from agent.world import Rig, a_grant
from tessera.agent.store import read_region
from tessera.runtime.native import NATIVE

GATE = NATIVE / "tessera-gate"


def bundle_of(rig, answer, directory, *, spec=None):
    """The bundle that a runtime would make of the kubelet's answer and the CDI spec."""
    spec = spec or json.loads((rig.directory / "cdi/tessera.dev-gpu.json").read_text())
    named = {d.name.partition("=")[2] for d in answer.cdi_devices}
    edits = [spec["containerEdits"], *(d["containerEdits"] for d in spec["devices"] if d["name"] in named)]
    mounts = [{"destination": m.container_path, "source": m.host_path, "type": "bind"} for m in answer.mounts]
    mounts += [
        {"destination": m["containerPath"], "source": m["hostPath"], "type": "bind"}
        for edit in edits for m in edit.get("mounts", [])
    ]  # fmt: skip
    config = {
        "process": {"env": ["PATH=/bin", *(v for edit in edits for v in edit.get("env", []))]},
        "mounts": mounts,
        "linux": {"devices": []},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def state_of(pod, bundle, container="main", container_id="a" * 64):
    return {
        "ociVersion": "1.2.0",
        "id": container_id,
        "status": "creating",
        "pid": os.getpid(),
        "bundle": str(bundle),
        "annotations": {
            "io.kubernetes.cri.sandbox-uid": pod.metadata.uid,
            "io.kubernetes.cri.sandbox-name": pod.metadata.name,
            "io.kubernetes.cri.sandbox-namespace": pod.metadata.namespace,
            "io.kubernetes.cri.container-name": container,
        },
    }


async def ask(rig, state, timeout="5"):
    """What the gate program says and how it exits."""
    process = await asyncio.create_subprocess_exec(
        GATE, "--socket", str(rig.directory / "gate.sock"), "--timeout", timeout,
        stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    text = state if isinstance(state, bytes) else json.dumps(state).encode()
    _, said = await process.communicate(text)
    return process.returncode, said.decode()


def test_a_granted_container_passes_and_is_noted_once_and_again(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            for _ in range(2):
                assert await ask(rig, state_of(pod, bundle)) == (0, "")
            share = rig.parts.store.find(pod.metadata.uid, "main")
            assert share.gated == "a" * 64
            assert rig.parts.gatekeeper.answers == {"ok": 2, "no": 0}

    asyncio.run(scenario())


def test_swapped_tickets_never_pass(tmp_path):
    """Two pods, the kubelet asks in the wrong order: each gets the other's share, and neither starts."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            small = await rig.bind("small", {"main": 1}, {"main": (a_grant(rig.uuids[0], 512),)})
            large = await rig.bind("large", {"main": 2}, {"main": (a_grant(rig.uuids[1], 9999, 1),)})
            answers = [await rig.kubelet.allocate("tessera.dev/ticket-0", n) for n in (2, 3)]
            for_small = bundle_of(rig, answers[1], tmp_path / "a")
            for_large = bundle_of(rig, answers[0], tmp_path / "b")
            code, said = await ask(rig, state_of(small, for_small))
            assert code == 1
            assert "container main of pod team/small is not started" in said
            assert "it was given the share of container main of pod team/large" in said
            assert (await ask(rig, state_of(large, for_large)))[0] == 1
            assert (await ask(rig, state_of(small, bundle_of(rig, answers[0], tmp_path / "c"))))[0] == 0

    asyncio.run(scenario())


def test_a_container_that_was_granted_nothing_is_refused(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            code, said = await ask(rig, state_of(pod, bundle, container="side"))
            assert code == 1
            assert "no share was granted to it; it was given the share of container main of pod team/p" in said

    asyncio.run(scenario())


BROKEN = {
    "no JSON": (b"{", "is no OCI state"),
    "no identity": (b'{"id":"x","bundle":"/nowhere"}', "its runtime does not say which pod it is of"),
    "no bundle": (
        b'{"id":"x","bundle":"/nowhere","annotations":{"io.kubernetes.pod.uid":"u",'
        b'"io.kubernetes.container.name":"c"}}',
        "No such file",
    ),
    "a name that is a path": (
        b'{"id":"x","bundle":"/","annotations":{"io.kubernetes.pod.uid":"..","io.kubernetes.container.name":"c"}}',
        "is not started",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_question_that_makes_no_sense_is_refused(tmp_path, name):
    question, why = BROKEN[name]

    async def scenario():
        async with Rig(tmp_path) as rig:
            code, said = await ask(rig, question)
            assert code == 1
            assert why in said

    asyncio.run(scenario())


def test_a_container_whose_process_the_agent_cannot_see_is_refused(tmp_path):
    """kai 6, row 11: an agent in a PID namespace of its own would watch nobody."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            code, said = await ask(rig, {**state_of(pod, bundle), "pid": 2**22 + 1})
            assert code == 1
            assert "give the agent the node's PID namespace" in said

    asyncio.run(scenario())


def test_nothing_starts_while_the_agent_is_dead_or_stalled(tmp_path):
    """kai 5, "agent dead at create": 0 of 20 containers start unlimited."""

    async def scenario():
        path = str(tmp_path / "gate.sock")
        rig = Rig(tmp_path)
        dead = [await ask(rig, b"{}", timeout="0.2") for _ in range(10)]
        with socket.socket(socket.AF_UNIX) as stalled:
            stalled.bind(path)
            stalled.listen(20)
            slow = [await ask(rig, b"{}", timeout="0.2") for _ in range(10)]
        assert {code for code, _ in dead + slow} == {1}
        assert all("the node agent does not answer" in said for _, said in dead + slow)

    asyncio.run(scenario())


def test_a_restart_of_the_agent_costs_a_delay_and_no_container(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            await rig.stop_agent()
            asking = asyncio.create_task(ask(rig, state_of(pod, bundle)))
            await asyncio.sleep(0)
            await rig.start_agent()
            assert await asking == (0, "")

    asyncio.run(scenario())


def test_the_gate_needs_no_api_server(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            rig.cluster.away = True
            await rig.stop_agent()
            await rig.start_agent()
            assert (await ask(rig, state_of(pod, bundle)))[0] == 0

    asyncio.run(scenario())


def test_a_container_that_starts_again_starts_with_an_empty_share(tmp_path):
    """What a killed predecessor used is given back; nobody else can, its PID namespace is gone."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            await ask(rig, state_of(pod, bundle, container_id="a" * 64))
            share = rig.parts.store.find(pod.metadata.uid, "main")
            inode = share.region.stat().st_ino
            with share.region.open("r+b") as file:  # the first device's gauge: 3 granules of 512 bytes
                file.seek(8192)
                file.write((3 << 31).to_bytes(8, "little"))
            assert read_region(share.region).devices[0].used_bytes == 1536
            assert await ask(rig, state_of(pod, bundle, container_id="a" * 64)) == (0, "")
            assert read_region(share.region).devices[0].used_bytes == 1536
            assert await ask(rig, state_of(pod, bundle, container_id="b" * 64)) == (0, "")
            after = read_region(share.region)
            assert (after.devices[0].used_bytes, after.devices[0].memory_limit) == (0, 1024 << 20)
            assert share.region.stat().st_ino == inode

    asyncio.run(scenario())


def test_a_hundred_questions_at_once_are_answered(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            bundle = bundle_of(rig, await rig.kubelet.allocate("tessera.dev/ticket-1", 6), tmp_path / "bundle")
            answers = await asyncio.gather(*(ask(rig, state_of(pod, bundle)) for _ in range(100)))
            assert set(answers) == {(0, "")}

    asyncio.run(scenario())
