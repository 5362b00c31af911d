"""How long a decision takes: Filter and Bind of the extender in one process, at a size, without a network.

    python bench/extender.py [NODES [DEVICES [BOUND]]]      default: 5000 nodes of 8 devices, 40,000 bound shares

Prints microseconds of CPU per call (p50, p99) for pods that find room and for pods that do not, of a restart (all
pods read anew) and of a rebuild of the fleet, and the memory of the process. The first line is a unit of measure:
decoding 500 names, which this machine should do in about 10 us.
"""

import asyncio
import gc
import json
import random
import resource
import sys
import time

import msgspec

from tessera.core.request import Claim, Dialect, Request
from tessera.core.share import ComputeMilli, MemoryMiB, ShareSpec
from tessera.core.ticket import Ticket
from tessera.core.units import MiB, Milli
from tessera.policy.rank import POLICIES
from tessera.runtime.clock import SYSTEM
from tessera.runtime.metrics import Metrics
from tessera.scheduler.extender import Extender
from tessera.scheduler.facts import Facts
from tessera.scheduler.mandate import Mandate
from tessera.scheduler.meters import Meters
from tessera.scheduler.offers import FULL
from tessera.scheduler.state import State
from tessera.scheduler.teller import Teller
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus
from tessera.wire.kube.names import ALLOCATION, REQUEST
from tessera.wire.kube.objects import KubePod
from tessera.wire.kube.request import encode_request

DEVICE_MIB = 81_920
NAMES = 500
CALLS = 4_000
SIZES = ((8_192, 100), (10_240, 125), (20_480, 250), (40_960, 500), (61_440, 750))


def a_text(memory: int, compute: int) -> str:
    """A request's annotation."""
    amount, milli = MemoryMiB(MiB(memory)), ComputeMilli(Milli(compute))
    share = ShareSpec(amount, amount, milli, milli)
    return encode_request(Request((Claim(("main",), 1, share),)), Dialect.NATIVE)


def a_pod(number: int, text: str) -> dict[str, object]:
    """A pod as kube-scheduler sends it, with what it usually carries."""
    ticket = Ticket(number * 7 % 512)
    amount = {ticket.resource: str(ticket.quantity)}
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10}
    return {
        "metadata": {
            "name": f"train-{number}",
            "generateName": "train-",
            "namespace": f"team-{number % 20}",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "train", "tessera.dev/managed": "true", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {REQUEST: text},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "uid": "x" * 36}],
        },
        "spec": {
            "schedulerName": "tessera-scheduler",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "env": [{"name": f"SETTING_{i}", "value": "v" * 40} for i in range(20)],
                    "resources": {"limits": amount, "requests": amount},
                    "livenessProbe": probe,
                    "readinessProbe": probe,
                    "volumeMounts": [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(4)],
                }
            ],
            "volumes": [{"name": f"v{i}", "emptyDir": {}} for i in range(4)],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


class Stub:
    """Answers every Binding with success, and takes no time."""

    async def post_raw(self, path: str, body: bytes) -> tuple[int, bytes]:  # noqa: ARG002
        return 201, b"{}"

    def record(self, *arguments: object) -> None:
        """An event that nobody reads."""


def world(nodes: int, devices: int) -> tuple[State, Extender]:
    """An extender with an inventory and no pods."""
    state, stub, mandate = State(POLICIES["binpack"]), Stub(), Mandate(None, "")
    mandate.rebuilt("always")
    for n in range(nodes):
        facts = tuple(
            DeviceFacts(uuid=f"GPU-{n:05d}-{i}", index=i, model="A100", memory_mib=DEVICE_MIB, vendor="NVIDIA")
            for i in range(devices)
        )
        state.saw_node(f"node-{n:05d}", {}, FULL)
        state.saw_gpu_node(f"node-{n:05d}", GPUNodeStatus(devices=facts))
    state.rebuild()
    teller = Teller(state, stub, SYSTEM)
    return state, Extender(state, Facts(), mandate, stub, SYSTEM, Meters(Metrics()), teller)


def figures(label: str, seconds: list[float]) -> None:
    """One line: median and 99th percentile."""
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{label:<46} p50 {p50 * 1e6:8.0f} us   p99 {p99 * 1e6:8.0f} us   max {ordered[-1] * 1e6:8.0f} us")


