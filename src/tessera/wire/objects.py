"""Documents to Kubernetes objects: lists unfolded, identities checked, what is no object set aside.

Within one file an identity (kind, namespace, name) stands once, and an object that another one of the file makes
(the ReplicaSet and the pods of a Deployment, as ``kubectl get -o yaml`` lists them) is read through its maker.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import Problem
from tessera.wire.documents import Document
from tessera.wire.fields import Findings, located, mapping_at, shown
from tessera.wire.workloads import KINDS, makes_pods

_DEEPEST_LIST: Final = 8
_DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    """One object: the file it stood in, its identity there (``label`` is ``Kind/namespace/name``), its content."""

    source: str
    kind: str
    group: str
    namespace: str
    name: str
    label: str
    raw: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in a file that makes no pods of its own, and why; ``kind`` is empty for what is no object."""

    source: str
    kind: str
    name: str
    why: str


Found = KubernetesObject | Skipped | tuple[Problem, ...]


def read_objects(documents: Iterable[Document]) -> Iterator[Found]:
    """Yield the objects of one file, what was set aside, and what is wrong, in the order of the file."""
    items = [_identify(item, n) for n, item in enumerate(item for doc in documents for item in _unfold(doc))]
    labels = Counter(item.label for item in items if isinstance(item, KubernetesObject))
    seen: set[str] = set()
    for item in items:
        if not isinstance(item, KubernetesObject):
            yield item
            continue
        owner = _owner(item)
        if item.label in seen:
            message = "stands twice in this file"
            yield (Problem(item.source, item.label, "", "", message, "remove or rename one of the two"),)
            yield item  # read all the same, for what else is wrong with it
        elif owner in labels and owner != item.label:
            yield Skipped(item.source, item.kind, item.name, f"is made by {owner}, through which it is read")
        else:
            yield item
        seen.add(item.label)


def _unfold(document: Document, depth: int = 0) -> Iterator[Document]:
    """Yield the document, or the items of the list that it is; items of a typed list may leave out their kind."""
    raw = document.raw
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if (
        not isinstance(raw, dict)
        or not isinstance(kind, str)
        or not kind.endswith("List")
        or depth == _DEEPEST_LIST
    ):
        yield document
        return
    items = raw.get("items")
    implied = {"kind": kind.removesuffix("List"), "apiVersion": raw.get("apiVersion")}
    for item in items if isinstance(items, list) else ():
        untyped = kind != "List" and isinstance(item, dict) and "kind" not in item
        typed = implied | item if untyped else item
        yield from _unfold(Document(document.source, typed, document.line), depth + 1)


def _identify(item: Document, place: int) -> Found:
    raw = item.raw
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(kind, str) or not kind:
        what = "has no kind" if isinstance(raw, dict) else f"is {shown(raw)}"
        return Skipped(item.source, "", "", f"{what} (line {item.line}), and so no Kubernetes object")
    version = raw.get("apiVersion")
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    findings = Findings()
    metadata = mapping_at(raw, "metadata", "metadata", findings)
    namespace = _text_at(metadata, "namespace", findings) or _DEFAULT_NAMESPACE
    name = _text_at(metadata, "name", findings) or _generated(metadata, place, findings)
    if kind in KINDS and version is None:
        findings.error("apiVersion", "", "is missing", "add it, such as v1 for a Pod")
    if makes_pods(kind, group) and not name:
        findings.error("metadata.name", "", "is missing", "give the object a name")
    label = f"{kind}/{namespace}/{name}"
    if findings.failed:
        return located(findings.found, item.source, label)
    return KubernetesObject(item.source, kind, group, namespace, name, label=label, raw=raw)


def _generated(metadata: Mapping[str, object], place: int, findings: Findings) -> str:
    """Name from ``generateName``, made unique by the object's place in its file."""
    prefix = _text_at(metadata, "generateName", findings)
    return f"{prefix}{place}" if prefix else ""


def _text_at(metadata: Mapping[str, object], key: str, findings: Findings) -> str:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    findings.error(f"metadata.{key}", value, "must be text, as Kubernetes demands", "put it in quotes")
    return ""


def _owner(named: KubernetesObject) -> str:
    """Label of the object that made this one, as its controller reference says; empty where nobody did."""
    metadata = named.raw.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return f"{owner.get('kind')}/{named.namespace}/{owner.get('name')}"
    return ""
