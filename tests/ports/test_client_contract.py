"""What the client port promises, on the API server in memory and on a real one."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from ports.conftest import Backend, backend_of
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import read_kubeconfig
from tessera.runtime.kube.port import (
    GPU_NODES,
    LEASES,
    MUTATING_WEBHOOKS,
    PODS,
    SECRETS,
    ApiError,
    EventType,
    Kind,
    KubeClient,
    PatchType,
    Select,
    WatchEvent,
)
from tessera.wire.kube.objects import KubePod

SECONDS = 20.0


@pytest.fixture(params=["memory", "server", "slim"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Both sides, and the real one through both clients."""
    return backend_of(request)


def run(backend: Backend, law: Callable[[KubeClient], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(SECONDS * 2), backend.connect() as client:
            await law(client)

    asyncio.run(body())


def a_manifest(name: str = "a", **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": containers, "schedulerName": "nobody"},
    }


def a_binding(pod: KubePod, node: str, uid: str = "", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod.metadata.name, "uid": uid or pod.metadata.uid, **metadata},
        "target": {"kind": "Node", "name": node},
    }


async def make_pod(client: KubeClient, backend: Backend, name: str = "a", **metadata: Any) -> KubePod:
    return await client.create(PODS, a_manifest(name, **metadata), KubePod, namespace=backend.namespace)


async def bind(client: KubeClient, pod: KubePod, node: str, uid: str = "", **metadata: Any) -> None:
    await client.create(
        PODS,
        a_binding(pod, node, uid, **metadata),
        msgspec.Raw,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        subresource="binding",
    )


async def take(events: AsyncGenerator[WatchEvent[Any], None], count: int) -> list[WatchEvent[Any]]:
    """The first ``count`` events that are no bookmarks, then the watch is closed."""
    taken: list[WatchEvent[Any]] = []
    async with asyncio.timeout(SECONDS), aclosing(events):
        async for event in events:
            if event.type is not EventType.BOOKMARK:
                taken.append(event)
            if len(taken) == count:
                break
    return taken


async def code_of(call: Awaitable[Any]) -> tuple[int, str]:
    with pytest.raises(ApiError) as refused:
        await call
    return refused.value.code, refused.value.reason


def test_a_made_object_has_identity_version_and_time(backend):
    async def law(client):
        pod = await make_pod(client, backend)
        assert pod.metadata.key == f"{backend.namespace}/a"
        assert pod.metadata.uid
        assert int(pod.metadata.resource_version) > 0
        assert pod.metadata.creation_timestamp.endswith("Z")
        assert pod.status.phase == "Pending"
        assert await client.get(PODS, "a", KubePod, namespace=backend.namespace) == pod

    run(backend, law)


def test_a_name_is_taken_once(backend):
    async def law(client):
        await make_pod(client, backend)
        assert await code_of(make_pod(client, backend)) == (409, "AlreadyExists")

    run(backend, law)


def test_generated_names_differ(backend):
    async def law(client):
        manifest = {**a_manifest(), "metadata": {"generateName": "g-"}}
        made = [await client.create(PODS, manifest, KubePod, namespace=backend.namespace) for _ in range(3)]
        names = {pod.metadata.name for pod in made}
        assert len(names) == 3
        assert all(name.startswith("g-") and len(name) == 7 for name in names)

    run(backend, law)


def test_what_is_not_there_is_not_found(backend):
    async def law(client):
        absent = {"namespace": backend.namespace}
        assert await code_of(client.get(PODS, "x", KubePod, **absent)) == (404, "NotFound")
        assert await code_of(client.delete(PODS, "x", **absent)) == (404, "NotFound")
        assert await code_of(client.patch(PODS, "x", {}, dict, **absent)) == (404, "NotFound")

    run(backend, law)


def test_a_version_is_not_set_by_who_creates(backend):
    async def law(client):
        assert (await code_of(make_pod(client, backend, resourceVersion="7")))[0] == 500

    run(backend, law)


def a_lease(holder: str, version: str = "") -> dict[str, Any]:
    metadata = {"name": "l", **({"resourceVersion": version} if version else {})}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": holder},
    }


def version(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["resourceVersion"])


