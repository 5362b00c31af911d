"""What the agent looks at again and again: shares that are over, devices of others, faults, escapes."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from agent.world import Rig, a_kube_pod, until
from tessera.agent.foreign import PodResources, foreign_users, told_apart
from tessera.agent.machine import FaultFile, outer_processes
from tessera.agent.patrol import Breach
from tessera.agent.pods import statuses_of
from tessera.agent.rounds import Patrol, look_for_foreign
from tessera.agent.sweep import candidates, over
from tessera.runtime.kube.port import EVENTS, PODS
from tessera.runtime.kubelet.podresources_grpc import PodResourcesListerBase, PodResourcesListerStub
from tessera.runtime.nvml import DeviceProcess
from tessera.wire.kubelet import podresources_pb2 as pb

OLD = 1000.0
NOW = 2000.0


def test_shares_of_pods_that_are_gone_or_finished_are_over():
    pods = [a_kube_pod("runs", phase="Running"), a_kube_pod("done", phase="Succeeded")]
    directories = {"uid-runs": OLD, "uid-done": OLD, "uid-gone": OLD}
    assert candidates(directories, pods, NOW) == ("uid-done", "uid-gone")


def test_a_share_that_is_too_new_for_the_list_stays():
    assert candidates({"uid-new": NOW - 59}, [], NOW) == ()
    assert candidates({"uid-old": NOW - 60}, [], NOW) == ("uid-old",)


def test_a_clock_that_was_set_back_keeps_no_share_for_ever():
    assert candidates({"uid-x": NOW + 10_000}, [], NOW) == ("uid-x",)


def test_a_pod_that_still_has_processes_keeps_its_share():
    assert over(("uid-a", "uid-b"), {"uid-b"}) == ("uid-a",)


def test_a_share_is_removed_once_its_pod_is_gone_and_kept_across_a_containers_end(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            stays, goes = await rig.bind("stays", {"main": 1}), await rig.bind("goes", {"main": 2})
            for quantity in (2, 3):
                await rig.kubelet.allocate("tessera.dev/ticket-0", quantity)
            await rig.report("stays", {"name": "main", "restartCount": 1, "state": {"waiting": {}}})
            await rig.cluster.delete(PODS, "goes", namespace="team", grace_seconds=0)
            await until(lambda: rig.parts.pods.by_uid(goes.metadata.uid) is None, "the watch shows it gone")
            sweeper = rig.sweeper()
            assert await sweeper.look() == ()
            for uid in (stays.metadata.uid, goes.metadata.uid):
                os.utime(rig.state / "containers" / uid, (OLD, OLD))
            assert await sweeper.look() == (goes.metadata.uid,)
            assert set(rig.parts.store.pod_directories()) == {stays.metadata.uid}

    asyncio.run(scenario())


def test_what_the_watch_does_not_show_is_not_removed_before_the_api_server_says_so(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind()
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            os.utime(rig.state / "containers" / pod.metadata.uid, (OLD, OLD))
            rig.parts.pods._by_uid.clear()
            assert await rig.sweeper().look() == ()

    asyncio.run(scenario())


def held(namespace, pod, resource, *devices):
    containers = [
        pb.ContainerResources(
            name="main", devices=[pb.ContainerDevices(resource_name=resource, device_ids=devices)]
        )
    ]
    return pb.PodResources(name=pod, namespace=namespace, containers=containers)


def test_devices_of_other_plugins_are_known_by_every_way_of_writing_an_id():
    pods = [
        held("b", "whole", "nvidia.com/gpu", "GPU-1"),
        held("b", "slice", "nvidia.com/gpu.shared", "GPU-2::3"),
        held("b", "hami", "nvidia.com/gpu", "GPU-3-7"),
        held("a", "second", "nvidia.com/gpu", "GPU-1::0"),
        held("b", "ours", "tessera.dev/ticket-3", "ticket-3-1", "GPU-4"),
        held("b", "other", "vendor.com/nic", "eth0"),
    ]
    ours = {"GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5"}
    assert foreign_users(pods, ours) == {"GPU-1": "a/second", "GPU-2": "b/slice", "GPU-3": "b/hami"}


def test_tools_are_told_devices_in_place_of_tickets():
    pods = [
        held("team", "p", "tessera.dev/ticket-1", "ticket-1-5", "ticket-1-9"),
        held("x", "y", "vendor.com/nic", "e"),
    ]
    told = told_apart(pods, {("team", "p", "main"): ["GPU-1"]}, "nvidia.com/gpu")
    assert told[0].containers[0].devices[0] == pb.ContainerDevices(
        resource_name="nvidia.com/gpu", device_ids=["GPU-1"]
    )
    assert told[1] == pods[1]
    assert pods[0].containers[0].devices[0].resource_name == "tessera.dev/ticket-1"


def test_a_container_that_we_know_nothing_of_is_told_without_devices():
    (told,) = told_apart([held("team", "p", "tessera.dev/ticket-1", "t")], {}, "nvidia.com/gpu")
    assert len(told.containers[0].devices) == 0


class Lister(PodResourcesListerBase):
    """A kubelet's pod resources."""

    def __init__(self):
        self.pods = []

    async def List(self, stream):  # noqa: N802 - the name on the wire
        await stream.recv_message()
        await stream.send_message(pb.ListPodResourcesResponse(pod_resources=self.pods))

    async def Get(self, stream):  # noqa: N802 - the name on the wire
        raise AssertionError

    async def GetAllocatableResources(self, stream):  # noqa: N802 - the name on the wire
        raise AssertionError


