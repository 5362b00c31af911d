"""The load: a stream of decisions drawn by seed (create, burst, delete, recreate, evict, cordon, break), carried
out against an API server that may be away. What is decided follows from the seed; what comes of it does not.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from cluster.chaos.caller import Caller
from cluster.chaos.manifests import deployment, hollow_pod, real_pod

NAMESPACE: Final = "chaos"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
GPU_NODES: Final = "/apis/tessera.dev/v1alpha1/gpunodes"
REFUSED: Final = frozenset({400, 403, 422})
"""Statuses by which a webhook or the API server says that a pod of ours is wrong: none of them is."""

TURN_SECONDS: Final = 0.25
SWEEP_SECONDS: Final = 3.0
AWAY_SECONDS: Final = (1.0, 10.0)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is: simulated nodes, pods at once, the image of real pods (empty: no real node)."""

    nodes: tuple[str, ...]
    pods: int
    image: str = ""
    real_pods: int = 8


class Load:
    """Run :meth:`run` in a loop; it ends once ``ended`` is set, with every node back as it was."""

    def __init__(self, caller: Caller, seed: int, size: Size, inventories: dict[str, dict[str, Any]]) -> None:
        self._caller, self._size = caller, size
        self._rng = random.Random(f"{seed}/load")
        self._inventories = inventories
        self._names: list[str] = []
        self._broken: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._made = 0
        self.counts: Counter[str] = Counter()
        self.refusals: list[str] = []
        self._actions: tuple[tuple[int, str, Callable[[], Awaitable[None]]], ...] = (
            (40, "create", self._create),
            (2, "burst", self._burst),
            (10, "delete", self._delete),
            (5, "delete while created", self._create_and_delete),
            (5, "recreate", self._recreate),
            (4, "evict", self._evict),
            (2, "cordon", self._cordon),
            (1, "node leaves", self._node_leaves),
            (3, "device breaks", self._device_breaks),
            (1, "device is lost", self._device_is_lost),
            (1, "pods of a controller", self._delete_of_controller),
        )

    async def run(self, ended: threading.Event) -> None:
        """Until ``ended``."""
        for name in ("web", "batch"):
            await self._insist("POST", DEPLOYMENTS, deployment(name, 5), wanted=(201, 409))
        sweeper = asyncio.create_task(self._sweep())
        weights = [weight for weight, _, _ in self._actions]
        while not ended.is_set():
            _, what, action = self._rng.choices(self._actions, weights)[0]
            self.counts[what] += 1
            self._spawn(action())
            if self._size.image and self._rng.random() < 0.25:
                self.counts["create on the real node"] += 1
                self._spawn(self._create_real())
            await asyncio.sleep(TURN_SECONDS)
        sweeper.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, job: Awaitable[None]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _insist(self, method: str, path: str, body: Any, wanted: tuple[int, ...]) -> None:
        while (await self._caller.call(method, path, body))[0] not in wanted:
            await asyncio.sleep(0.3)

    async def _sweep(self) -> None:
        """Know which pods there are, and delete those that are over."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            status, listed = await self._caller.call("GET", PODS)
            if status != 200:
                continue
            over = [p for p in listed["items"] if p["status"].get("phase") in ("Succeeded", "Failed")]
            names = {pod["metadata"]["name"] for pod in listed["items"]} - {p["metadata"]["name"] for p in over}
            self._names = sorted(names)
            for pod in over:
                self._spawn(self._forget(pod["metadata"]["name"]))

    async def _forget(self, name: str) -> None:
        await self._caller.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    # pods

    async def _post(self, pod: dict[str, Any]) -> None:
        status, answer = await self._caller.call("POST", PODS, pod)
        if status in REFUSED:
            self.refusals.append(f"{pod['metadata']['name']}: {status} {answer.get('message', '')[:400]}")

    def _next_name(self) -> str:
        self._made += 1
        return f"p{self._made}"

    def _is_full(self) -> bool:
        return len(self._names) >= self._size.pods

    async def _create(self) -> None:
        if self._is_full():
            await self._delete()
            return
        name = self._next_name()
        self._names.append(name)
        await self._post(hollow_pod(self._rng, name))

    async def _burst(self) -> None:
        if not self._is_full():
            pods = [hollow_pod(self._rng, self._next_name()) for _ in range(self._rng.randint(5, 20))]
            self._names += [pod["metadata"]["name"] for pod in pods]
            await asyncio.gather(*(self._post(pod) for pod in pods))

    async def _create_real(self) -> None:
        if sum(name.startswith("real-") for name in self._names) < self._size.real_pods:
            name = f"real-{self._next_name()}"
            self._names.append(name)
            await self._post(real_pod(self._rng, name, self._size.image))

    def _some_name(self) -> str | None:
        return self._rng.choice(self._names) if self._names else None

    async def _delete(self) -> None:
        name, grace = self._some_name(), self._rng.choice(("", "?gracePeriodSeconds=0"))
        if name is not None:
            # A real node's containers go on while nobody knows of their pod, where it was deleted by force.
            await self._caller.call("DELETE", f"{PODS}/{name}{'' if name.startswith('real-') else grace}")

    async def _create_and_delete(self) -> None:
        """At any stage: while it is admitted, decided on, bound, started."""
        pod, moment = hollow_pod(self._rng, self._next_name()), self._rng.expovariate(4.0)
        grace = self._rng.choice(("", "?gracePeriodSeconds=0"))
        create = asyncio.ensure_future(self._post(pod))
        await asyncio.sleep(moment)
        await self._caller.call("DELETE", f"{PODS}/{pod['metadata']['name']}{grace}")
        await create

    async def _recreate(self) -> None:
        """Another pod under the name of one that there is."""
        name = self._some_name()
        if name is None or not name.startswith("p"):
            return
        pod = hollow_pod(self._rng, name)
        await self._caller.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        await self._post(pod)

    async def _evict(self) -> None:
        name = self._some_name()
        if name is not None:
            meta = {"name": name, "namespace": NAMESPACE}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
            await self._caller.call("POST", f"{PODS}/{name}/eviction", body)

    async def _delete_of_controller(self) -> None:
        """All pods of a Deployment, which makes new ones."""
        name = self._rng.choice(("web", "batch"))
        await self._caller.call("DELETE", f"{PODS}?labelSelector=deployment={name}")

    # nodes and devices

    def _some_node(self) -> str | None:
        whole = [name for name in self._size.nodes if name not in self._broken]
        return self._rng.choice(whole) if len(whole) > len(self._size.nodes) // 2 else None

    async def _away(self, job: Callable[[str, float], Awaitable[None]]) -> None:
        """Let a node be out of order for a while; at most half of them are, and always one thing at a time."""
        name, seconds = self._some_node(), self._rng.uniform(*AWAY_SECONDS)
        if name is not None:
            self._broken.add(name)
            await job(name, seconds)
            self._broken.discard(name)

    async def _cordon(self) -> None:
        async def cordon(name: str, seconds: float) -> None:
            path = f"/api/v1/nodes/{name}"
            await self._caller.call("PATCH", path, {"spec": {"unschedulable": True}})
            await asyncio.sleep(seconds)
            await self._insist("PATCH", path, {"spec": {"unschedulable": None}}, wanted=(200,))

        await self._away(cordon)

    async def _node_leaves(self) -> None:
        """The Node, and every second time its inventory."""
        with_inventory = self._rng.random() < 0.5

        async def leave(name: str, seconds: float) -> None:
            path = f"/api/v1/nodes/{name}"
            status, node = await self._caller.call("GET", path)
            if status != 200:
                return
            await self._caller.call("DELETE", path)
            if with_inventory:
                await self._caller.call("DELETE", f"{GPU_NODES}/{name}")
            await asyncio.sleep(seconds)
            fresh = {key: node["metadata"][key] for key in ("name", "labels")}
            await self._insist("POST", "/api/v1/nodes", {**node, "metadata": fresh}, wanted=(201, 409))
            await self._publish(name, self._inventories[name])

        await self._away(leave)

    async def _device_breaks(self) -> None:
        await self._change(lambda devices, at: [d | {"healthy": i != at} for i, d in enumerate(devices)])

    async def _device_is_lost(self) -> None:
        await self._change(lambda devices, at: [d for i, d in enumerate(devices) if i != at])

    async def _change(self, change: Callable[[list[dict[str, Any]], int], list[dict[str, Any]]]) -> None:
        which = self._rng.randrange(4)

        async def publish(name: str, seconds: float) -> None:
            whole = self._inventories[name]
            await self._publish(name, whole | {"devices": change(whole["devices"], which)})
            await asyncio.sleep(seconds)
            await self._publish(name, whole)

        await self._away(publish)

    async def _publish(self, name: str, status: dict[str, Any]) -> None:
        """As an agent does: the object where it is missing, then its status as a whole."""
        body = {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
        await self._insist("POST", GPU_NODES, body, wanted=(201, 409))
        await self._insist("PATCH", f"{GPU_NODES}/{name}/status", {"status": status}, wanted=(200,))