def test_of_two_replacements_of_one_version_the_second_is_refused(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        first = await client.create(LEASES, a_lease("a"), dict, **space)
        second = await client.replace(LEASES, "l", a_lease("b", version(first)), dict, **space)
        assert int(version(second)) > int(version(first))
        refused = client.replace(LEASES, "l", a_lease("c", version(first)), dict, **space)
        assert await code_of(refused) == (409, "Conflict")
        assert (await client.get(LEASES, "l", dict, **space))["spec"]["holderIdentity"] == "b"

    run(backend, law)


def test_a_merge_patch_sets_and_removes_and_minds_its_version(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        pod = await make_pod(client, backend, labels={"old": "1", "kept": "1"})
        patch = {"metadata": {"labels": {"old": None, "new": "1"}}}
        patched = await client.patch(PODS, "a", patch, KubePod, **space)
        assert patched.metadata.labels == {"kept": "1", "new": "1"}
        stale = {"metadata": {"resourceVersion": pod.metadata.resource_version, "labels": {"x": "1"}}}
        assert await code_of(client.patch(PODS, "a", stale, KubePod, **space)) == (409, "Conflict")

    run(backend, law)


def test_a_json_patch_is_applied_as_a_whole_or_not_at_all(backend):
    async def law(client):
        space = {"namespace": backend.namespace, "type_": PatchType.JSON}
        await make_pod(client, backend, labels={"a/b": "1"})
        good = [
            {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
            {"op": "add", "path": "/metadata/labels/c", "value": "2"},
        ]
        assert (await client.patch(PODS, "a", good, KubePod, **space)).metadata.labels == {"a/b": "1", "c": "2"}
        bad = [
            {"op": "remove", "path": "/metadata/labels/c"},
            {"op": "test", "path": "/metadata/labels/a~1b", "value": "2"},
        ]
        assert (await code_of(client.patch(PODS, "a", bad, KubePod, **space)))[0] == 422
        left = await client.get(PODS, "a", KubePod, namespace=backend.namespace)
        assert left.metadata.labels == {"a/b": "1", "c": "2"}

    run(backend, law)


def test_applying_makes_then_changes_and_drops_what_is_left_out(backend):
    async def law(client):
        space = {"namespace": backend.namespace, "type_": PatchType.APPLY}
        applied = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"a": "1", "b": "1"}}}
        await client.patch(SECRETS, "s", applied, dict, **space)
        fewer = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"b": "2"}}}
        made = await client.patch(SECRETS, "s", fewer, dict, **space)
        assert made["metadata"]["labels"] == {"b": "2"}
        other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"c": "3"}}}
        both = await client.patch(SECRETS, "s", other, dict, field_manager="somebody", **space)
        assert both["metadata"]["labels"] == {"b": "2", "c": "3"}

    run(backend, law)


def test_a_change_that_changes_nothing_makes_no_version(backend):
    async def law(client):
        pod = await make_pod(client, backend, labels={"a": "1"})
        same = {"metadata": {"labels": {"a": "1"}}}
        again = await client.patch(PODS, "a", same, KubePod, namespace=backend.namespace)
        assert again.metadata.resource_version == pod.metadata.resource_version

    run(backend, law)


def test_status_and_the_rest_are_written_apart(backend):
    async def law(client):
        name = backend.name("n")
        status = {"devices": [], "driver": "1"}
        body = {
            "apiVersion": GPU_NODES.api_version,
            "kind": "GPUNode",
            "metadata": {"name": name},
            "status": status,
        }
        made = await client.create(GPU_NODES, body, dict)
        assert "status" not in made
        written = await client.replace(GPU_NODES, name, {**made, "status": status}, dict, subresource="status")
        assert written["status"]["driver"] == "1"
        labelled = {**written, "status": {}, "metadata": {**written["metadata"], "labels": {"a": "1"}}}
        both = await client.replace(GPU_NODES, name, labelled, dict)
        assert both["status"]["driver"] == "1"
        assert both["metadata"]["labels"] == {"a": "1"}
        aside = {"metadata": {"labels": {"a": "2"}}, "status": {"driver": "2"}}
        last = await client.patch(GPU_NODES, name, aside, dict, subresource="status")
        assert (last["status"]["driver"], last["metadata"]["labels"]) == ("2", {"a": "1"})
        await client.delete(GPU_NODES, name)

    run(backend, law)


