"""Objects that webhook tests put before a control plane."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from tessera.core.request import Pod
from tessera.wire.documents import read_documents
from tessera.wire.manifests import read_manifests

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
PROFILE_KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "workloadprofiles.tensor-fusion.ai"},
    "spec": {
        "group": "tensor-fusion.ai",
        "scope": "Namespaced",
        "names": {"kind": "WorkloadProfile", "plural": "workloadprofiles", "singular": "workloadprofile"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


def pod(name, *, limits=None, init=None, annotations=None, labels=None, **spec):
    """A pod of one container, with an init container where ``init`` says what that asks for."""
    main = {"name": "main", "image": "none"} | ({"resources": {"limits": limits}} if limits else {})
    inits = [{"name": "first", "image": "none", "resources": {"limits": init}}] if init else []
    metadata = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [main], **({"initContainers": inits} if inits else {}), **spec},
    }


def example_pods(folder: Path) -> Iterator[tuple[str, dict, Pod]]:
    """Each pod of the example manifests (a workload's template as one), and what our own reading makes of it."""
    for path in sorted(folder.rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        for document in read_documents(path.name, text)[0]:
            raw = document.raw
            if not isinstance(raw, dict) or raw.get("kind") not in ("Pod", "Deployment", "StatefulSet", "Job"):
                continue
            planned = read_manifests([(path.name, yaml.safe_dump(raw))]).pods
            template = raw if raw["kind"] == "Pod" else raw["spec"]["template"]
            obj = {"apiVersion": "v1", "kind": "Pod", "metadata": dict(template.get("metadata") or {})}
            obj["metadata"].pop("namespace", None)
            yield f"{path.parent.name}/{path.name}", obj | {"spec": template["spec"]}, planned[0].pod