def test_a_device_that_another_plugin_gave_away_is_set_aside_until_it_is_back(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            lister, socket = Lister(), tmp_path / "pod-resources.sock"
            server = Server([lister])
            await server.start(path=str(socket))
            lister.pods = [held("team", "other", "nvidia.com/gpu", rig.uuids[1])]
            await look_for_foreign(socket, rig.parts.node)
            await until(lambda: rig.foreign() == ["", "team/other"], "set aside")
            lister.pods = []
            await look_for_foreign(socket, rig.parts.node)
            await until(lambda: rig.foreign() == ["", ""], "back")
            server.close()
            await server.wait_closed()
            await look_for_foreign(tmp_path / "nowhere.sock", rig.parts.node)
            assert rig.foreign() == ["", ""]

    asyncio.run(scenario())


def test_the_tools_socket_answers_as_the_kubelets_does(tmp_path):
    async def scenario():
        lister, kubelet, tools = Lister(), Server([]), tmp_path / "tools.sock"
        lister.pods = [held("team", "p", "tessera.dev/ticket-1", "t")]
        kubelet = Server([lister])
        await kubelet.start(path=str(tmp_path / "kubelet.sock"))
        ours = PodResources(
            tmp_path / "kubelet.sock", lambda: {("team", "p", "main"): ["GPU-1"]}, "nvidia.com/gpu"
        )
        server = Server([ours])
        await server.start(path=str(tools))
        channel = Channel(path=str(tools))
        stub = PodResourcesListerStub(channel)
        listed = await stub.List(pb.ListPodResourcesRequest())
        one = await stub.Get(pb.GetPodResourcesRequest(pod_namespace="team", pod_name="p"))
        assert one.pod_resources == listed.pod_resources[0]
        assert list(one.pod_resources.containers[0].devices[0].device_ids) == ["GPU-1"]
        for call in (
            stub.Get(pb.GetPodResourcesRequest(pod_namespace="team", pod_name="q")),
            stub.GetAllocatableResources(pb.AllocatableResourcesRequest()),
        ):
            with pytest.raises(GRPCError):
                await call
        channel.close()
        for each in (server, kubelet):
            each.close()
            await each.wait_closed()
        await asyncio.sleep(0)

    asyncio.run(scenario())


def test_faults_of_a_simulated_machine_are_whole_lines_that_came_since(tmp_path):
    path = tmp_path / "faults"
    path.write_text("GPU-0 1\n")
    source = FaultFile(path)
    assert source.take() == ()
    with path.open("a") as file:
        file.write("GPU-1 79\nnonsense\nGPU-2 x\nGPU-3 9")
    assert source.take() == (("GPU-1", 79),)
    with path.open("a") as file:
        file.write("4\n")
    assert source.take() == (("GPU-3", 94),)
    assert FaultFile(tmp_path / "none").take() == ()


async def notes(rig, reason):
    await rig.parts.recorder.flush()
    return [e["note"] for e in (await rig.cluster.list(EVENTS, dict)).items if e["reason"] == reason]


def test_a_fatal_fault_reaches_inventory_pods_and_the_next_agent(tmp_path):
    """Rows 63 and 69: a fatal fault stays out, over restarts of the agent, until somebody says it was mended."""

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind()
            await rig.kubelet.allocate("tessera.dev/ticket-1", 6)
            rig.fault(rig.uuids[0], 79)
            await until(lambda: rig.healthy() == [False, True], "published")
            await until(lambda: rig.parts.recorder.counts.written, "an event")
            (note,) = await notes(rig, "DeviceFault")
            assert note.startswith(
                f"device {rig.uuids[0]} is fatally faulty: XID 79: the device has fallen off the bus"
            )
            await rig.bind("next", {"main": 1})
            with pytest.raises(GRPCError, match="is not healthy: XID 79"):
                await rig.kubelet.allocate("tessera.dev/ticket-0", 2)
            await rig.stop_agent()
            await rig.start_agent()
            await until(lambda: rig.healthy() == [False, True], "still so")
            await rig.stop_agent()
            rig.settings["forget_faults"] = True
            await rig.start_agent()
            await until(lambda: rig.healthy() == [True, True], "mended")

    asyncio.run(scenario())


def test_a_transient_fault_is_over_by_itself(tmp_path):
    async def scenario():
        async with Rig(tmp_path, settings={"quiet": 0.5}) as rig:
            await until(lambda: rig.healthy() == [True, True], "published")
            rig.fault(rig.uuids[0], 54)
            await until(lambda: rig.healthy() == [False, True], "set aside")
            await until(lambda: rig.healthy() == [True, True], "back")

    asyncio.run(scenario())


def test_a_running_container_that_never_passed_the_gate_is_told(tmp_path):
    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            await rig.bind()
            status = {"name": "main", "containerID": "containerd://abc", "state": {"running": {}}}
            await rig.report("p", status)
            await until(lambda: rig.parts.recorder.counts.written, "an event")
            (note,) = await notes(rig, "IsolationAbsent")
            assert "container main runs and never passed the gate" in note

    asyncio.run(scenario())


def test_a_container_whose_successor_passed_the_gate_is_not_told_however_long_the_api_shows_it(tmp_path):
    """While the API server is away it goes on showing the last container; a later one without the gate is told."""

    def running(container_id, since):
        return {"name": "main", "containerID": f"containerd://{container_id}", "state": {"running": since}}

    async def scenario():
        async with Rig(tmp_path) as rig:
            await rig.registered()
            pod = await rig.bind("p", {"main": 1})
            await rig.kubelet.allocate("tessera.dev/ticket-0", 2)
            share = rig.parts.store.find(pod.metadata.uid, "main")
            rig.parts.store.admit(share, "successor")
            os.utime(share.region.parent / "gated", (NOW, NOW))
            patrol = Patrol(
                rig.parts.machine, rig.parts.store, rig.parts.pods, rig.parts.recorder, rig.parts.node, kill=False
            )

            def shown():
                return next((s.container_id for s in statuses_of(rig.parts.pods.by_uid(share.grant.uid))), "")

            async def told(status):
                await rig.report("p", status)
                await until(lambda: shown() == status["containerID"], "the watch shows it")
                patrol.look()
                patrol.look()
                return patrol.counts[Breach.UNGATED]

            before, after = "1970-01-01T00:33:19Z", "1970-01-01T00:33:20Z"  # 1,999 and 2,000 s since 1970
            assert await told(running("predecessor", {"startedAt": before})) == 0
            assert await told(running("successor", {"startedAt": after})) == 0
            assert await told(running("another", {"startedAt": after})) == 1

    asyncio.run(scenario())


def test_processes_of_a_simulated_machine_are_found_by_what_they_map(tmp_path):
    state = tmp_path / "machine.conf.state"
    state.write_bytes(bytes(4096))
    code = (
        "import mmap,os,sys,time; m=mmap.mmap(os.open(sys.argv[1],os.O_RDWR),0); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, state], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        listed = [DeviceProcess(process.pid, "GPU-a", 7), DeviceProcess(os.getpid(), "GPU-b", 9)]
        assert list(outer_processes(listed, state)) == listed[:1]
        process.send_signal(signal.SIGKILL)
    assert list(outer_processes([], state)) == []
    assert list(outer_processes(listed, tmp_path / "none")) == []
