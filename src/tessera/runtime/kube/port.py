"""The client port: everything that Tessera asks of an API server, in the smallest number of calls.

Two adapters stand behind it: :mod:`tessera.runtime.kube.client` (a real API server) and
:mod:`tessera.runtime.kube.memory` (an API server in memory, for unit tests). One contract suite runs on both.

Objects are decoded straight into the type that the caller names: a thin ``msgspec.Struct`` with the fields that it
reads. Bodies are anything that msgspec encodes, or ``bytes`` that are JSON already.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeVar

from tessera.core.errors import TesseraError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource as its address names it; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``group/version`` as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Kind("", "v1", "pods", "Pod")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Kind("events.k8s.io", "v1", "events", "Event")
SECRETS = Kind("", "v1", "secrets", "Secret")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
GPU_NODES = Kind("tessera.dev", "v1alpha1", "gpunodes", "GPUNode", namespaced=False)
GPUS = Kind("tessera.dev", "v1alpha1", "gpus", "GPU", namespaced=False)
CRDS = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
MUTATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)


class ApiError(TesseraError):
    """The API server answered with a failure. ``code`` is the HTTP status, ``reason`` Kubernetes' own word.

    An answer that could not be read as what it should be has the reason ``Unreadable``. ``retry_after`` is for how
    many seconds the server asked to be left alone; 0 where it did not say.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.reason = reason
        self.retry_after = 0.0
        super().__init__(f"{code} {reason}: {message}")


class ConnectionLostError(TesseraError):
    """The API server could not be reached, or went away in the middle of an answer."""


class UnreachableError(ConnectionLostError):
    """No connection came about: nothing was sent, so the server did nothing."""


class EventType(StrEnum):
    """What a watch event says."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event; ``object`` is ``None`` for a bookmark. ``resource_version`` is where a next watch resumes.

    ``initial_ends`` marks the bookmark that ends the objects which a watch with ``initial`` begins with.
    """

    type: EventType
    object: T | None
    resource_version: str
    initial_ends: bool = False


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """Objects of a list (all, or one page), and where a watch goes on from it."""

    items: tuple[T, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Select:
    """Which objects: one namespace or all, by label and by field, in the API's own syntax."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


EVERYTHING: Final = Select()
"""All namespaces, all objects."""


class PatchType(StrEnum):
    """Kinds of patch, by their media type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


class KubeClient(Protocol):
    """See the module. Every call raises :class:`ApiError` or :class:`ConnectionLostError`, and nothing else."""

    async def get(self, kind: Kind, name: str, as_: type[T], *, namespace: str = "") -> T:
        """One object."""
        ...

    async def list(self, kind: Kind, as_: type[T], select: Select = EVERYTHING) -> Listed[T]:
        """All objects that are selected, read in pages at one resource version.

        A list that expires between two pages (410) is begun again, a few times.
        """
        ...

    def pages(self, kind: Kind, as_: type[T], select: Select = EVERYTHING) -> AsyncGenerator[Listed[T], None]:
        """The same page by page, for lists that are too large to hold at once; all pages have one version.

        Raises :class:`ApiError` with code 410 where the list expired between two pages: begin again.
        """
        ...

    def watch(
        self,
        kind: Kind,
        as_: type[T],
        select: Select = EVERYTHING,
        *,
        resource_version: str,
        initial: bool = False,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Events after ``resource_version`` until the server ends the stream, which it does without an error.

        An expired version raises :class:`ApiError` with code 410, whether it came as a status or as an event.
        With ``initial`` (and an empty version) all present objects come first, as ``ADDED``, and then a bookmark
        whose ``initial_ends`` is true; a server that cannot do that answers 400 or 422, or begins without.
        """
        ...

    async def create(
        self, kind: Kind, body: Any, as_: type[T], *, namespace: str = "", subresource: str = "", name: str = ""
    ) -> T:
        """A new object; with ``name`` and ``subresource``, a POST to that (``binding``, ``eviction``)."""
        ...

    async def replace(
        self, kind: Kind, name: str, body: Any, as_: type[T], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """PUT; a ``resourceVersion`` in the body makes it conditional (409 where it is stale)."""
        ...

    async def patch(  # noqa: PLR0913 - as many as the API has
        self,
        kind: Kind,
        name: str,
        body: Any,
        as_: type[T],
        *,
        type_: PatchType = PatchType.MERGE,
        namespace: str = "",
        subresource: str = "",
        field_manager: str = "tessera",
    ) -> T:
        """PATCH; ``APPLY`` is a forced server-side apply under ``field_manager``."""
        ...

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """DELETE, conditional on ``uid`` and ``resource_version`` where they are given.

        A bound pod first gets a ``deletionTimestamp`` and goes when its kubelet says so, unless ``grace_seconds``
        is 0.
        """
        ...

    async def close(self) -> None:
        """Close every connection; watches end."""
        ...
