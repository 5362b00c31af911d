"""The webhook before a real API server: what it does to pods, and what it is when it is not there."""

import base64
import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from cluster.engine.api import Api, ApiFailure
from cluster.engine.binaries import program
from cluster.engine.plane import ControlPlane, Options
from cluster.engine.service import wait_until
from cluster.webhook_objects import PROFILE_KIND, SHARE, example_pods, pod
from cluster.webhook_process import SYSTEM, Webhook, install
from tessera.wire.kube.request import decode_request

_BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
DATA = Path(os.environ.get("TESSERA_SHARED_DATA") or _BESIDE) / "manifests"
PODS = "/api/v1/namespaces/{}/pods"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

ASKING = [
    pod("hami", limits={"nvidia.com/gpu": "1"}),
    pod("share-alone", limits={"nvidia.com/gpumem": "4000"}),
    pod("init", init=SHARE),
    pod("fusion", labels={"tensor-fusion.ai/enabled": "true"}, annotations={"tensor-fusion.ai/gpu-count": "1"}),
    pod("fusion-unlabelled", annotations={"tensor-fusion.ai/vram-request": "1Gi"}),
    pod("native", limits={"tessera.dev/gpu": "1"}),
    pod("ignored-by-hami-only", limits={"tessera.dev/gpu": "1"}, labels={"hami.io/webhook": "ignore"}),
    pod("forged", annotations={"tessera.dev/allocation": "{}"}),
    pod("forged-label", labels={"tessera.dev/managed": "true"}),
]
FOREIGN = [
    pod("plain"),
    pod("cpu", limits={"cpu": "1", "memory": "1Gi"}, annotations={"a": "b"}, labels={"app": "x"}),
    pod("partition", limits={"nvidia.com/mig-1g.5gb": "1"}),
    pod("other-vendor", limits={"cambricon.com/mlu": "1"}),
    pod("ignored", limits={"nvidia.com/gpu": "1"}, labels={"hami.io/webhook": "ignore"}),
    pod("ignored-share", limits=SHARE, labels={"hami.io/webhook": "ignore"}),
    pod(
        "opted-out", labels={"tensor-fusion.ai/enabled": "False"}, annotations={"tensor-fusion.ai/gpu-count": "1"}
    ),
    pod(
        "hamis-wish-alone", annotations={"hami.io/node-scheduler-policy": "spread", "nvidia.com/numa-bind": "true"}
    ),
]


@pytest.fixture(scope="module")
def plane(engine, tmp_path_factory):
    """A control plane of this module, without a scheduler: nothing here needs to be bound."""
    with ControlPlane(
        tmp_path_factory.mktemp("webhook-plane"), Options(scheduler=False, controller_manager=False)
    ) as plane:
        plane.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", PROFILE_KIND)
        yield plane


@pytest.fixture(scope="module")
def webhook(plane, tmp_path_factory):
    """One replica, installed with its policy."""
    replica = Webhook(plane, tmp_path_factory.mktemp("webhook"), "--linger", "0")
    install(plane, replica.url, policy=True)
    return replica.start()


@pytest.fixture
def space(plane, request):
    """A namespace for one test."""
    name = plane.new_namespace(f"t-{abs(hash(request.node.name)) % 10**8}")
    yield name
    plane.drop_namespace(name)


def create(plane, namespace, obj, *, dry_run=False):
    return plane.api.post(PODS.format(namespace) + ("?dryRun=All" if dry_run else ""), obj)


def refusal(plane, namespace, obj) -> str:
    with pytest.raises(ApiFailure) as refused:
        create(plane, namespace, obj)
    return json.loads(refused.value.body)["message"]


def tickets(stored):
    return {
        c["name"]: names
        for c in (*stored["spec"].get("initContainers", ()), *stored["spec"]["containers"])
        if (names := [n for n in c["resources"].get("limits", {}) if n.startswith("tessera.dev/ticket-")])
    }


# what it does


def test_a_pod_is_ours_after_its_creation(plane, webhook, space):
    stored = create(plane, space, pod("a", limits=SHARE))
    request, dialect = decode_request(stored["metadata"]["annotations"]["tessera.dev/request"])
    assert (dialect, request.claims[0].share.memory_limit.mib) == ("hami", 4000)
    assert stored["metadata"]["labels"] == {"tessera.dev/managed": "true"}
    assert stored["spec"]["schedulerName"] == "tessera-scheduler"
    assert len(tickets(stored)["main"]) == 1
    assert stored["spec"]["containers"][0]["resources"]["limits"].items() >= {("nvidia.com/gpumem", "4k")}