def test_a_replacement_of_our_kinds_names_its_version(backend):
    async def law(client):
        name = backend.name("n")
        body = {"apiVersion": GPU_NODES.api_version, "kind": "GPUNode", "metadata": {"name": name}}
        await client.create(GPU_NODES, body, dict)
        assert (await code_of(client.replace(GPU_NODES, name, body, dict)))[0] == 422
        await client.delete(GPU_NODES, name)

    run(backend, law)


def test_the_generation_counts_changes_of_what_is_wanted(backend):
    def a_webhook(port: int) -> dict[str, Any]:
        return {
            "name": "w.tessera.dev",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore",
        }

    async def law(client):
        name = backend.name("w")
        body = {
            "apiVersion": MUTATING_WEBHOOKS.api_version,
            "kind": MUTATING_WEBHOOKS.kind,
            "metadata": {"name": name},
            "webhooks": [a_webhook(1)],
        }
        made = await client.create(MUTATING_WEBHOOKS, body, dict)
        labelled = await client.patch(MUTATING_WEBHOOKS, name, {"metadata": {"labels": {"a": "1"}}}, dict)
        changed = await client.patch(MUTATING_WEBHOOKS, name, {"webhooks": [a_webhook(2)]}, dict)
        generations = [obj["metadata"]["generation"] for obj in (made, labelled, changed)]
        assert generations == [1, 1, 2]
        await client.delete(MUTATING_WEBHOOKS, name)

    run(backend, law)


def test_a_binding_carries_annotations_and_labels_in_one_write(backend):
    async def law(client):
        pod = await make_pod(client, backend, annotations={"mine": "1"}, labels={"l": "1"})
        watch = client.watch(
            PODS, KubePod, Select(backend.namespace), resource_version=pod.metadata.resource_version
        )
        await bind(client, pod, "n1", annotations={"tessera.dev/allocation": "x"}, labels={"m": "2"})
        [event] = await take(watch, 1)
        assert event.type is EventType.MODIFIED
        assert event.object.spec.node_name == "n1"
        assert event.object.metadata.annotations == {"mine": "1", "tessera.dev/allocation": "x"}
        assert event.object.metadata.labels == {"l": "1", "m": "2"}

    run(backend, law)


def test_a_pod_is_bound_once_and_only_the_one_that_was_meant(backend):
    async def law(client):
        pod = await make_pod(client, backend)
        other = "00000000-0000-4000-8000-00000000ffff"
        assert await code_of(bind(client, pod, "n1", uid=other)) == (409, "Conflict")
        await bind(client, pod, "n1")
        assert await code_of(bind(client, pod, "n2")) == (409, "Conflict")
        assert (await client.get(PODS, "a", KubePod, namespace=backend.namespace)).spec.node_name == "n1"
        await client.delete(PODS, "a", namespace=backend.namespace, grace_seconds=0)
        assert await code_of(bind(client, pod, "n1")) == (404, "NotFound")

    run(backend, law)


