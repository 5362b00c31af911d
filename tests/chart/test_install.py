"""The chart on a real API server: it is accepted, and each account may do its work and nothing else."""

import base64
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.engine.api import MERGE, Api, ApiFailure
from cluster.engine.binaries import CONTROL_PLANE
from cluster.engine.kubeconfig import write_kubeconfig
from cluster.engine.nodes import add_nodes, some_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.ports import free_port
from cluster.engine.service import Service, wait_until

from .conftest import CHART, NAMESPACE, Helm, Object, named, require, workloads

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
KINDS = "/apis/tessera.dev/v1alpha1"
OWN, OTHER = "node-0000", "node-0001"
SERVED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Installed:
    plane: ControlPlane
    helm: Helm

    def release(self, *arguments: str) -> str:
        """What helm says; the test fails where helm does."""
        done = self.helm(*arguments, "--kubeconfig", str(self.plane.kubeconfig), "--namespace", NAMESPACE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self, component: str) -> list[Object]:
        selector = f"labelSelector=app.kubernetes.io/component={component}"
        found: list[Object] = self.plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"]
        return found

    def allowed(self, account: str, attributes: dict[str, str]) -> bool:
        """What ``kubectl auth can-i`` asks, for a service account of the release."""
        key = "nonResourceAttributes" if "path" in attributes else "resourceAttributes"
        user = f"system:serviceaccount:{NAMESPACE}:tessera-{account}"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, key: attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.plane.api.post(path, review)["status"].get("allowed"))

    def agent_token(self, node: str) -> str:
        """The token that the kubelet gives to the agent's pod on this node."""
        (pod,) = [one for one in self.pods("agent") if one["spec"].get("nodeName") == node]
        bound = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": {"apiVersion": "v1", **bound}},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/tessera-agent/token"
        return str(self.plane.api.post(path, body)["status"]["token"])

    @contextmanager
    def as_user(self, token: str) -> Iterator[Api]:
        api = Api(self.plane.server, self.plane.authority.certificate, token)
        try:
            yield api
        finally:
            api.close()


def install(plane: ControlPlane, helm: Helm) -> Installed:
    installed = Installed(plane, helm)
    installed.release("install", "tessera", str(CHART), "--create-namespace")
    return installed