@pytest.mark.skipif(
    not DATA.is_dir(), reason=f"example manifests are not in {DATA}; set TESSERA_SHARED_DATA to their folder"
)
@pytest.mark.parametrize("folder", ["hami", "tensor-fusion"])
def test_every_example_manifest_is_stored_with_the_request_that_its_own_system_reads(
    plane, webhook, space, folder
):
    counted = 0
    for place, (source, obj, planned) in enumerate(example_pods(DATA / folder)):
        obj["metadata"]["name"] = f"p{place}"
        if planned.request is None and told(plane, space, obj).startswith('Pod "'):
            continue  # an example of another vendor that the API server itself calls invalid
        stored = create(plane, space, obj)
        text = stored["metadata"].get("annotations", {}).get("tessera.dev/request")
        if planned.request is None:
            assert (text, tickets(stored)) == (None, {}), source
            continue
        assert decode_request(text) == (planned.request, planned.dialect), source
        assert stored["spec"]["schedulerName"] == "tessera-scheduler", source
        assert tickets(stored).keys() == {n for c in planned.request.claims for n in c.containers}, source
        counted += 1
    assert counted == {"hami": 16, "tensor-fusion": 4}[folder]


def test_a_dry_run_tells_everything_and_changes_nothing(plane, webhook, space):
    stored = create(plane, space, pod("dry", limits=SHARE), dry_run=True)
    assert "tessera.dev/request" in stored["metadata"]["annotations"]
    assert plane.api.get(PODS.format(space))["items"] == []
    wrong = pod("wrong", limits={"nvidia.com/gpumem-percentage": "120"}, annotations={"nvidia.com/numa-bind": "?"})
    done = applied(plane, space, wrong, "--dry-run=server")
    assert done.returncode == 1
    assert "2 problems:" in done.stderr
    assert "is more than 100 percent of a device (got '120'); write 1 to 100" in done.stderr
    assert "is not a boolean (got '?')" in done.stderr


def applied(plane, namespace, obj, *flags):
    """A run of ``kubectl apply``, with what it printed."""
    command = [program("kubectl"), "--kubeconfig", plane.kubeconfig, "-n", namespace, "apply", *flags, "-f", "-"]
    return subprocess.run(command, input=yaml.safe_dump(obj), capture_output=True, text=True, check=False)


def test_a_workload_is_told_at_once_what_its_pods_will_be_refused_for(plane, webhook, space):
    template = pod("x", limits={"nvidia.com/gpumem-percentage": "120"}, labels={"app": "x"})
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "wrong"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": template["spec"]},
        },
    }
    done = applied(plane, space, deployment)
    assert (done.returncode, "Warning: its pods: containers[main]" in done.stderr) == (0, True)
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "wrong"},
        "spec": {
            "schedule": "0 0 1 1 *",
            "jobTemplate": {"spec": {"template": {"spec": template["spec"] | {"restartPolicy": "Never"}}}},
        },
    }
    done = applied(plane, space, cron)
    assert (done.returncode, "Warning: its pods: containers[main]" in done.stderr) == (0, True)


def test_a_profile_that_was_made_a_moment_ago_is_known(plane, webhook, space):
    profiles = f"/apis/tensor-fusion.ai/v1/namespaces/{space}/workloadprofiles"
    for size in range(1, 6):
        profile = {
            "apiVersion": "tensor-fusion.ai/v1",
            "kind": "WorkloadProfile",
            "metadata": {"name": f"p{size}"},
            "spec": {"resources": {"requests": {"vram": f"{size}Gi", "tflops": "1"}}},
        }
        plane.api.post(profiles, profile)
        named = pod(
            f"a{size}",
            labels={"tensor-fusion.ai/enabled": "true"},
            annotations={"tensor-fusion.ai/workload-profile": f"p{size}"},
        )
        stored = create(plane, space, named)
        request, _ = decode_request(stored["metadata"]["annotations"]["tessera.dev/request"])
        assert request.claims[0].share.memory_request.mib == size * 1024
    missing = pod(
        "b",
        labels={"tensor-fusion.ai/enabled": "true"},
        annotations={"tensor-fusion.ai/workload-profile": "nowhere"},
    )
    assert "names a WorkloadProfile that is not in the pod's namespace (got 'nowhere')" in refusal(
        plane, space, missing
    )


