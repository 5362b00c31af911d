"""What the webhook adds to the creation of a pod on a real API server, beside what any webhook would.

Five kinds of pods are created by one client, a few of each in turn, alike but for what makes them what they are:

* plain: devices of a resource that nobody knows, so that nobody is asked;
* policy: the same, which gets a label and a scheduler's name from a MutatingAdmissionPolicy in the API server;
* asked: the same, sent to a webhook of the bench that lets it pass as it is;
* patched: the same, which gets from that webhook a patch of the shape and size of ours, and always the same one;
* ours.

So what is the API server's own price of a call and of a patch is told from what we add. Of each kind there is the
time that the client waited, and the CPU time that API server and webhook spent: the latter says more where others
use the machine.
"""

import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "cluster"))

from processes import cpu_seconds

from cluster.engine.plane import ControlPlane, Options
from cluster.engine.service import wait_until
from cluster.webhook_objects import SHARE
from cluster.webhook_process import Webhook, install

UNKNOWN: Final = {"other.example/gpu": "1", "other.example/gpumem": "4000"}
AT_ONCE: Final = 8
"""Pods of one kind in a row."""
WARM: Final = 40
PODS: Final = "/api/v1/namespaces/team/pods"


def a_pod(name: str, share: dict[str, str] | None, replica: int = 0) -> dict[str, Any]:
    """A pod as a Deployment makes them, about 5 KB: what the API server adds is there."""
    env = [{"name": f"SETTING_{n}", "value": f"a value of some length {n:04d}"} for n in range(24)]
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10}
    main = {
        "name": "main",
        "image": "registry.example/team/model-server:v1.42.0",
        "args": ["--model", "/models/large", "--port", "8080"],
        "env": env,
        "resources": {"limits": share, "requests": share} if share else {},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": f"kube-api-access-{replica:05d}", "mountPath": "/var/run/secrets/token"}],
    }
    fields: dict[str, Any] = {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {"f:containers": {f"k{n}": {} for n in range(60)}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "server", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"team.example/owner": "inference"},
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {
            "containers": [main, {"name": "proxy", "image": "registry.example/proxy:v1", "resources": {}}],
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "volumes": [{"name": f"kube-api-access-{replica:05d}", "emptyDir": {}}],
        },
    }  # fmt: skip


PATCH: Final = [
    {
        "op": "add",
        "path": "/metadata/annotations/other.example~1request",
        "value": '{"v":1,"claims":[{"containers":["main"],"count":1,"share":{"memory":{"mib":4000},'
        '"compute":{"milli":1000}}}],"dialect":"other","constraints":{"vendor":"OTHER"}}',
    },
    {"op": "add", "path": "/metadata/labels/other.example~1managed", "value": "true"},
    {"op": "add", "path": "/spec/schedulerName", "value": "other-scheduler"},
    {"op": "add", "path": "/spec/containers/0/resources/limits/other.example~1ticket-3", "value": "5"},
    {"op": "add", "path": "/spec/containers/0/resources/requests/other.example~1ticket-3", "value": "5"},
]


@dataclass
class Kind:
    """One kind of pod; times in milliseconds, CPU in microseconds a pod, one figure a turn."""

    name: str
    share: dict[str, str]
    times: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    webhook: list[float] = field(default_factory=list)


