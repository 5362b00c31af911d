"""What a command line names: a pod, nodes; and the names that there are, for completion."""

from difflib import get_close_matches

from tessera.cluster.objects import SeenNode, SeenPod
from tessera.cluster.observe import UNFINISHED
from tessera.cluster.rights import reading
from tessera.core.errors import InputErrors, Problem
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS, ApiError, KubeClient, Select
from tessera.scheduler.facts import Facts, PodFacts
from tessera.wire.kube.names import MANAGED
from tessera.wire.kube.objects import KubePod

_PODS = frozenset({"pod", "pods", "po"})
_WORKLOADS = frozenset(
    f"{kind}{end}"
    for kind in ("deployment", "statefulset", "daemonset", "replicaset", "job", "cronjob")
    for end in ("", "s")
) | {"deploy", "sts", "ds", "rs", "cj"}
_ABSENT = 404
_BAD_REQUEST = 400
_MANAGED = f"{MANAGED[0]}={MANAGED[1]}"


def pod_subject(text: str, namespace: str, verb: str = "explain") -> tuple[str, str]:
    """Namespace and name of ``NAME``, ``pod/NAME`` or ``NAMESPACE/NAME``. Raises :class:`InputErrors`."""
    before, slash, name = text.rpartition("/")
    if not slash:
        before = "pod"
    kind = before.lower()
    if not name or "/" in before or "." in kind:
        raise _wrong(verb, text, "is no pod's name", "name a pod: POD, pod/POD or NAMESPACE/POD")
    if kind in _PODS:
        return namespace, name
    if kind in _WORKLOADS:
        raise _wrong(verb, text, "is no pod", "name one of its pods; 'kubectl get pods' lists them")
    return before, name


async def seen_pod(
    client: KubeClient, namespace: str, name: str, verb: str = "explain"
) -> tuple[SeenPod, PodFacts]:
    """One pod, ended or not. Raises :class:`InputErrors` where there is none."""
    try:
        with reading("get", PODS, namespace):
            pod = await client.get(PODS, name, SeenPod, namespace=namespace)
    except ApiError as error:
        if error.code != _ABSENT:
            raise
        remedy = await _instead(client, namespace, name)
        raise _wrong(verb, name, f"is no pod in namespace {namespace}", remedy) from error
    return pod, Facts().of(pod)


async def _instead(client: KubeClient, namespace: str, name: str) -> str:
    try:
        near = get_close_matches(name, await pod_names(client, namespace), n=3)
    except ApiError:
        near = []
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "name another with -n NAMESPACE; 'kubectl get pods -A' lists all"


async def pod_names(client: KubeClient, namespace: str) -> list[str]:
    """The pods of a namespace that Tessera admitted."""
    select = Select(namespace=namespace, labels=_MANAGED, fields=UNFINISHED.fields)
    return sorted(pod.metadata.name for pod in (await client.list(PODS, KubePod, select)).items)


async def node_names(client: KubeClient) -> list[str]:
    """The nodes that an agent reports from."""
    return sorted(node.metadata.name for node in (await client.list(GPU_NODES, SeenNode)).items)


async def selected_nodes(client: KubeClient, name: str | None, labels: str) -> frozenset[str] | None:
    """The nodes of this name and with these labels; ``None`` for all. Raises :class:`InputErrors`."""
    found = None
    if labels:
        listed = await _labelled(client, labels)
        found = frozenset(node.metadata.name for node in listed)
    if name is None:
        return found
    name = name.removeprefix("node/").removeprefix("nodes/")
    if found is not None and name not in found:
        raise _wrong("devices", name, f"is no node with the labels {labels}", "leave one of the two out")
    with reading("list", GPU_NODES):
        known = await node_names(client)
    if name not in known:
        near = get_close_matches(name, known, n=3)
        remedy = f"did you mean {' or '.join(near)}?" if near else "'kubectl tessera devices' lists all"
        raise _wrong("devices", name, "is no node that an agent reports from", remedy)
    return frozenset({name})


async def _labelled(client: KubeClient, labels: str) -> tuple[SeenNode, ...]:
    try:
        return (await client.list(NODES, SeenNode, Select(labels=labels))).items
    except ApiError as error:
        if error.code == _BAD_REQUEST:
            message = "is no label selector"
            raise _wrong("-l", labels, message, "write KEY=VALUE, joined by commas") from error
        with reading("list", NODES):
            raise


def _wrong(source: str, value: str, message: str, remedy: str) -> InputErrors:
    return InputErrors([Problem(source, "", "", value, message, remedy)])
