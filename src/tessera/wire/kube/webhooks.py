"""The objects that put the webhook before an API server, and the policy that protects what it writes.

``matchConditions`` (CEL, evaluated by the API server before it calls anybody) are so narrow that a pod which asks
for nothing of ours never depends on us: our conditions say what :mod:`tessera.wire.dialects` would find. Nothing
here looks at a pod's status: what a manifest says of it is reset on creation, so it must not open a way round.

Source: Kubernetes admissionregistration.k8s.io/v1 types.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.ticket import PREFIX as TICKET_PREFIX
from tessera.vendors.registry import VENDORS
from tessera.wire.dialects.hami import IGNORE_LABEL
from tessera.wire.dialects.tensor_fusion import ENABLED
from tessera.wire.dialects.tensor_fusion_keys import ASKING
from tessera.wire.dialects.text import NATIVE_PREFIX, TENSOR_FUSION_PREFIX
from tessera.wire.kube.names import ALLOCATION, DECISIONS, MANAGED, REQUEST, SCHEDULER_ACCOUNT

CONFIGURATION: Final = "tessera-webhook"
"""Name of the webhook configurations."""
POLICY: Final = "tessera-pod-records"
MUTATE_PATH: Final = "/v1/pods"
GUARD_PATH: Final = "/v1/guard"
TEMPLATE_PATH: Final = "/v1/templates"

_NEW: Final = "request.operation == 'CREATE'"
_OLD: Final = "request.operation != 'CREATE'"
_API: Final = "admissionregistration.k8s.io/v1"
_COUNTS: Final = tuple(vendor.hami.count for vendor in VENDORS)
_SHARES: Final = tuple(name for vendor in VENDORS for name in vendor.hami.shares)
_ASKING: Final = tuple(sorted(TENSOR_FUSION_PREFIX + name for name in ASKING))
_TEMPLATED: Final = (
    ("apps", ("deployments", "statefulsets", "daemonsets", "replicasets")),
    ("batch", ("jobs",)),
    ("", ("replicationcontrollers",)),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the API server finds the webhook: a Service, or (``url``, without a path) an address.

    ``excluded`` namespaces are never looked at: where the webhook itself runs, and what a cluster needs to start.
    """

    namespace: str = "tessera-system"
    service: str = "tessera-webhook"
    port: int = 443
    url: str = ""
    ca_bundle: bytes = b""
    name: str = CONFIGURATION
    excluded: tuple[str, ...] = ("kube-system",)

    @property
    def all_excluded(self) -> tuple[str, ...]:
        """``excluded`` with our own namespace, sorted."""
        return tuple(sorted({*self.excluded, self.namespace}))

    @property
    def scheduler(self) -> str:
        """Who may change what is decided of a running pod, as the API server names it."""
        return f"system:serviceaccount:{self.namespace}:{SCHEDULER_ACCOUNT}"


def webhook_objects(target: Target) -> tuple[dict[str, Any], ...]:
    """Everything to apply: both webhook configurations, the policy and its binding."""
    return (mutating(target), validating(target), *policy(target))


def mutating(target: Target) -> dict[str, Any]:
    """What changes pods as they are created. A pod of ours is refused while nobody answers."""
    conditions = [_condition("asks-for-a-share", asks("object"))]
    webhook = _webhook("pods", target, MUTATE_PATH, [_rule("", ("pods",), ("CREATE",))], conditions)
    return _configuration("MutatingWebhookConfiguration", target, [webhook | {"reinvocationPolicy": "IfNeeded"}])


def validating(target: Target) -> dict[str, Any]:
    """What guards our records on pods that exist, and what tells of errors in templates, which may fail."""
    changed = " || ".join(
        f"({_record('object', kind, key)} != {_record('oldObject', kind, key)})" for kind, key in _RECORDS
    )
    told_by_others = _condition("is-not-our-scheduler", f"!({_by_scheduler(target)})")
    guard = _webhook(
        "guard",
        target,
        GUARD_PATH,
        [_rule("", ("pods",), ("UPDATE",))],
        [_condition("changes-a-record", changed), told_by_others],
    )
    unowned = _condition("is-nobodys-making", "!has(object.metadata.ownerReferences)")
    told = [_rule(group, resources, ("CREATE", "UPDATE")) for group, resources in _TEMPLATED]
    templates = _webhook(
        "templates",
        target,
        TEMPLATE_PATH,
        told,
        [unowned, _condition("asks-for-a-share", asks("object.spec.template"))],
    )
    cron_root = "object.spec.jobTemplate.spec.template"
    cron = _webhook(
        "cronjobs",
        target,
        TEMPLATE_PATH,
        [_rule("batch", ("cronjobs",), ("CREATE", "UPDATE"))],
        [unowned, _condition("asks-for-a-share", asks(cron_root))],
    )
    may_fail = {"failurePolicy": "Ignore", "timeoutSeconds": 2}
    return _configuration("ValidatingWebhookConfiguration", target, [guard, templates | may_fail, cron | may_fail])


