"""Kubernetes objects for tests, what reading them gives, and what the API server makes of them."""

import copy
import json
import re
from decimal import Decimal

from tessera.core.request import Claim, Request
from tessera.wire.manifests import Manifests, PlannedPod, read_manifests


def container(name="main", limits=None, requests=None, **more):
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    return {"name": name, "image": "x"} | ({"resources": resources} if resources else {}) | more


def pod(*containers, name="p", init=(), annotations=None, labels=None, namespace=None, **spec):
    metadata = {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels}
    body = {"containers": list(containers), **spec}
    if init:
        body["initContainers"] = list(init)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: value for key, value in metadata.items() if value is not None},
        "spec": body,
    }


def workload(kind, spec=None, *, template=None, name="web", group="apps/v1", **metadata):
    made = template or pod(container())
    body = {"template": {"metadata": made["metadata"], "spec": made["spec"]}} | (spec or {})
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, **metadata}, "spec": body}


def read(*objects, nodes=()) -> Manifests:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    return read_manifests([("f.yaml", text)], nodes)


def planned(*objects, nodes=()) -> PlannedPod:
    found = read(*objects, nodes=nodes)
    assert not found.problems, [str(problem) for problem in found.problems]
    (one,) = found.pods
    return one


def request(*objects) -> Request:
    found = planned(*objects).pod.request
    assert found is not None
    return found


def claim(*objects) -> Claim:
    (one,) = request(*objects).claims
    return one


def errors(*objects) -> list[str]:
    found = read(*objects)
    assert not found.pods
    return [str(problem) for problem in found.problems]


def warnings(*objects) -> list[str]:
    return [str(problem) for problem in planned(*objects).warnings]


# what the API server does to an object before anyone else sees it

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def canonical(raw: object) -> str:
    """A quantity as the API server writes it back: no fraction, the largest suffix that needs none."""
    text = str(raw)
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]?)", text)
    if found is None:
        return text
    number, suffix = found.groups()
    if suffix in _BINARY:
        value = Decimal(number) * 1024 ** _BINARY[suffix]
        if value % 1024 == 0 and value:
            power = max(p for p in _BINARY.values() if value % 1024**p == 0)
            return f"{value // 1024**power:f}{next(s for s, p in _BINARY.items() if p == power)}"
        suffix, number = "", str(value)
    value = Decimal(number) * Decimal(10) ** _DECIMAL[suffix]
    if not value:
        return "0"
    power = max(p for p in _DECIMAL.values() if value % Decimal(10) ** p == 0)
    return f"{value / Decimal(10) ** power:f}{next(s for s, p in _DECIMAL.items() if p == power)}"


def served(raw):
    """``raw`` as the API server hands it out: quantities rewritten, defaults filled in, status there."""
    raw = copy.deepcopy(raw)
    if not isinstance(raw, dict) or "kind" not in raw:
        return raw
    raw.setdefault("metadata", {}).setdefault("creationTimestamp", None)
    raw["metadata"].setdefault("namespace", "default")
    raw.setdefault("status", {})
    spec = raw.get("spec") or {}
    if raw["kind"] == "WorkloadProfile" and "resources" in spec:
        for side in ("requests", "limits"):
            given = spec["resources"].get(side, {})
            spec["resources"][side] = {"tflops": "0", "vram": "0"} | {k: canonical(v) for k, v in given.items()}
    job = spec.get("jobTemplate", {}).get("spec", {})
    template = spec.get("template") or job.get("template")
    if isinstance(template, dict):
        template.setdefault("metadata", {}).setdefault("creationTimestamp", None)
        _serve_pod(template["spec"])
    elif raw["kind"] == "Pod":
        _serve_pod(spec)
    return raw


def _serve_pod(spec):
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        each.setdefault("terminationMessagePath", "/dev/termination-log")
        each.setdefault("terminationMessagePolicy", "File")
        each.setdefault("imagePullPolicy", "IfNotPresent")
        resources = each.setdefault("resources", {})
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
        for side in ("limits", "requests"):
            if side in resources:
                resources[side] = {name: canonical(value) for name, value in resources[side].items()}
