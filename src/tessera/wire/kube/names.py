"""Names that stand in objects of a cluster. Costly to change: they are in everybody's manifests and histories."""

from typing import Final

GROUP: Final = "tessera.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

REQUEST: Final = "tessera.dev/request"
"""Pod annotation, written at admission: the request in canonical JSON (:mod:`tessera.wire.kube.request`)."""

ALLOCATION: Final = "tessera.dev/allocation"
"""Pod annotation, written with the binding: who got what (:mod:`tessera.wire.kube.allocation`)."""

RESIZE: Final = "tessera.dev/resize"
"""Pod annotation, written by people on a running pod: another share that they wish for
(:mod:`tessera.wire.kube.resize`)."""

DECISIONS: Final = (REQUEST, ALLOCATION)
"""Annotations that are ours alone to write; what a manifest brings along is removed."""

MANAGED: Final = ("tessera.dev/managed", "true")
"""Label of every pod that was admitted by us: agents and people select by it."""

SCHEDULER_NAME: Final = "tessera-scheduler"
DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"
SCHEDULER_ACCOUNT: Final = "tessera-scheduler"
"""The service account that may change what is decided of a running pod."""

COMPONENT: Final = "tessera"
"""Who reports the events that we write."""

CDI_KIND: Final = "tessera.dev/gpu"
"""CDI devices are ``tessera.dev/gpu=<uuid>``."""
