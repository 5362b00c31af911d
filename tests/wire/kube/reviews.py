"""Reviews for tests: an object in, the answer out, and what an API server makes of its patch."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from tessera.runtime.kube.patch import json_patch
from tessera.wire.kube.mutation import Tickets
from tessera.wire.kube.review import Admission, Answer
from tessera.wire.kube.verdict import Options


@dataclass
class Reviewed:
    """An answer, taken apart."""

    answer: Answer
    response: dict[str, Any]
    patch: list[dict[str, Any]] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        return self.response.get("warnings", [])

    @property
    def message(self) -> str:
        return self.response["status"]["message"]


def admission(start=0, profiles=lambda namespace, name: None, **options) -> Admission:
    return Admission(Options(**options), Tickets(start), profiles)


def review_of(obj, operation="CREATE", old=None, namespace="team", **more) -> bytes:
    group, _, version = obj["apiVersion"].rpartition("/")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": obj["kind"]},
        "operation": operation,
        "namespace": namespace,
        "object": obj,
        "oldObject": old,
        "dryRun": False,
        "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
        **more,
    }
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def ask(obj, by: Admission | None = None, **more) -> Reviewed:
    """The answer to ``obj``; always a well-formed AdmissionReview of the same uid."""
    answer = (by or admission()).review(review_of(obj, **more))
    body = json.loads(answer.body)
    assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = body["response"]
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert isinstance(response["allowed"], bool)
    assert ("patch" in response) == ("patchType" in response)
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return Reviewed(answer, response, patch)


def admitted(obj, by: Admission | None = None, **more) -> dict[str, Any]:
    """``obj`` as it is stored after our patch."""
    found = ask(obj, by, **more)
    assert found.response["allowed"], found.message
    return json_patch(obj, found.patch)


def denied(obj, by: Admission | None = None, **more) -> str:
    """Why ``obj`` is refused."""
    found = ask(obj, by, **more)
    assert not found.response["allowed"]
    assert not found.patch
    return found.message


def tickets_of(pod) -> dict[str, dict[str, str]]:
    """Ticket resources by container, which must stand alike in limits and requests."""
    found = {}
    for one in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        resources = one.get("resources") or {}
        limits, requests = (
            {k: v for k, v in (resources.get(side) or {}).items() if k.startswith("tessera.dev/ticket")}
            for side in ("limits", "requests")
        )
        assert limits == requests
        if limits:
            found[one["name"]] = limits
    return found
