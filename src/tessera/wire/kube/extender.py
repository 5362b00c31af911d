"""The extender protocol of kube-scheduler: what it asks, what it is answered.

Only what is read is decoded: a pod of 11 kB with 500 node names costs about 30 us. Go writes ``null`` where a list
is empty or absent, and leaves fields out as it likes; both read as "nothing".

Source: k8s.io/kube-scheduler extender/v1 types.go, and pkg/scheduler/extender.go for what is done with an answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, overload

import msgspec

from tessera.core.request import Container, ContainerKind
from tessera.core.ticket import PREFIX, ticket_of
from tessera.wire.kube.objects import KubePod, PodContainer
from tessera.wire.quantity import Malformed, parse_quantity, to_count, to_milli

SIDECAR_POLICY: Final = "Always"
"""Source: KEP-753: an init container with this restart policy is a sidecar."""


class NodeNames(Sequence[str]):
    """The names of a Filter call, decoded only when somebody goes through them.

    Whether a name is among them is asked of the text: a node's name is a DNS name, so it stands there as it is,
    between quotes. That spares decoding 500 names when the best node is among them, as it nearly always is.
    """

    __slots__ = ("_decoded", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._decoded: list[str] | None = None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and b'"%s"' % name.encode() in self._text

    def __len__(self) -> int:
        return len(self.all())

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        return self.all()[at]

    def all(self) -> list[str]:
        """Every name. Raises ``ValueError`` where the text is no list of names."""
        if self._decoded is None:
            try:
                self._decoded = _names_decoder.decode(self._text)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ValueError(f"is no filter call: {error}") from error
        return self._decoded


def _names(text: msgspec.Raw) -> NodeNames:
    """The names, or ``ValueError`` where none were sent."""
    sent = bytes(text)
    if sent in (b"", b"null"):
        raise ValueError("names no nodes: set nodeCacheCapable to true for this extender")
    if not sent.startswith(b"["):
        raise ValueError("is no filter call: NodeNames is no list")
    return NodeNames(sent)


class _FilterArgs(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    pod: KubePod | None = None
    node_names: msgspec.Raw = msgspec.Raw()


class _Known(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _KnownPod(msgspec.Struct, frozen=True, gc=False):
    metadata: _Known = _Known()


class _Call(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    pod: _KnownPod | None = None
    node_names: msgspec.Raw = msgspec.Raw()


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """Whom a Filter call is about, and the nodes; for a caller who knows the pod already."""

    uid: str
    names: NodeNames


class FilterArgs(msgspec.Struct, frozen=True, gc=False):
    """A pod and the names of the nodes that passed every check of kube-scheduler's own."""

    pod: KubePod
    names: NodeNames


class BindArgs(msgspec.Struct, frozen=True, gc=False):
    """Which pod kube-scheduler wants bound, and to which node."""

    name: str = msgspec.field(default="", name="PodName")
    namespace: str = msgspec.field(default="", name="PodNamespace")
    uid: str = msgspec.field(default="", name="PodUID")
    node: str = msgspec.field(default="", name="Node")

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"


class _Kept(msgspec.Struct, frozen=True, gc=False):
    names: Sequence[str] = msgspec.field(name="NodeNames")


class _Refused(msgspec.Struct, frozen=True, gc=False):
    reasons: Mapping[str, str] = msgspec.field(name="FailedAndUnresolvableNodes")
    names: tuple[()] = msgspec.field(default=(), name="NodeNames")


class _Failed(msgspec.Struct, frozen=True, gc=False):
    error: str = msgspec.field(name="Error")


class _Target(msgspec.Struct, frozen=True, gc=False):
    name: str
    apiVersion: str = "v1"  # noqa: N815 - the name on the wire
    kind: str = "Node"


class _BindingMeta(msgspec.Struct, frozen=True, gc=False):
    name: str
    namespace: str
    uid: str
    annotations: dict[str, str]


class _Binding(msgspec.Struct, frozen=True, gc=False):
    metadata: _BindingMeta
    target: _Target
    apiVersion: str = "v1"  # noqa: N815 - the name on the wire
    kind: str = "Binding"


_filter_decoder: Final = msgspec.json.Decoder(_FilterArgs)
_call_decoder: Final = msgspec.json.Decoder(_Call)
_names_decoder: Final = msgspec.json.Decoder(list[str])
_bind_decoder: Final = msgspec.json.Decoder(BindArgs)
_encoder: Final = msgspec.json.Encoder()

BOUND: Final = b"{}"
"""The answer to a Bind that was done."""


def decode_filter(body: bytes) -> FilterArgs:
    """The arguments of a Filter call. Raises ``ValueError`` with what is wrong with them."""
    try:
        args = _filter_decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"is no filter call: {error}") from error
    if args.pod is None:
        raise ValueError("is a filter call without a pod")
    return FilterArgs(args.pod, _names(args.node_names))


