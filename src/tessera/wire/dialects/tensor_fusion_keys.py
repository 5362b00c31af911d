"""The keys of TensorFusion's annotations: what is read, what is known but not planned yet, what only it writes.

Source: TensorFusion pkg/constants/constants.go and internal/webhook/v1/tf_parser.go.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tessera.wire.dialects.text import TENSOR_FUSION_PREFIX, Pairs
from tessera.wire.fields import Findings, did_you_mean, parse_bool

TFLOPS: Final = frozenset({"tflops-request", "tflops-limit"})
PERCENT: Final = frozenset({"compute-percent-request", "compute-percent-limit"})
VRAM: Final = frozenset({"vram-request", "vram-limit"})
COUNTING: Final = frozenset({"gpu-count", "gpu-indices", "container-gpu-count"})
PARTITION: Final = frozenset({"partition", "partition-id"})

ASKING: Final = TFLOPS | PERCENT | VRAM | COUNTING | PARTITION | {"dedicated-gpu", "workload-profile", "isolation"}
"""Annotations that ask for something, and so make a pod without the opt-in label ours."""

ISOLATIONS: Final = ("soft", "hard", "shared", "partitioned")

READ: Final = ASKING | {"gpu-model", "vendor", "inject-container", "qos"}
"""Annotations that decide the request."""

_LATER: Final[Mapping[str, str]] = {
    "gpupool": "names a pool; pools are not planned yet, so every device may serve",
    "sidecar-worker": "has no effect on the plan",
    "embedded-worker": "has no effect on the plan",
    "dedicated-worker": "has no effect on the plan",
    "workload": "has no effect on the plan; the pod's own annotations count",
    "selected-workload": "has no effect on the plan; the pod's own annotations count",
    "worker-pod-template": "is not planned; only the pod itself is",
    "autoscale": "is not applied yet",
    "autoscale-target": "is not applied yet",
    "gang-enabled": "asks for all members at once; they are planned one by one for now",
    "enabled-replicas": "is not applied yet; every replica is planned with its devices",
    "eviction-protection": "is not applied yet",
    "require-gpu-topology": "is not applied yet",
    "gpu-topology-max-tier": "is not applied yet",
    "gpu-topology-source": "is not applied yet",
    "disable-features": "is not applied; limits stay in force",
}
"""Known annotations that a plan does not honour yet: each is accepted with this warning."""

_QUIET: Final = frozenset(
    {"is-local-gpu", "gang-min-members", "gang-timeout", "port-name", "port-number", "host-port"}
)
"""Known annotations whose effect is warned of elsewhere, or that decide nothing a plan shows."""

_WRITTEN: Final = frozenset(
    {
        "gpu-ids", "index", "container-gpus", "effective-hard-sm-percent", "gang-desired-members",
        "gang-required-members", "gang-group-key", "pending-owned-workload", "pod-counter-key", "hourly-pricing",
        "gpu-released",
    }
)  # fmt: skip
"""Annotations that TensorFusion writes; in a manifest they are left-overs of a running pod."""


def path(name: str) -> str:
    """Path of an annotation for messages, from its name without the prefix."""
    return f"annotations[{TENSOR_FUSION_PREFIX}{name}]"


def read_flag(given: Mapping[str, str], name: str, findings: Findings) -> bool:
    """Whether a boolean annotation is true; absent is false, anything unreadable a problem."""
    text = given.get(name)
    value = False if text is None else parse_bool(text)
    if value is None:
        findings.error(path(name), text, "is not a boolean", 'write "true" or "false"')
    return bool(value)


def read_word(given: Mapping[str, str], name: str, known: Sequence[str], findings: Findings) -> str | None:
    """Word of a closed set; ``None`` where it is absent, and a problem where it is not in the set."""
    word = given.get(name)
    if word is not None and word not in known:
        remedy = did_you_mean(word, known, f"known are {', '.join(known)}")
        findings.error(path(name), word, "is not a known word", remedy)
    return word


def warn_of_keys(annotations: Pairs, given: Mapping[str, str], findings: Findings) -> None:
    """Warn of what ``given`` (profile and annotations) says without effect, and of annotations nobody knows."""
    for name, message in _LATER.items():
        if name in given and given[name] != "false":
            findings.warn(path(name), given[name], message, "no change is needed")
    if given.get("is-local-gpu") == "false":
        message = "asks for a GPU of another machine, and is planned as local for now"
        findings.warn(path("is-local-gpu"), "false", message, "no change is needed")
    for name in sorted(PARTITION & given.keys()):
        message = "names a partition; devices that are partitioned may serve, whatever their template"
        findings.warn(path(name), given[name], message, "no change is needed")
    known = READ | _LATER.keys() | _QUIET
    for key, text in annotations:
        name = key.removeprefix(TENSOR_FUSION_PREFIX)
        if name == key or name in known:
            continue
        if name in _WRITTEN:
            findings.warn(
                path(name), text, "is written by TensorFusion, and not believed from a manifest", "remove it"
            )
        else:
            remedy = did_you_mean(name, known, "remove it, or check its spelling")
            findings.warn(path(name), text, "is not a known key and has no effect", remedy)
