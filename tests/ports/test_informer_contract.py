"""An informer and the short road of bindings on a real API server, on both event loops, through its restart."""

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest
import uvloop

from tessera.runtime.clock import SYSTEM
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import read_kubeconfig
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.port import NAMESPACES, PODS, KubeClient, Select
from tessera.wire.kube.objects import KubePod

SECONDS = 60.0
_numbers = count(1)
loops = pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.02)


async def make(client: KubeClient, namespace: str, name: str) -> KubePod:
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return await client.create(PODS, body, KubePod, namespace=namespace)


async def agree(informer: Informer[KubePod, KubePod], client: KubeClient, namespace: str) -> None:
    listed = await client.list(PODS, KubePod, Select(namespace))
    present = {pod.metadata.key: pod for pod in listed.items}
    await until(lambda: dict(informer.store) == present)


@loops
@pytest.mark.parametrize("streaming", [False, True], ids=["pages", "stream"])
def test_an_informer_follows_a_real_server_through_its_death(server, loop, streaming):
    async def law() -> None:
        client, namespace = ApiClient(read_kubeconfig([server.kubeconfig])), f"informer-{next(_numbers)}"
        informer = Informer(
            client, PODS, KubePod, Select(namespace), clock=SYSTEM, rng=random.Random(1), streaming=streaming
        )
        told: dict[str, KubePod] = {}

        def tell(old: KubePod | None, new: KubePod | None) -> None:
            key = (old or new).metadata.key
            assert told.get(key) == old
            told.pop(key, None)
            if new is not None:
                told[key] = new

        informer.handlers.append(tell)
        await client.create(NAMESPACES, {"metadata": {"name": namespace}}, dict)
        await make(client, namespace, "a")
        task = asyncio.create_task(informer.run())
        try:
            await until(informer.synced.is_set)
            await make(client, namespace, "b")
            await agree(informer, client, namespace)
            server.restart("kube-apiserver")
            await client.delete(PODS, "a", namespace=namespace)
            await make(client, namespace, "a")
            await make(client, namespace, "c")
            await agree(informer, client, namespace)
            await client.delete(PODS, "b", namespace=namespace)
            await informer.refresh()
            assert f"{namespace}/b" not in informer.store
            assert told == dict(informer.store)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await client.close()

    loop(law())


@loops
def test_a_binding_by_the_short_road_binds(server, loop):
    async def law() -> None:
        client, namespace = ApiClient(read_kubeconfig([server.kubeconfig])), f"binding-{next(_numbers)}"
        try:
            await client.create(NAMESPACES, {"metadata": {"name": namespace}}, dict)
            pod = await make(client, namespace, "a")
            metadata = {"name": "a", "uid": pod.metadata.uid, "annotations": {"tessera.dev/allocation": "x"}}
            body = json.dumps({"metadata": metadata, "target": {"kind": "Node", "name": "n1"}}).encode()
            path = f"/api/v1/namespaces/{namespace}/pods/a/binding"
            assert (await client.post_raw(path, body))[0] == 201
            status, answer = await client.post_raw(path, body)
            assert (status, json.loads(answer)["reason"]) == (409, "Conflict")
            bound = await client.get(PODS, "a", KubePod, namespace=namespace)
            assert (bound.spec.node_name, bound.metadata.annotations) == ("n1", {"tessera.dev/allocation": "x"})
        finally:
            await client.close()

    loop(law())
