"""A small world for the scheduler's state: nodes as agents publish them, pods as the API server has them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from builders import a_claim, a_share, whole
from tessera.core.request import Claim, Constraints, Dialect, Preference, Request
from tessera.core.ticket import DEVICES_PER_KEY, RESOURCES, Ticket
from tessera.policy.rank import POLICIES
from tessera.scheduler.facts import Facts, PodFacts
from tessera.scheduler.offers import FULL
from tessera.scheduler.state import Bindable, Chosen, Outcome, State
from tessera.wire.kube.inventory import DeviceFacts, GPUNodeStatus
from tessera.wire.kube.names import MANAGED, REQUEST, SCHEDULER_NAME
from tessera.wire.kube.objects import KubePod
from tessera.wire.kube.request import encode_request

GIB = 1024
FACTS = Facts()
ALLOCATABLE = {resource: str(DEVICES_PER_KEY) for resource in RESOURCES}
"""What a Node has of the tickets while its agent hands out shares."""

_numbers = itertools.count()


def gpus(node: str, count: int, memory: int = 24 * GIB, **facts: Any) -> GPUNodeStatus:
    """A node's status with so many equal devices, ``<node>-<index>``."""
    return GPUNodeStatus(
        devices=tuple(
            DeviceFacts(uuid=f"{node}-{i}", index=i, model="A100", memory_mib=memory, vendor="NVIDIA", **facts)
            for i in range(count)
        )
    )


def a_state(nodes: Mapping[str, int] | None = None, memory: int = 24 * GIB, policy: str = "binpack") -> State:
    """A state with these nodes, by number of devices, and no pods. Their agents hand out shares."""
    state = State(POLICIES[policy])
    for name, count in (nodes or {"n0": 1}).items():
        state.saw_node(name, {}, FULL)
        state.saw_gpu_node(name, gpus(name, count, memory))
    state.rebuild()
    return state


def share(
    memory: int = 8 * GIB, compute: int = 0, count: int = 1, containers: str | tuple[str, ...] = "main"
) -> Claim:
    """A claim of a share."""
    return a_claim(a_share(memory, compute), count, containers)


def exclusively(count: int = 1, containers: str = "main") -> Claim:
    """A claim of whole devices."""
    return a_claim(whole(), count, containers)


def request_text(claims: Sequence[Claim], constraints: Constraints | None = None) -> str:
    """The annotation that admission writes."""
    return encode_request(Request(tuple(claims), constraints or Constraints(), Preference()), Dialect.NATIVE)


def a_kube_pod(
    name: str,
    *claims: Claim,
    ticket: int | None = None,
    tickets: Mapping[str, int] | None = None,
    uid: str = "",
    node: str = "",
    phase: str = "Pending",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
    **more: Any,
) -> KubePod:
    """A pod; with claims it is one that our webhook admitted."""
    names = list(dict.fromkeys(c for claim in claims for c in claim.containers)) or ["main"]
    first = next(_numbers) * 16 % 512 if ticket is None else ticket
    numbers = dict(tickets) if tickets is not None else {n: (first + i) % 512 for i, n in enumerate(names)}
    containers = []
    for container in names:
        amounts = dict(resources or {})
        if claims and container in numbers:
            of = Ticket(numbers[container])
            amounts[of.resource] = str(of.quantity)
        containers.append({"name": container, "resources": {"limits": amounts, "requests": amounts}})
    written = {REQUEST: request_text(claims)} if claims else {}
    raw = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"uid-{name}",
            "annotations": {**written, **(annotations or {})},
            "labels": {**({MANAGED[0]: MANAGED[1]} if claims else {}), **(labels or {})},
            **more.pop("metadata", {}),
        },
        "spec": {
            "nodeName": node,
            "schedulerName": SCHEDULER_NAME,
            "containers": containers,
            **more.pop("spec", {}),
        },
        "status": {"phase": phase, **more.pop("status", {})},
    }
    assert not more
    return msgspec.convert(raw, KubePod)


def a_pod(name: str, *claims: Claim, **facts: Any) -> PodFacts:
    """What is kept of such a pod."""
    return FACTS.of(a_kube_pod(name, *claims, **facts))


def bound(facts: PodFacts, node: str, text: str, *, admitted: bool = False) -> PodFacts:
    """The pod after its binding."""
    return msgspec.structs.replace(facts, node=node, allocation=text, admitted=admitted)


def place(state: State, facts: PodFacts, names: Sequence[str] | None = None, now: float = 0.0) -> str | None:
    """Filter; the node, or ``None``."""
    verdict = state.filter(facts, list(state.fleet.node_names) if names is None else list(names), now)
    return verdict.node if isinstance(verdict, Chosen) else None


def bind(state: State, facts: PodFacts, node: str, now: float = 0.0) -> PodFacts:
    """Bind, with an API server that does it; the pod as it will be seen."""
    bindable = state.begin_bind(facts.uid, facts.key, node, now)
    assert isinstance(bindable, Bindable), bindable
    state.end_bind(bindable, Outcome.DONE, now)
    return bound(facts, node, bindable.text)


def run_pod(state: State, facts: PodFacts, names: Sequence[str] | None = None) -> PodFacts:
    """The whole road: seen, filtered, bound, seen bound and taken in by the kubelet."""
    state.saw_pod(None, facts, 0.0)
    node = place(state, facts, names)
    assert node is not None, facts.key
    after = msgspec.structs.replace(bind(state, facts, node), admitted=True)
    state.saw_pod(facts, after, 0.0)
    return after


def devices_of(state: State, uid: str) -> set[str]:
    """The devices that a pod holds."""
    held = state.holdings.get(uid)
    return set() if held is None else {charge.uuid for charge in held.placement.charges}


def free_memory(state: State, uuid: str) -> int:
    """What is left of a device, in MiB."""
    row = state.fleet.device_row[uuid]
    return int(state.fleet.memory[row] - state.view().usage.memory[row])


def allocation_of(facts: PodFacts) -> str:
    """The pod's annotation."""
    assert facts.allocation is not None
    return facts.allocation
