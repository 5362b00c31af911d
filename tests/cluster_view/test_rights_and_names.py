"""Which pod, node and cluster is meant, and which right is missing: errors that name object and remedy."""

import asyncio
from collections.abc import Mapping

import pytest

from cluster_view.world import T4, devices, pod_body, put_node, put_pod, request_of
from tessera.cli.connection import environment
from tessera.cluster.observe import observe
from tessera.cluster.subject import pod_subject, seen_pod, selected_nodes
from tessera.core.errors import InputErrors, TesseraError, UnavailableError
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS, ApiError, ConnectionLostError, Kind
from tessera.wire.kube.inventory import GPUNodeStatus


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (GPU_NODES, ApiError(403, "Forbidden", "no"), "kubectl auth can-i list gpunodes.tessera.dev'"),
        (NODES, ApiError(403, "Forbidden", "no"), "kubectl auth can-i list nodes'"),
        (PODS, ApiError(403, "Forbidden", "no"), "kubectl auth can-i list pods -A'"),
        (GPU_NODES, ApiError(404, "NotFound", "no"), "Tessera is not installed on it"),
        (NODES, ApiError(401, "Unauthorized", "no"), "kubectl auth whoami"),
        (NODES, ApiError(500, "InternalError", "disk"), "500 InternalError: disk"),
        (PODS, ConnectionLostError("refused"), "the API server does not answer (refused)"),
    ],
)
def test_a_missing_right_is_named_with_the_command_that_checks_it(
    kind: Kind, error: TesseraError, said: str
) -> None:
    server = MemoryCluster()
    server.fail(Fault("list", kind, error=error))
    with pytest.raises(UnavailableError) as raised:
        asyncio.run(observe(server))
    assert said in str(raised.value)


def test_a_list_of_pods_that_expires_between_its_pages_is_begun_again() -> None:
    server = MemoryCluster()
    server.fail(Fault("list", PODS, error=ApiError(410, "Expired", "old"), times=2))

    async def look() -> int:
        await put_pod(server, "n", pod_body("p", request_of((1024, 10))))
        return len((await observe(server)).pods)

    assert asyncio.run(look()) == 1


def test_a_list_that_always_expires_ends_with_an_error() -> None:
    server = MemoryCluster()
    server.fail(Fault("list", PODS, error=ApiError(410, "Expired", "old"), times=99))
    with pytest.raises(UnavailableError, match="410 Expired"):
        asyncio.run(observe(server))


@pytest.mark.parametrize(
    ("text", "meant"),
    [("p", ("home", "p")), ("pod/p", ("home", "p")), ("po/p", ("home", "p")), ("research/p", ("research", "p"))],
)
def test_a_pod_is_named_as_kubectl_names_it_or_with_its_namespace(text: str, meant: tuple[str, str]) -> None:
    assert pod_subject(text, "home") == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no pod's name"),
        ("a/b/c", "no pod's name"),
        ("pod/", "no pod's name"),
        ("deploy/web", "one of its pods"),
    ],
)
def test_what_is_no_pod_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(InputErrors, match=said):
        pod_subject(text, "home")


def test_a_pod_that_is_not_there_is_answered_with_its_nearest() -> None:
    async def look() -> None:
        server = MemoryCluster()
        await put_pod(server, "n", pod_body("train-0", request_of((1024, 10))))
        await seen_pod(server, "n", "train-1")

    with pytest.raises(InputErrors, match=r"no pod in namespace n \(got 'train-1'\); did you mean train-0\?"):
        asyncio.run(look())


async def _selected(name: str | None, labels: str) -> frozenset[str] | None:
    server = MemoryCluster()
    await put_node(server, "a", GPUNodeStatus(gate=True, devices=devices("a", T4)), labels={"zone": "x"})
    await put_node(server, "b", GPUNodeStatus(gate=True, devices=devices("b", T4)))
    return await selected_nodes(server, name, labels)


@pytest.mark.parametrize(
    ("name", "labels", "meant"),
    [
        (None, "", None),
        ("a", "", frozenset("a")),
        ("node/b", "", frozenset("b")),
        (None, "zone=x", frozenset("a")),
        (None, "zone=none", frozenset()),
        ("a", "zone=x", frozenset("a")),
    ],
)
def test_nodes_are_chosen_by_name_and_labels(name: str | None, labels: str, meant: frozenset[str] | None) -> None:
    assert asyncio.run(_selected(name, labels)) == meant


@pytest.mark.parametrize(
    ("name", "labels", "said"),
    [
        ("c", "", "no node that an agent reports from"),
        ("b", "zone=x", "labels zone=x"),
        (None, "===", "no label sel"),
    ],
)
def test_a_node_that_is_not_there_is_refused(name: str | None, labels: str, said: str) -> None:
    with pytest.raises(InputErrors, match=said):
        asyncio.run(_selected(name, labels))


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": "/nowhere"}


@pytest.mark.parametrize(
    ("environ", "context", "in_cluster"),
    [
        (IN_POD, "", True),
        ({**IN_POD, "KUBECONFIG": "/k"}, "", False),
        (IN_POD, "staging", False),
    ],
)
def test_a_kubeconfig_goes_before_the_account_of_a_pod_as_with_kubectl(
    environ: Mapping[str, str], context: str, in_cluster: bool
) -> None:
    assert ("KUBERNETES_SERVICE_HOST" in environment(environ, context)) is in_cluster