# records of pods that exist


def test_records_cannot_be_changed_but_a_binding_writes_them(plane, webhook, space):
    create(plane, space, pod("a", limits=SHARE))
    path = f"{PODS.format(space)}/a"
    for metadata in (
        {"annotations": {"tessera.dev/allocation": "{}"}},
        {"annotations": {"tessera.dev/request": None}},
        {"labels": {"tessera.dev/managed": None}},
    ):
        with pytest.raises(ApiFailure, match="is written by Tessera only and cannot be changed"):
            plane.api.merge(path, {"metadata": metadata})
    plane.api.merge(path, {"metadata": {"labels": {"mine": "yes"}}})
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "annotations": {"tessera.dev/allocation": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    plane.api.post(f"{path}/binding", binding)
    assert plane.api.get(path)["metadata"]["annotations"]["tessera.dev/allocation"] == "{}"


def test_of_running_pods_our_scheduler_alone_changes_what_is_decided(plane, webhook, space):
    create(plane, space, pod("a", limits=SHARE))
    path, name = f"{PODS.format(space)}/a", "tessera-scheduler"
    request = plane.api.get(path)["metadata"]["annotations"]["tessera.dev/request"]
    for account, may in ((f"{SYSTEM}:{name}", True), (f"{space}:{name}", False), (f"{SYSTEM}:default", False)):
        user = plane.client_certificate(f"system:serviceaccount:{account}", ("system:masters",))
        with closing(Api(plane.server, plane.authority.certificate, user)) as api:
            for key, text in (("allocation", account), ("request", request + " " * len(account))):
                change = {"metadata": {"annotations": {f"tessera.dev/{key}": text}}}
                if may:
                    assert api.merge(path, change)["metadata"]["annotations"][f"tessera.dev/{key}"] == text
                else:
                    with pytest.raises(ApiFailure, match="is written by Tessera only and cannot be changed"):
                        api.merge(path, change)
            with pytest.raises(ApiFailure, match="is written by Tessera only and cannot be changed"):
                api.merge(path, {"metadata": {"labels": {"tessera.dev/managed": None}}})
            wish = {"metadata": {"annotations": {"tessera.dev/resize": '{"main":{"memory":"1Gi"}}'}}}
            api.merge(path, wish)  # anybody who may write pods may wish


# when it is not there (rows 59 and 61 of the users' pains)


def test_rows_59_and_61_pods_that_ask_for_a_share_are_refused_and_all_others_pass_while_it_is_down(
    plane, webhook, space
):
    webhook.service.kill()
    try:
        for obj in FOREIGN:
            assert create(plane, space, obj)["metadata"]["name"] == obj["metadata"]["name"]
        for obj in ASKING:
            assert "failed calling webhook" in refusal(plane, space, obj), obj["metadata"]["name"]
        plane.api.merge(f"{PODS.format(space)}/plain", {"metadata": {"labels": {"a": "b"}}})
    finally:
        webhook.service.start()
    for obj in ASKING:
        create(plane, space, obj)


def test_row_59_a_wrong_authority_refuses_ours_alone_and_is_put_right(plane, webhook, space):
    other = plane.authority.certificate.read_bytes()
    encoded = base64.b64encode(other).decode()
    webhook.service.kill()  # so that it is not put right before we look
    for kind in CONFIGURATIONS:
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}/tessera-webhook"
        found = plane.api.get(path)
        for one in found["webhooks"]:
            one["clientConfig"]["caBundle"] = encoded
        plane.api.call("PUT", path, found)
    create(plane, space, pod("plain"))
    assert "failed calling webhook" in refusal(plane, space, pod("ours", limits=SHARE))
    webhook.service.start()
    wait_until(lambda: passes(plane, space), "the authority to be put right", 30)


def passes(plane, namespace):
    try:
        create(plane, namespace, pod("again", limits=SHARE), dry_run=True)
    except ApiFailure:
        return False
    return True


def test_without_its_configuration_the_policy_refuses_what_was_not_admitted(plane, webhook, space):
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tessera-webhook"
    plane.api.delete(path)
    try:
        wait_until(lambda: "not admitted by Tessera" in told(plane, space, pod("x", limits=SHARE)), "it to go", 15)
        assert "written by Tessera only" in told(
            plane, space, pod("x", annotations={"tessera.dev/allocation": "{}"})
        )
        assert "written by Tessera only" in told(plane, space, pod("x", limits={"tessera.dev/ticket-0": "1"}))
        for obj in FOREIGN:
            assert told(plane, space, obj) == ""
    finally:
        install(plane, webhook.url)
    wait_until(lambda: passes(plane, space), "the webhook to be asked again", 30)