def creates(number: int) -> tuple[float, list[str]]:
    """Milliseconds that we add at the median, and everything in lines."""
    strangers = [Kind(name, UNKNOWN) for name in ("plain", "policy", "asked", "patched")]
    kinds = [*strangers, Kind("ours", SHARE)]
    with _cluster() as (plane, ours, floor):
        server = plane.services["kube-apiserver"].pid
        webhooks = {"ours": ours.service.pid}
        asked = _calls(plane)
        for turn in range(-(-WARM // AT_ONCE), 0, -1):
            _turn(plane, kinds, -turn, server, webhooks, floor)
        for kind in kinds:
            kind.times, kind.server, kind.webhook = [], [], []
        for turn in range(-(-number // AT_ONCE)):
            shift = turn % len(kinds)
            _turn(plane, [*kinds[shift:], *kinds[:shift]], turn, server, webhooks, floor)
        made = len(kinds[-1].times) + -(-WARM // AT_ONCE) * AT_ONCE
        asked = _calls(plane) - asked
    lines = [_line(kind, kinds[0]) for kind in kinds]
    lines.append(f"  calls of our webhooks for each of our pods: {asked / made:.2f}")
    added, floor_added = (_added(kind, kinds[0]) for kind in (kinds[-1], kinds[-2]))
    lines.append(f"  added by ours {added:+.2f} ms, by a constant patch {floor_added:+.2f} ms, both p50")
    return added, lines


def _turn(
    plane: ControlPlane, kinds: Sequence[Kind], turn: int, server: int, webhooks: dict[str, int], floor: int
) -> None:
    """A few pods of each kind."""
    for kind in kinds:
        webhook = webhooks.get(kind.name, floor)
        before = cpu_seconds(server), cpu_seconds(webhook)
        for n in range(AT_ONCE):
            body = a_pod(f"{kind.name}-{turn + 1000}-{n}", kind.share)
            body["metadata"]["labels"]["bench"] = kind.name
            began = time.perf_counter()
            plane.api.post(PODS, body)
            kind.times.append((time.perf_counter() - began) * 1e3)
        kind.server.append((cpu_seconds(server) - before[0]) / AT_ONCE * 1e6)
        kind.webhook.append((cpu_seconds(webhook) - before[1]) / AT_ONCE * 1e6)


def _line(kind: Kind, plain: Kind) -> str:
    quarter, half, most = (_quantile(kind.times, q) for q in (0.25, 0.5, 0.9))
    server, webhook = statistics.median(kind.server), statistics.median(kind.webhook)
    added, more = _added(kind, plain), server - statistics.median(plain.server)
    return (
        f"  {kind.name + ':':<8} p25 {quarter:5.2f}, p50 {half:5.2f} ({added:+.2f}), p90 {most:5.2f} ms; "
        f"CPU of the API server {server:5.0f} us ({more:+5.0f}), of the webhook {webhook:3.0f} us"
    )


def _added(kind: Kind, plain: Kind) -> float:
    return _quantile(kind.times, 0.5) - _quantile(plain.times, 0.5)


def _quantile(times: Sequence[float], part: float) -> float:
    return sorted(times)[int(len(times) * part)]


def _calls(plane: ControlPlane) -> int:
    """How often the API server asked a webhook of ours; it counts by name, operation and outcome."""
    lines = str(plane.api.get("/metrics")).splitlines()
    found = [
        x for x in lines if x.startswith("apiserver_admission_webhook_request_total{") and ".tessera.dev" in x
    ]
    return sum(int(line.rpartition(" ")[2]) for line in found)


# the cluster


@contextmanager
def _cluster() -> Iterator[tuple[ControlPlane, Webhook, int]]:
    """A control plane with everything of ours at admission, and the process id of the other webhook."""
    with tempfile.TemporaryDirectory() as folder:
        options = Options(scheduler=False, controller_manager=False)
        with ControlPlane(Path(folder) / "plane", options) as plane:
            replica = Webhook(plane, Path(folder), "--linger", "0")
            install(plane, replica.url, policy=True)
            replica.start()
            plane.new_namespace("team")
            other = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                assert other.stdout is not None
                port, authority = json.loads(other.stdout.readline())
                for name in ("asked", "patched"):
                    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_other(name, port, authority)))
                plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(_policy("policy")))
                for name in ("patched", "policy"):
                    wait_until(lambda name=name: _is_changed(plane, name), f"{name} pods to be changed", 30)
                yield plane, replica, other.pid
            finally:
                other.terminate()
                other.wait(10)


def _is_changed(plane: ControlPlane, kind: str) -> bool:
    body = a_pod("probe", UNKNOWN)
    body["metadata"]["labels"]["bench"] = kind
    return "other.example/managed" in plane.api.post(f"{PODS}?dryRun=All", body)["metadata"]["labels"]


SMALL_CHANGE: Final = """[
    JSONPatch{op: "add", path: "/metadata/labels/other.example~1managed", value: "true"},
    JSONPatch{op: "add", path: "/spec/schedulerName", value: "other-scheduler"}
]"""
RULE: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


def _policy(name: str) -> list[dict[str, Any]]:
    """A policy that makes a small change to the pods of a kind, once for each, and its binding."""
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"zz-{name}"}}
    spec = {
        "matchConstraints": {"objectSelector": {"matchLabels": {"bench": name}}, "resourceRules": [RULE]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": SMALL_CHANGE}}],
    }
    return [
        {**head, "kind": "MutatingAdmissionPolicy", "spec": spec},
        {**head, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": f"zz-{name}"}},
    ]


def _other(name: str, port: int, authority: str) -> dict[str, Any]:
    bundle = base64.b64encode(authority.encode()).decode()
    webhook = {
        "name": f"{name}.other.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/{name}", "caBundle": bundle},
        "objectSelector": {"matchLabels": {"bench": name}},
        "rules": [RULE],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": f"zz-{name}"},
        "webhooks": [webhook],
    }


def _serve_constant() -> None:
    """The other webhook: a review costs it next to nothing beside the request."""
    import asyncio  # noqa: PLC0415 - needed in this process only

    import uvloop  # noqa: PLC0415

    from tessera.runtime.serve import Answer, Bind, serve  # noqa: PLC0415
    from tessera.runtime.tls import Lifetimes, ReloadingContext, new_authority, new_leaf  # noqa: PLC0415

    patch = b'"patchType":"JSONPatch","patch":"%b",' % base64.b64encode(json.dumps(PATCH).encode())

    def answer(_method: str, path: str, body: bytes) -> Answer:
        start = body.index(b'"uid":"')
        uid, _, _ = body[start + 7 : start + 100].partition(b'"')
        said = patch if path.startswith("/patched") else b""
        response = b'{%b"uid":"%b","allowed":true}' % (said, uid)
        kind = b'"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"'
        return Answer(b'{%b,"response":%b}' % (kind, response))

    async def live() -> None:
        authority, context = new_authority(Lifetimes().authority, time.time()), ReloadingContext()
        context.load(new_leaf(authority, ["127.0.0.1"], Lifetimes().leaf, time.time()))
        server = await serve(answer, Bind("127.0.0.1", 0), name="other", tls=context.context)
        print(json.dumps([server.bind.port, authority.certificate.decode()]), flush=True)
        await asyncio.Event().wait()

    uvloop.run(live())


if __name__ == "__main__":
    _serve_constant()