@pytest.fixture(scope="module")
def installed(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A release on a control plane of two simulated nodes, on which no pod runs."""
    require(*CONTROL_PLANE, "helm")
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        release = install(plane, helm)
        add_nodes(plane, some_nodes(2, "node", devices=0, labels={"kubernetes.io/os": "linux"}))
        for kind in ("gpunodes", "gpus"):
            wait_until(lambda kind=kind: plane.api.answers(f"{KINDS}/{kind}"), kind, SERVED_SECONDS)  # type: ignore[misc]
        wait_until(
            lambda: {p["spec"].get("nodeName") for p in release.pods("agent")} == {OWN, OTHER},
            "an agent's pod on each node",
            SERVED_SECONDS,
        )
        yield release


def test_every_pod_is_admitted(installed: Installed) -> None:
    for component in ("webhook", "scheduler"):
        wait_until(lambda c=component: len(installed.pods(c)) == 2, f"two pods of {component}", SERVED_SECONDS)  # type: ignore[misc]
        assert {one["spec"]["priorityClassName"] for one in installed.pods(component)} == {
            "system-cluster-critical"
        }
    assert {one["spec"]["priorityClassName"] for one in installed.pods("agent")} == {"system-node-critical"}


# Who may do what. Row 72 of the users' pains: a chart that lacked the right to elect a leader.


def r(
    verb: str, resource: str, group: str = "", namespace: str = "", name: str = "", sub: str = ""
) -> dict[str, str]:
    given = {
        "verb": verb,
        "resource": resource,
        "group": group,
        "namespace": namespace,
        "name": name,
        "subresource": sub,
    }
    return {key: value for key, value in given.items() if value}


ADM, TES, LEASES, EVENTS = "admissionregistration.k8s.io", "tessera.dev", "coordination.k8s.io", "events.k8s.io"
MAY = {
    "webhook": [
        r("get", "secrets", namespace=NAMESPACE, name="tessera-webhook-tls"),
        r("patch", "secrets", namespace=NAMESPACE, name="tessera-webhook-tls"),
        r("get", "mutatingwebhookconfigurations", ADM, name="tessera-webhook"),
        r("patch", "mutatingwebhookconfigurations", ADM, name="tessera-webhook"),
        r("patch", "validatingwebhookconfigurations", ADM, name="tessera-webhook"),
        r("watch", "workloadprofiles", "tensor-fusion.ai"),
        r("create", "events", EVENTS, namespace=NAMESPACE),
    ],
    "scheduler": [
        r("watch", "pods"),
        r("create", "pods", namespace="default", sub="binding"),
        r("list", "nodes"),
        r("watch", "gpunodes", TES),
        r("create", "leases", LEASES, namespace=NAMESPACE),
        r("update", "leases", LEASES, namespace=NAMESPACE, name="tessera-scheduler"),
        r("watch", "leases", LEASES, namespace=NAMESPACE, name="tessera-scheduler"),
        r("create", "events", EVENTS, namespace="default"),
        r("create", "tokenreviews", "authentication.k8s.io"),
        r("create", "subjectaccessreviews", "authorization.k8s.io"),
        r("create", "csistoragecapacities", "storage.k8s.io", namespace=NAMESPACE),
        r("patch", "csistoragecapacities", "storage.k8s.io", namespace=NAMESPACE, name="tessera-wake"),
        # What the kube-scheduler beside it does.
        r("patch", "pods", namespace="default", sub="status"),
        r("watch", "persistentvolumeclaims"),
        r("watch", "storageclasses", "storage.k8s.io"),
        r("get", "configmaps", namespace="kube-system", name="extension-apiserver-authentication"),
    ],
    "agent": [
        r("watch", "pods"),
        r("watch", "nodes"),
        r("create", "gpunodes", TES),
        r("update", "gpunodes", TES, sub="status"),
        r("delete", "gpunodes", TES),
        r("list", "gpus", TES),
        r("patch", "gpus", TES),
        r("update", "gpus", TES, sub="status"),
        r("create", "events", EVENTS, namespace="default"),
    ],
}
MAY_NOT = {
    "webhook": [
        r("get", "secrets", namespace=NAMESPACE, name="another"),
        r("list", "secrets", namespace=NAMESPACE),
        r("create", "secrets", namespace=NAMESPACE),
        r("get", "secrets", namespace="default", name="tessera-webhook-tls"),
        r("patch", "mutatingwebhookconfigurations", ADM, name="another"),
        r("delete", "mutatingwebhookconfigurations", ADM, name="tessera-webhook"),
        r("create", "mutatingwebhookconfigurations", ADM),
        r("get", "pods", namespace="default"),
        r("patch", "pods", namespace="default"),
        r("get", "gpunodes", TES),
    ],
    "scheduler": [
        r("get", "secrets", namespace=NAMESPACE),
        r("create", "pods", namespace="default"),
        r("update", "pods", namespace="default"),
        r("update", "gpunodes", TES, sub="status"),
        r("create", "gpunodes", TES),
        r("update", "nodes"),
        r("update", "leases", LEASES, namespace=NAMESPACE, name="another"),
        r("update", "leases", LEASES, namespace="kube-system", name="tessera-scheduler"),
        r("patch", "csistoragecapacities", "storage.k8s.io", namespace=NAMESPACE, name="another"),
        {"path": "/debug/ledger", "verb": "get"},
    ],
    "agent": [
        r("get", "secrets", namespace=NAMESPACE),
        r("list", "secrets"),
        r("patch", "pods", namespace="default"),
        r("delete", "pods", namespace="default"),
        r("create", "pods", namespace="default", sub="binding"),
        r("create", "pods", namespace="default", sub="exec"),
        r("patch", "nodes", name=OWN),
        r("deletecollection", "gpunodes", TES),
        r("update", "leases", LEASES, namespace=NAMESPACE, name="tessera-scheduler"),
        r("patch", "mutatingwebhookconfigurations", ADM, name="tessera-webhook"),
    ],
}


def wrong(
    installed: Installed, account: str, asked: list[dict[str, str]], *, allowed: bool
) -> list[dict[str, str]]:
    return [one for one in asked if installed.allowed(account, one) is not allowed]


@pytest.mark.parametrize("account", MAY)
def test_an_account_may_do_its_work(installed: Installed, account: str) -> None:
    assert wrong(installed, account, MAY[account], allowed=True) == []


@pytest.mark.parametrize("account", MAY_NOT)
def test_an_account_may_do_nothing_else(installed: Installed, account: str) -> None:
    assert wrong(installed, account, MAY_NOT[account], allowed=False) == []


# An agent writes what its own node has.


def gpu_node(name: str) -> Object:
    return {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}


def gpu(name: str, node: str) -> Object:
    meta = {"name": name, "labels": {"tessera.dev/node": node}}
    return {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPU", "metadata": meta}


def refused(api: Api, method: str, path: str, body: Any = None, *, media: str = "application/json") -> str:
    with pytest.raises(ApiFailure) as failure:
        api.call(method, path, body, media=media)
    assert failure.value.code in (403, 422)
    return failure.value.body.decode()


@pytest.fixture
def agent(installed: Installed) -> Iterator[Api]:
    """The API server as the agent of the first node sees it, once the policy bites: that takes it a moment."""
    with installed.as_user(installed.agent_token(OWN)) as api:
        wait_until(lambda: _is_guarded(api), "the policy on agents is in force", 30)
        yield api


def _is_guarded(api: Api) -> bool:
    try:
        api.post(f"{KINDS}/gpunodes?dryRun=All", gpu_node("node-9999"))
    except ApiFailure:
        return True
    return False


def test_an_agent_writes_its_own_node(agent: Api) -> None:
    agent.post(f"{KINDS}/gpunodes", gpu_node(OWN))
    device = agent.post(f"{KINDS}/gpus", gpu("gpu-own", OWN))
    agent.call("PUT", f"{KINDS}/gpus/gpu-own/status", {**device, "status": {"node": OWN}})
    agent.delete(f"{KINDS}/gpus/gpu-own")
    agent.delete(f"{KINDS}/gpunodes/{OWN}")


@pytest.fixture
def others(installed: Installed) -> Iterator[dict[str, Object]]:
    """Objects of two nodes, by the path of each."""
    admin = installed.plane.api
    made = {
        f"{KINDS}/gpunodes/{OTHER}": admin.post(f"{KINDS}/gpunodes", gpu_node(OTHER)),
        f"{KINDS}/gpus/gpu-other": admin.post(f"{KINDS}/gpus", gpu("gpu-other", OTHER)),
        f"{KINDS}/gpus/gpu-mine": admin.post(f"{KINDS}/gpus", gpu("gpu-mine", OWN)),
    }
    yield made
    for path in made:
        admin.delete(path)


def test_an_agent_creates_nothing_of_another_node(agent: Api) -> None:
    told = refused(agent, "POST", f"{KINDS}/gpunodes", gpu_node("node-9999"))
    assert f"its own node only, which is {OWN}" in told
    refused(agent, "POST", f"{KINDS}/gpus", gpu("gpu-new", OTHER))
    refused(agent, "POST", f"{KINDS}/gpus", {**gpu("gpu-new", OWN), "metadata": {"name": "gpu-new"}})


def test_an_agent_changes_nothing_of_another_node(agent: Api, others: dict[str, Object]) -> None:
    node, theirs, mine = others.items()
    refused(agent, "PUT", f"{node[0]}/status", {**node[1], "status": {"agent": "forged"}})
    refused(agent, "PUT", f"{theirs[0]}/status", {**theirs[1], "status": {"node": OWN}})
    refused(agent, "PUT", f"{mine[0]}/status", {**mine[1], "status": {"node": OTHER}})
    refused(agent, "DELETE", node[0])
    refused(agent, "DELETE", theirs[0])


def test_an_agent_neither_takes_nor_gives_a_device(agent: Api, others: dict[str, Object]) -> None:
    _, theirs, mine = others
    for path, node in ((theirs, OWN), (mine, OTHER)):
        refused(agent, "PATCH", path, {"metadata": {"labels": {"tessera.dev/node": node}}}, media=MERGE)


def test_a_token_of_no_pod_writes_nothing(installed: Installed, agent: Api) -> None:
    with installed.as_user(installed.plane.token_for(NAMESPACE, "tessera-agent")) as stolen:
        assert "names no node" in refused(stolen, "POST", f"{KINDS}/gpunodes", gpu_node(OWN))


def test_people_are_not_held_to_one_node(installed: Installed) -> None:
    admin = installed.plane.api
    admin.post(f"{KINDS}/gpunodes", gpu_node("node-of-a-person"))
    admin.delete(f"{KINDS}/gpunodes/node-of-a-person")


# Our records on pods.


def test_a_pod_that_brings_its_own_allocation_is_refused(installed: Installed) -> None:
    container = {"name": "a", "image": "a"}
    meta = {"name": "forged", "annotations": {"tessera.dev/allocation": "{}"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
    refused_with(installed, pod)
    del meta["annotations"]
    installed.plane.api.post("/api/v1/namespaces/default/pods", pod)  # nothing of ours: nobody is asked
    installed.plane.api.delete("/api/v1/namespaces/default/pods/forged?gracePeriodSeconds=0")


def test_a_share_is_refused_while_no_webhook_answers(installed: Installed) -> None:
    resources = {"limits": {"tessera.dev/memory": "4Gi"}}
    container = {"name": "a", "image": "a", "resources": resources}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "share"}, "spec": {"containers": [container]}}
    refused_with(installed, pod)


def refused_with(installed: Installed, pod: Object) -> None:
    with pytest.raises(ApiFailure):
        installed.plane.api.post("/api/v1/namespaces/default/pods", pod)


# The programs, under the rights that the chart gives them.


def program(verb: str, kubeconfig: Path, *flags: str) -> list[str]:
    code = f"from tessera.cli.{verb} import command; import sys; sys.exit(command(standalone_mode=False))"
    return [sys.executable, "-c", code, "--kubeconfig", str(kubeconfig), *flags]


def ready(port: int) -> bool:
    """Whether a process says so on its metrics port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_webhook_gets_ready_with_the_rights_of_its_account(installed: Installed, tmp_path: Path) -> None:
    plane, port = installed.plane, free_port()
    flags = ("--bind", "127.0.0.1:0", "--metrics-bind", f"127.0.0.1:{port}", "--namespace", NAMESPACE)
    command = program("webhook", plane.kubeconfig_for_account(NAMESPACE, "tessera-webhook"), *flags)
    service = Service("webhook", command, tmp_path / "webhook.log", ready=lambda: ready(port))
    plane.add_service(service).start()
    service.stop()
    secret = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/tessera-webhook-tls")
    assert secret["data"]
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        for webhook in plane.api.get(f"{ADMISSION}/{kind}/tessera-webhook")["webhooks"]:
            assert b"CERTIFICATE" in base64.b64decode(webhook["clientConfig"]["caBundle"])
    assert "forbidden" not in service.log.read_text()


def test_both_schedulers_lead_with_the_rights_of_their_account(installed: Installed, tmp_path: Path) -> None:
    plane, port = installed.plane, free_port()
    map_ = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/tessera-scheduler")
    config = yaml.safe_load(map_["data"]["config.yaml"])
    account = plane.kubeconfig_for_account(NAMESPACE, "tessera-scheduler")
    stock = plane.start_scheduler("tessera-kube", config=config, hostname="pod-of-both", kubeconfig=account)
    flags = (
        "--bind", "127.0.0.1:0", "--metrics-bind", f"127.0.0.1:{port}", "--namespace", NAMESPACE,
        "--lease", f"{NAMESPACE}/tessera-scheduler", "--holder", "pod-of-both",
    )  # fmt: skip
    ours = Service("extender", program("scheduler", account, *flags), tmp_path / "log", ready=lambda: ready(port))
    plane.add_service(ours).start()  # ready: its kube-scheduler holds the lease, and it has read the pods
    lease = plane.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/tessera-scheduler")
    assert lease["spec"]["holderIdentity"].startswith("pod-of-both_")
    ours.stop()
    stock.stop()
    assert "forbidden" not in ours.log.read_text() + stock.log.read_text()


def test_the_agent_publishes_with_the_rights_of_its_account(installed: Installed, tmp_path: Path) -> None:
    plane, metrics = installed.plane, free_port()
    kubeconfig = write_kubeconfig(
        tmp_path / "kubeconfig", plane.server, plane.authority.certificate, installed.agent_token(OWN)
    )
    for name in ("plugins", "cdi"):
        (tmp_path / name).mkdir()
    flags = [
        "--node", OWN, "--simulate", "2xA100-SXM4-80GB", "--cdi", "always",
        "--state-dir", str(tmp_path / "state/agent"), "--cdi-dir", str(tmp_path / "cdi"),
        "--gate-socket", str(tmp_path / "gate.sock"), "--plugin-dir", str(tmp_path / "plugins"),
        "--pod-resources", str(tmp_path / "pod-resources.sock"), "--metrics-bind", f"127.0.0.1:{metrics}",
    ]  # fmt: skip
    path = f"{KINDS}/gpunodes/{OWN}"

    def published() -> bool:
        return plane.api.answers(path) and len(plane.api.get(path).get("status", {}).get("devices", ())) == 2

    service = Service("agent", program("agent", kubeconfig, *flags), tmp_path / "agent.log", ready=published)
    service.environment["TESSERA_STATE_DIR"] = str(tmp_path / "machines")
    plane.add_service(service).start()
    devices = plane.api.get(f"{KINDS}/gpus?labelSelector=tessera.dev/node={OWN}")["items"]
    service.stop()
    assert len(devices) == 2
    assert "forbidden" not in service.log.read_text()


# The life of a release.


@pytest.fixture
def fresh(helm: Helm, tmp_path: Path) -> Iterator[Installed]:
    require(*CONTROL_PLANE, "helm")
    with ControlPlane(tmp_path / "plane") as plane:
        yield install(plane, helm)


def test_a_release_is_upgraded_and_leaves_nothing_behind(fresh: Installed) -> None:
    api = fresh.plane.api
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/tessera-webhook-tls"
    configuration = f"{ADMISSION}/mutatingwebhookconfigurations/tessera-webhook"
    bundle = base64.b64encode(fresh.plane.authority.certificate.read_bytes()).decode()
    api.merge(secret, {"data": {"tls.key": "c2VjcmV0"}})  # as the webhook does
    place = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    api.call("PATCH", configuration, place, media="application/json-patch+json")
    fresh.release("upgrade", "tessera", str(CHART), "--set", "webhook.replicas=3", "--set", "logLevel=debug")
    deployment = api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/tessera-webhook")
    assert deployment["spec"]["replicas"] == 3
    fresh.release("rollback", "tessera", "1")
    assert api.get(secret)["data"] == {"tls.key": "c2VjcmV0"}
    assert api.get(configuration)["webhooks"][0]["clientConfig"]["caBundle"] == bundle
    rendered = fresh.release("get", "manifest", "tessera")
    fresh.release("uninstall", "tessera", "--wait")
    left = [line for line in fresh.plane.kubectl(*LISTED, "--output=name").splitlines() if "tessera" in line]
    assert left == []
    assert named([one for one in yaml.safe_load_all(rendered) if one], "DaemonSet", "tessera-agent")
    # Kinds, and what is kept in them, outlive a release. The first question may find them being set up.
    wait_until(lambda: api.answers(f"{KINDS}/gpunodes"), "the kinds", SERVED_SECONDS)


LISTED = (
    "get",
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,roles,rolebindings,serviceaccounts,services,secrets,"
    "configmaps,deployments,daemonsets,networkpolicies,poddisruptionbudgets",
    "--all-namespaces",
)


def test_a_dry_run_on_the_server_accepts_every_object(installed: Installed) -> None:
    manifest = installed.release("get", "manifest", "tessera")
    installed.plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=manifest
    )
    objects = [one for one in yaml.safe_load_all(manifest) if one]
    assert len(workloads(objects)) == 3