def test_a_bound_pod_goes_in_two_steps_and_an_unbound_one_in_one(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        await make_pod(client, backend, "unbound")
        await client.delete(PODS, "unbound", **space)
        assert (await code_of(client.get(PODS, "unbound", KubePod, **space)))[0] == 404
        pod = await make_pod(client, backend)
        await bind(client, pod, "n1")
        await client.delete(PODS, "a", **space)
        assert (await client.get(PODS, "a", KubePod, **space)).metadata.deletion_timestamp
        await client.delete(PODS, "a", grace_seconds=0, **space)
        assert (await code_of(client.get(PODS, "a", KubePod, **space)))[0] == 404

    run(backend, law)


def test_a_pod_that_is_being_deleted_is_not_bound(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        pod = await make_pod(client, backend, finalizers=["tessera.dev/test"])
        await client.delete(PODS, "a", **space)
        assert (await code_of(bind(client, pod, "n1")))[0] == 409
        await client.patch(PODS, "a", {"metadata": {"finalizers": None}}, dict, **space)
        assert (await code_of(client.get(PODS, "a", KubePod, **space)))[0] == 404

    run(backend, law)


def test_a_deletion_minds_the_uid_and_the_version(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        pod = await make_pod(client, backend)
        other = "00000000-0000-4000-8000-00000000ffff"
        assert (await code_of(client.delete(PODS, "a", uid=other, **space)))[0] == 409
        assert (await code_of(client.delete(PODS, "a", resource_version="1", **space)))[0] == 409
        await client.delete(
            PODS, "a", uid=pod.metadata.uid, resource_version=pod.metadata.resource_version, **space
        )
        assert (await code_of(client.get(PODS, "a", KubePod, **space)))[0] == 404

    run(backend, law)


def test_an_evicted_pod_is_asked_to_go(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        pod = await make_pod(client, backend)
        await bind(client, pod, "n1")
        running = {"status": {"phase": "Running"}}
        await client.patch(PODS, "a", running, dict, subresource="status", **space)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "a", **space},
            "deleteOptions": {"preconditions": {"uid": pod.metadata.uid}},
        }
        await client.create(PODS, body, msgspec.Raw, name="a", subresource="eviction", **space)
        assert (await client.get(PODS, "a", KubePod, **space)).metadata.deletion_timestamp

    run(backend, law)


def test_a_list_is_put_together_from_its_pages(backend):
    async def law(client):
        names = [f"p{i}" for i in range(7)]  # pages of three here
        for name in names:
            await make_pod(client, backend, name)
        sizes, versions = [], set()
        async for page in client.pages(PODS, KubePod, Select(backend.namespace)):
            sizes.append(len(page.items))
            versions.add(page.resource_version)
        assert (sizes, len(versions)) == ([3, 3, 1], 1)
        listed = await client.list(PODS, KubePod, Select(backend.namespace))
        assert [pod.metadata.name for pod in listed.items] == names

    run(backend, law)


@pytest.mark.parametrize(
    ("labels", "fields", "names"),
    [
        ("", "", ["a", "b", "c"]),
        ("x=1", "", ["a"]),
        ("x!=1", "", ["b", "c"]),
        ("x", "", ["a", "b"]),
        ("!x", "", ["c"]),
        ("x in (1,2),y", "", ["b"]),
        ("x notin (1)", "", ["b", "c"]),
        ("", "metadata.name=b", ["b"]),
        ("", "metadata.name!=b", ["a", "c"]),
        ("", "spec.nodeName=n1", ["c"]),
        ("", "spec.nodeName=", ["a", "b"]),
        ("x", "status.phase=Pending", ["a", "b"]),
    ],
)
def test_a_selection_is_what_it_says(backend, labels, fields, names):
    async def law(client):
        await make_pod(client, backend, "a", labels={"x": "1"})
        await make_pod(client, backend, "b", labels={"x": "2", "y": "1"})
        await bind(client, await make_pod(client, backend, "c"), "n1")
        listed = await client.list(PODS, KubePod, Select(backend.namespace, labels, fields))
        assert [pod.metadata.name for pod in listed.items] == names

    run(backend, law)


def test_a_field_that_cannot_be_selected_by_is_refused(backend):
    async def law(client):
        assert (await code_of(client.list(PODS, KubePod, Select(fields="spec.priority=1"))))[0] == 400

    run(backend, law)


def test_a_watch_tells_every_step_in_order_with_rising_versions(backend):
    async def law(client):
        space, select = {"namespace": backend.namespace}, Select(backend.namespace)
        start = await client.list(PODS, KubePod, select)
        pod = await make_pod(client, backend)
        changed = await client.patch(PODS, "a", {"metadata": {"labels": {"x": "1"}}}, KubePod, **space)
        await client.delete(PODS, "a", **space)
        again = await make_pod(client, backend)
        watch = client.watch(PODS, KubePod, select, resource_version=start.resource_version)
        events = await take(watch, 5)
        assert [event.type.value for event in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED", "ADDED"]
        assert events[0].object == pod
        assert events[1].object == changed
        assert events[2].object.metadata.deletion_timestamp  # a pod is marked even if it goes at once
        assert events[3].object.metadata.uid == pod.metadata.uid
        assert events[4].object == again
        assert again.metadata.uid != pod.metadata.uid
        versions = [int(event.resource_version) for event in events]
        assert versions == sorted(set(versions))
        rest = client.watch(PODS, KubePod, select, resource_version=events[1].resource_version)
        assert [event.resource_version for event in await take(rest, 3)] == [
            event.resource_version for event in events[2:]
        ]

    run(backend, law)


def test_what_enters_a_selection_is_added_and_what_leaves_it_deleted(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        pod = await make_pod(client, backend, labels={"x": "1"})
        by_node = client.watch(
            PODS,
            KubePod,
            Select(backend.namespace, fields="spec.nodeName=n1"),
            resource_version=pod.metadata.resource_version,
        )
        by_label = client.watch(
            PODS, KubePod, Select(backend.namespace, "x=1"), resource_version=pod.metadata.resource_version
        )
        await bind(client, pod, "n1")
        await client.patch(PODS, "a", {"metadata": {"labels": {"x": "2"}}}, dict, **space)
        assert [event.type.value for event in await take(by_node, 2)] == ["ADDED", "MODIFIED"]
        assert [event.type.value for event in await take(by_label, 2)] == ["MODIFIED", "DELETED"]

    run(backend, law)


def test_a_watch_from_a_forgotten_version_is_refused_with_410(backend):
    async def law(client):
        old = backend.expire(client)
        with pytest.raises(ApiError) as refused:
            await take(client.watch(GPU_NODES, dict, resource_version=old), 1)
        assert refused.value.code == 410

    run(backend, law)


def test_a_streamed_list_ends_with_its_own_bookmark_and_goes_on_as_a_watch(backend):
    async def law(client):
        select = Select(backend.namespace)
        for name in ("a", "b"):
            await make_pod(client, backend, name)
        events = client.watch(PODS, KubePod, select, resource_version="", initial=True)
        listed, after = set(), None
        async with asyncio.timeout(SECONDS), aclosing(events):
            async for event in events:
                if event.initial_ends:
                    assert event.object is None
                    last = await make_pod(client, backend, "c")
                elif event.object is not None and event.object.metadata.name == "c":
                    after = event
                    break
                else:
                    listed.add(event.object.metadata.name)
        assert listed == {"a", "b"}
        assert (after.type, after.object) == (EventType.ADDED, last)

    run(backend, law)


def test_an_object_of_more_than_a_mebibyte_passes_whole(backend):
    async def law(client):
        payload = bytes(range(256)) * 4000  # 1,024,000 bytes; 1.37 MB as base64 in one line of a watch
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "large"},
            "data": {"x": base64.b64encode(payload).decode()},
        }
        start = await client.list(SECRETS, dict, Select(backend.namespace))
        await client.create(SECRETS, body, dict, namespace=backend.namespace)
        watch = client.watch(SECRETS, dict, Select(backend.namespace), resource_version=start.resource_version)
        [event] = await take(watch, 1)
        assert base64.b64decode(event.object["data"]["x"]) == payload

    run(backend, law)


def test_finalizers_hold_an_object_until_they_are_gone(backend):
    async def law(client):
        space = {"namespace": backend.namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s", "finalizers": ["tessera.dev/test"]},
        }
        made = await client.create(SECRETS, body, dict, **space)
        await client.delete(SECRETS, "s", **space)
        held = await client.get(SECRETS, "s", dict, **space)
        assert held["metadata"]["deletionTimestamp"]
        watch = client.watch(SECRETS, dict, Select(backend.namespace), resource_version=version(made))
        await client.patch(SECRETS, "s", {"metadata": {"finalizers": None}}, dict, **space)
        assert [event.type.value for event in await take(watch, 2)] == ["MODIFIED", "DELETED"]

    run(backend, law)


def test_a_kind_that_the_server_does_not_know_is_not_found(server):
    async def body() -> None:
        client = ApiClient(read_kubeconfig([server.kubeconfig]))
        nothing = Kind("tessera.dev", "v1alpha1", "nothings", "Nothing")
        try:
            assert (await code_of(client.list(nothing, dict)))[0] == 404
        finally:
            await client.close()

    asyncio.run(body())