def policy(target: Target) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same guard without a webhook, and the last line: no share passes that was not admitted by us.

    It holds while no webhook is installed or its namespace is excluded, and needs no process of ours.
    """
    records = [
        _validation(
            f"{_NEW} || {_record('object', kind, key)} == {_record('oldObject', kind, key)}"
            + (f" || ({_by_scheduler(target)})" if key in DECISIONS else ""),
            f"{kind}[{key}] is written by Tessera only and cannot be changed",
        )
        for kind, key in _RECORDS
    ]
    forged = _validation(
        f"{_OLD} || {_record('object', 'annotations', ALLOCATION)} == ''",
        f"annotations[{ALLOCATION}] is written by Tessera only; leave it out",
    )
    admitted = f"{_record('object', 'annotations', REQUEST)} != ''"
    ticketed = _in_containers("object", f"k.startsWith('{TICKET_PREFIX}')")
    copied = _validation(
        f"{_OLD} || {admitted} || !({ticketed})",
        f"{TICKET_PREFIX}* is written by Tessera only; leave it out",
    )
    exempt = f"request.namespace in {_list(target.all_excluded)}"
    slipped = _validation(
        f"{_OLD} || {exempt} || {admitted} || !({_shares('object')})",
        "asks for a share of a device, but was not admitted by Tessera's webhook: is that installed?",
    )
    name = {"name": POLICY if target.name == CONFIGURATION else f"{target.name}-records"}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("", ("pods",), ("CREATE", "UPDATE"))]},
        "validations": [*records, forged, copied, slipped],
    }
    binding = {"policyName": name["name"], "validationActions": ["Deny"]}
    return (
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": dict(name), "spec": spec},
        {"apiVersion": _API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": dict(name), "spec": binding},
    )


# CEL


def asks(root: str) -> str:
    """CEL: whether the pod or template at ``root`` is written in a dialect of ours, or carries our records."""
    return " || ".join(
        (
            _asks_by_name(root, (*_COUNTS, *_SHARES)),
            _some_key(root, "annotations", f"k.startsWith('{NATIVE_PREFIX}')"),
            _has_key(root, "labels", MANAGED[0]),
            _opted_in(root),
        )
    )


def _shares(root: str) -> str:
    """CEL: whether a container asks for a part of a device, which nobody but a sharing scheduler hands out."""
    return _asks_by_name(root, _SHARES)


def _asks_by_name(root: str, names: Sequence[str]) -> str:
    """Resources of ours, or ``names`` where HAMi's label does not say to ignore them; each is looked at once.

    This is evaluated for every pod of the cluster, and twice for ours: two walks cost half as much again.
    """
    return _in_containers(root, f"k.startsWith('{NATIVE_PREFIX}') || (k in {_list(names)} && !{_ignored(root)})")


def _ignored(root: str) -> str:
    key, value = IGNORE_LABEL
    return f"({_record(root, 'labels', key)} == '{value}')"


def _opted_in(root: str) -> str:
    """TensorFusion's: opted in by label, or (unless opted out) asking in annotations."""
    label = f"{root}.metadata.labels['{ENABLED}'].trim().lowerAscii()"
    asking = _some_key(root, "annotations", f"k in {_list(_ASKING)}")
    said = f"({label} == 'true' || ({label} != 'false' && {asking}))"
    return f"({_has_key(root, 'labels', ENABLED)} ? {said} : {asking})"


def _in_containers(root: str, test: str) -> str:
    """CEL: whether the name ``k`` of some resource of some container passes ``test``."""
    sides = " || ".join(
        f"(has(c.resources.{side}) && c.resources.{side}.exists(k, {test}))" for side in ("limits", "requests")
    )
    lists = (
        f"(has({root}.spec.{key}) && {root}.spec.{key}.exists(c, has(c.resources) && ({sides})))"
        for key in ("containers", "initContainers")
    )
    return f"({' || '.join(lists)})"


def _some_key(root: str, kind: str, test: str) -> str:
    there = f"has({root}.metadata) && has({root}.metadata.{kind})"
    return f"({there} && {root}.metadata.{kind}.exists(k, {test}))"


def _has_key(root: str, kind: str, key: str) -> str:
    pairs = f"{root}.metadata.{kind}"
    return f"(has({root}.metadata) && has({pairs}) && '{key}' in {pairs})"


def _record(root: str, kind: str, key: str) -> str:
    """CEL: the value of an annotation or label, empty where it is not there."""
    return f"({_has_key(root, kind, key)} ? {root}.metadata.{kind}['{key}'] : '')"


def _by_scheduler(target: Target) -> str:
    """CEL: whether our scheduler writes, which grants running pods another share where that is wished for."""
    return f"request.userInfo.username == '{target.scheduler}'"


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(map(repr, names))}]"


_RECORDS: Final = (*(("annotations", key) for key in DECISIONS), ("labels", MANAGED[0]))
"""What only Tessera writes on a pod."""


# objects


def _configuration(kind: str, target: Target, webhooks: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": target.name}, "webhooks": webhooks}


def _webhook(
    name: str,
    target: Target,
    path: str,
    rules: list[dict[str, Any]],
    conditions: list[dict[str, str]],
) -> dict[str, Any]:
    return {
        "name": f"{name}.tessera.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": dict(_client_config(target, path)),
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "rules": rules,
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(target.all_excluded)}
            ]
        },
        "matchConditions": conditions,
    }


def _client_config(target: Target, path: str) -> Iterator[tuple[str, Any]]:
    if target.url:
        yield "url", target.url.rstrip("/") + path
    else:
        service = {"namespace": target.namespace, "name": target.service, "path": path, "port": target.port}
        yield "service", service
    if target.ca_bundle:
        yield "caBundle", target.ca_bundle.decode("ascii")


def _rule(group: str, resources: Sequence[str], operations: Sequence[str]) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "Namespaced",
    }


def _condition(name: str, expression: str) -> dict[str, str]:
    return {"name": name, "expression": expression}


def _validation(expression: str, message: str) -> Mapping[str, str]:
    return {"expression": expression, "message": message, "reason": "Invalid"}