def told(plane, namespace, obj) -> str:
    """Why the API server would refuse ``obj``; empty where it would not."""
    status = plane.api.call("POST", PODS.format(namespace) + "?dryRun=All", obj, accepts=(201, 400, 403, 422, 500))
    return status["message"] if status["kind"] == "Status" else ""


def test_readiness_tells_what_is_missing(plane, tmp_path, webhook):
    lonely = Webhook(plane, tmp_path, "--configuration", "nobody", "--secret", "other", name="lonely")
    lonely.service.ready = lambda: (
        lonely.status("/readyz")[0] == 503 and "is not there" in lonely.status("/readyz")[1]
    )
    lonely.start()
    assert "[-] certificate: MutatingWebhookConfiguration and" in lonely.status("/readyz")[1]
    assert lonely.status("/healthz")[0] == 200
    assert "tessera_webhook_certificate_expiry_timestamp_seconds" in lonely.status("/metrics")[1]
    lonely.service.stop()


def test_a_spoilt_secret_is_repaired_with_an_event(plane, webhook, space):
    path = f"/api/v1/namespaces/{SYSTEM}/secrets/tessera-webhook-tls"
    plane.api.merge(path, {"data": {"ca.key": "Z2FyYmFnZQ=="}})
    wait_until(lambda: plane.api.get(path)["data"]["ca.key"] != "Z2FyYmFnZQ==", "the Secret to be repaired", 30)
    wait_until(lambda: passes(plane, space), "pods to be admitted again", 30)
    events = f"/apis/events.k8s.io/v1/namespaces/{SYSTEM}/events"
    wait_until(lambda: reasons(plane, events) == {"CertificateRepaired"}, "the event", 15)


def reasons(plane, path):
    return {event["reason"] for event in plane.api.get(path)["items"]}


# rights

RULES = [
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": list(CONFIGURATIONS),
        "resourceNames": ["tessera-webhook"],
        "verbs": ["get", "patch"],
    },
    {"apiGroups": ["tensor-fusion.ai"], "resources": ["workloadprofiles"], "verbs": ["get", "list", "watch"]},
]
OWN_RULES = [
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["tessera-webhook-tls"],
        "verbs": ["get", "patch"],
    },
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]


def grant(plane, account):
    """Give ``account`` of Tessera's namespace exactly what docs/webhook.md lists."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    name = {"name": account}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}]
    for kind, rules in (("ClusterRole", RULES), ("Role", OWN_RULES)):
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": account}
        for obj in (
            {**rbac, "kind": kind, "metadata": name, "rules": rules},
            {**rbac, "kind": f"{kind}Binding", "metadata": name, "roleRef": role, "subjects": subjects},
        ):
            plane.kubectl("-n", SYSTEM, "apply", "-f", "-", stdin=yaml.safe_dump(obj))


def test_the_rights_that_are_documented_suffice_where_an_empty_secret_was_made(plane, webhook, tmp_path, space):
    plane.kubectl("-n", SYSTEM, "create", "serviceaccount", "webhook")
    grant(plane, "webhook")
    secrets = f"/api/v1/namespaces/{SYSTEM}/secrets"
    events = f"/apis/events.k8s.io/v1/namespaces/{SYSTEM}/events"
    webhook.service.kill()
    plane.api.delete(f"{secrets}/tessera-webhook-tls")
    plane.api.post(secrets, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tessera-webhook-tls"}})
    plane.api.delete(events)
    confined = Webhook(
        plane, tmp_path, name="confined", kubeconfig=plane.kubeconfig_for_account(SYSTEM, "webhook")
    )
    try:
        install(plane, confined.url)
        confined.start()
        wait_until(lambda: passes(plane, space), "pods to be admitted", 30)
        assert reasons(plane, events) == set()
        plane.api.merge(f"{secrets}/tessera-webhook-tls", {"data": {"ca.key": "Z2FyYmFnZQ=="}})
        wait_until(lambda: reasons(plane, events) == {"CertificateRepaired"}, "the event", 30)
        assert not [line for line in confined.lines() if line["level"] in ("warning", "error")]
    finally:
        confined.service.stop()
        install(plane, webhook.url)
        webhook.service.start()
