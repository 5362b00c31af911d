"""The CustomResourceDefinitions of our kinds, made from the types that read and write them.

The chart carries them as files; ``tools/crds.py`` writes those and checks that they are current. Field texts below
are what ``kubectl explain`` shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tessera.wire.kube.inventory import GPUNodeStatus, GPUStatus
from tessera.wire.kube.names import GROUP, VERSION
from tessera.wire.kube.schema import Notes, Schema, structural

MAX_DEVICES: Final = 256
"""Devices of one node: 16 cards in 7 partitions each are 112. It bounds the object and the cost of its rules."""
TIERS: Final = ("driver", "hook", "report", "unverified")
MAX_TEXT: Final = 1024

_NOTES: Final[Notes] = {
    "DeviceFacts": {
        "uuid": {
            "description": "Identity of the device, as its driver gives it.",
            "minLength": 1,
            "maxLength": 253,
        },
        "index": {"description": "Number of the device on its node, as its driver counts.", "minimum": 0},
        "model": {"description": "Name of the model, as its driver gives it.", "minLength": 1, "maxLength": 253},
        "memoryMib": {"description": "Memory in MiB.", "minimum": 0},
        "vendor": {"description": "Whose device it is.", "minLength": 1, "maxLength": 63},
        "slots": {"description": "How many shares the device may carry at once.", "minimum": 1},
        "numa": {"description": "NUMA node that it is attached to; absent where unknown.", "minimum": 0},
        "healthy": {"description": "Whether it may be given to pods."},
        "reason": {"description": "Why it is not healthy.", "maxLength": MAX_TEXT},
        "mode": {"description": "How it is divided.", "minLength": 1, "maxLength": 63},
        "milliTflops": {"description": "Dense FP16 performance in thousandths of a TFLOPS.", "minimum": 0},
        "foreign": {
            "description": "Pod of another device plugin that holds the device, as namespace/name.",
            "maxLength": 512,
        },
    },
    "GPUNodeStatus": {
        "devices": {
            "description": "Every device of the node.",
            "maxItems": MAX_DEVICES,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["uuid"],
        },
        "isolation": {
            "description": "What holds memory: driver (and limiter), hook (limiter), unverified (limiter, no "
            "gate), report (nothing). Nobody knows unless it is said.",
            "enum": list(TIERS),
        },
        "gate": {"description": "Whether the gate checks containers before they start; unless said, it does not."},
        "driver": {"description": "Version of the driver.", "maxLength": 253},
        "agent": {"description": "Version of the agent.", "maxLength": 253},
        "message": {"description": "What people should know about this node.", "maxLength": MAX_TEXT},
    },
    "GPUStatus": {
        "node": {"description": "The node that the device is in.", "maxLength": 253},
        "device": {"description": "What the agent of that node found."},
        "": {
            "x-kubernetes-validations": [
                {
                    "rule": "!has(oldSelf.device) || !has(self.device) || self.device.uuid == oldSelf.device.uuid",
                    "message": "a GPU object stays the same device: its uuid does not change",
                }
            ]
        },
    },
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; ``wide`` ones show with ``-o wide`` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """One of our kinds. All are cluster-scoped and have a status that is written apart from the rest."""

    kind: str
    plural: str
    short: tuple[str, ...]
    description: str
    status: type[msgspec.Struct]
    columns: Sequence[Column]


GPU_NODE: Final = Definition(
    kind="GPUNode",
    plural="gpunodes",
    short=("gn",),
    description="The accelerators of one node, as its agent found them. The name is the node's.",
    status=GPUNodeStatus,
    columns=(
        Column("Model", ".status.devices[0].model"),
        Column("Isolation", ".status.isolation"),
        Column("Gate", ".status.gate", "boolean"),
        Column("Driver", ".status.driver"),
        Column("Message", ".status.message"),
        Column("Agent", ".status.agent", wide=True),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ),
)
GPU: Final = Definition(
    kind="GPU",
    plural="gpus",
    short=(),
    description="One accelerator. The name is its uuid in lower case.",
    status=GPUStatus,
    columns=(
        Column("Node", ".status.node"),
        Column("Index", ".status.device.index", "integer"),
        Column("Model", ".status.device.model"),
        Column("MiB", ".status.device.memoryMib", "integer"),
        Column("Healthy", ".status.device.healthy", "boolean"),
        Column("Reason", ".status.device.reason"),
        Column("Mode", ".status.device.mode", wide=True),
        Column("NUMA", ".status.device.numa", "integer", wide=True),
        Column("Foreign", ".status.device.foreign", wide=True),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ),
)
DEFINITIONS: Final = (GPU_NODE, GPU)


def crds() -> tuple[dict[str, Any], ...]:
    """Every CustomResourceDefinition, ready to be applied."""
    return tuple(map(crd, DEFINITIONS))


def crd(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    d = definition
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{d.plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "tessera"}},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": d.kind,
                "listKind": f"{d.kind}List",
                "plural": d.plural,
                "singular": d.kind.lower(),
                "categories": ["tessera"],
                **({"shortNames": list(d.short)} if d.short else {}),
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in d.columns],
                    "schema": {"openAPIV3Schema": _object(d)},
                }
            ],
        },
    }


def _column(column: Column) -> Mapping[str, Any]:
    wide = {"priority": 1} if column.wide else {}
    return {"name": column.name, "type": column.type, "jsonPath": column.path, **wide}


def _object(definition: Definition) -> Schema:
    notes = {name: notes for name, notes in _NOTES.items() if name in _structs(definition.status)}
    return {
        "type": "object",
        "description": definition.description,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "status": structural(definition.status, notes),
        },
    }


def _structs(type_: type[msgspec.Struct]) -> Mapping[str, Any]:
    return msgspec.json.schema_components([type_])[1]