def filled(
    state: State, extender: Extender, bound: int, all_names: list[str], rng: random.Random
) -> list[KubePod]:
    """Bind so many shares and return their pods as the API server would list them."""
    texts = [a_text(*size) for size in SIZES[:3]]
    listed, facts = [], extender.facts
    for number in range(bound):
        pod = a_pod(number, texts[number % len(texts)])
        thin = msgspec.convert(pod, KubePod)
        verdict = state.filter(facts.of(thin), rng.sample(all_names, NAMES), 0.0)
        node = getattr(verdict, "node", None)
        if node is None:
            continue
        bindable = state.begin_bind(thin.metadata.uid, "", node, 0.0)
        assert not isinstance(bindable, str)
        pod["metadata"]["annotations"][ALLOCATION] = bindable.text  # type: ignore[index]
        pod["spec"]["nodeName"] = node  # type: ignore[index]
        pod["status"]["phase"] = "Running"  # type: ignore[index]
        listed.append(msgspec.convert(pod, KubePod))
        state.saw_pod(None, facts.of(listed[-1]), 0.0)
    return listed


def a_call(pod: dict[str, object], names: list[str]) -> bytes:
    """A Filter call's body."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def reference(names: list[str]) -> None:
    """What this machine takes, in this minute, for something that everybody knows."""
    body, took = json.dumps(names).encode(), []
    for _ in range(CALLS):
        began = time.process_time()
        msgspec.json.decode(body, type=list[str])
        took.append(time.process_time() - began)
    figures(f"(decoding {len(names)} names)", took)


async def finding_room(state: State, extender: Extender, names: list[str], rng: random.Random) -> None:
    """Filter and Bind of pods of all sizes."""
    texts, filters, binds = [a_text(*size) for size in SIZES], [], []
    for number in range(1_000_000, 1_000_000 + CALLS):
        pod = a_pod(number, texts[number % len(texts)])
        state.saw_pod(None, extender.facts.of(msgspec.convert(pod, KubePod)), 0.0)
        body = a_call(pod, rng.sample(names, min(NAMES, len(names))))
        began = time.process_time()
        answer = await extender("POST", "/filter", body)
        filters.append(time.process_time() - began)
        node = (json.loads(answer.body).get("NodeNames") or [None])[0]
        if node is None:
            continue
        meta: dict[str, str] = pod["metadata"]  # type: ignore[assignment]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        body = json.dumps(call).encode()
        began = time.process_time()
        await extender("POST", "/bind", body)
        binds.append(time.process_time() - began)
    figures(f"Filter, {min(NAMES, len(names))} names, finds room", filters)
    figures("Bind, without the API server", binds)


async def finding_none(extender: Extender, names: list[str], rng: random.Random) -> None:
    """Filter of pods that fit nowhere, of five kinds."""
    took = []
    for number in range(2_000_000, 2_000_000 + CALLS // 4):
        body = a_call(
            a_pod(number, a_text(DEVICE_MIB * 2, 100 + number % 5)), rng.sample(names, min(NAMES, len(names)))
        )
        began = time.process_time()
        await extender("POST", "/filter", body)
        took.append(time.process_time() - began)
    figures("Filter, finds no room", took)


async def measure(nodes: int, devices: int, bound: int) -> None:
    """Everything, once."""
    rng = random.Random(1)
    state, extender = world(nodes, devices)
    names = list(state.fleet.node_names)
    listed = filled(state, extender, bound, names, rng)
    print(f"{nodes} nodes, {len(state.fleet.devices)} devices, {len(state.holdings)} bound shares")
    gc.collect()
    gc.freeze()
    reference(names[:NAMES])
    await finding_room(state, extender, names, rng)
    await finding_none(extender, names, rng)
    began = time.process_time()
    state.rebuild()
    print(f"{'rebuild of the fleet':<46} {time.process_time() - began:.3f} s")
    began = time.process_time()
    state.restart()
    for pod in listed:
        state.saw_pod(None, extender.facts.of(pod), 0.0)
    print(f"{f'restart with {len(listed)} pods, after the list':<46} {time.process_time() - began:.3f} s")
    print(f"{'most memory':<46} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    sizes = [int(text) for text in sys.argv[1:]] + [5000, 8, 40_000][len(sys.argv) - 1 :]
    asyncio.run(measure(*sizes))