def decode_candidates(body: bytes) -> Candidates:
    """The same for a pod that is known from elsewhere: nothing of it is read but who it is."""
    try:
        call = _call_decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"is no filter call: {error}") from error
    if call.pod is None:
        raise ValueError("is a filter call without a pod")
    return Candidates(call.pod.metadata.uid, _names(call.node_names))


def decode_bind(body: bytes) -> BindArgs:
    """The arguments of a Bind call. Raises ``ValueError`` with what is wrong with them."""
    try:
        args = _bind_decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"is no bind call: {error}") from error
    if not (args.name and args.namespace and args.uid and args.node):
        raise ValueError("is a bind call without a pod's name, namespace and uid or without a node")
    return args


def encode_kept(names: Sequence[str]) -> bytes:
    """The nodes that stay: the one that was chosen, or all of them."""
    return _encoder.encode(_Kept(names))


def encode_refused(reasons: Mapping[str, str]) -> bytes:
    """No node, with the reason of each; kube-scheduler counts equal reasons together in its event.

    They are "unresolvable" so that kube-scheduler plans no eviction: it cannot see what an eviction would free.
    """
    return _encoder.encode(_Refused(reasons))


def encode_error(message: str) -> bytes:
    """No verdict: kube-scheduler tries the pod again after its back-off, instead of waiting for a change."""
    return _encoder.encode(_Failed(message))


def encode_binding(args: BindArgs, annotations: dict[str, str]) -> bytes:
    """A Binding that names the uid, so that it can never bind the next pod of that name."""
    meta = _BindingMeta(args.name, args.namespace, args.uid, annotations)
    return _encoder.encode(_Binding(meta, _Target(args.node)))


# what a pod's spec says to us


def containers_of(pod: KubePod) -> tuple[Container, ...]:
    """Names and kinds of the pod's containers, in the order of their lives."""
    inits = tuple(
        Container(c.name, ContainerKind.SIDECAR if c.restart_policy == SIDECAR_POLICY else ContainerKind.INIT)
        for c in pod.spec.init_containers or ()
    )
    return (*inits, *(Container(c.name) for c in pod.spec.containers))


def resources_of(container: PodContainer) -> Mapping[str, str]:
    """What a container asks for, by resource; its limits win, which for extended resources equal the requests."""
    found = container.resources
    if found is None:
        return {}
    if not found.requests or found.requests == found.limits:
        return found.limits or {}
    return {**found.requests, **(found.limits or {})}


def tickets_of(pod: KubePod) -> dict[str, int]:
    """The ticket of each container that has one, by container name.

    Raises ``ValueError`` where a container has two, where a quantity is no ticket, or where two containers share
    one: such tickets were not written at admission.
    """
    found: dict[str, int] = {}
    for container in pod.spec.all_containers():
        for name, text in resources_of(container).items():
            if not name.startswith(PREFIX):
                continue
            count = _count(text)
            ticket = ticket_of(name, count)
            if ticket is None:
                raise ValueError(f"container {container.name} asks for {text} of {name}, which is no ticket")
            if container.name in found:
                raise ValueError(f"container {container.name} has two tickets")
            found[container.name] = ticket.number
    if len(set(found.values())) != len(found):
        raise ValueError("two containers of the pod have one ticket")
    return found


def devices_asked(pod: KubePod, counting: frozenset[str]) -> int:
    """How many whole devices the pod asks for at its peak, by the resources that count devices.

    Source: Kubernetes KEP-753: an init container overlaps only the sidecars declared before it.
    """
    return _peak(pod, lambda container: _asked(container, counting))


def cpu_asked(pod: KubePod) -> int:
    """Milli-cores that the pod asks for at its peak; what is no quantity counts nothing."""
    return _peak(pod, lambda container: _milli_cores(str(_requests(container).get("cpu", ""))))


def _peak(pod: KubePod, asked_by: Callable[[PodContainer], int]) -> int:
    sidecars = peak = 0
    for container in pod.spec.init_containers or ():
        asked = asked_by(container)
        if container.restart_policy == SIDECAR_POLICY:
            sidecars += asked
        else:
            peak = max(peak, sidecars + asked)
    return max(peak, sidecars + sum(asked_by(container) for container in pod.spec.containers))


def _requests(container: PodContainer) -> Mapping[str, str]:
    """What a container requests; the API server has put the limit where no request was."""
    found = container.resources
    return {} if found is None else found.requests or found.limits or {}


@lru_cache(4096)
def _milli_cores(text: str) -> int:
    value = parse_quantity(text) if text else None
    return 0 if value is None or isinstance(value, Malformed) else max(0, int(to_milli(value)))


def _asked(container: PodContainer, counting: frozenset[str]) -> int:
    return sum(max(0, _count(text)) for name, text in resources_of(container).items() if name in counting)


def _count(text: object) -> int:
    """A quantity as a whole number; 0 where it is none."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    value = parse_quantity(str(text))
    if isinstance(value, Malformed):
        return 0
    whole = to_count(value)
    return 0 if isinstance(whole, Malformed) else whole
