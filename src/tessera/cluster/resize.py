"""Wishing another share for a running pod: the annotation, and what became of it.

Only the wish is written here. Tessera's scheduler grants it or tells the pod why not, and what is granted is put
in force by the node.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.cluster.rights import reading
from tessera.cluster.subject import seen_pod
from tessera.core.errors import InputErrors, Problem
from tessera.runtime.clock import Clock
from tessera.runtime.kube.port import EVENTS, PODS, KubeClient, Select
from tessera.scheduler.facts import PodFacts
from tessera.wire.kube.names import RESIZE
from tessera.wire.kube.request import decode_request
from tessera.wire.kube.resize import decode_wishes, encode_wish, wished

LOOK_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 5.0
"""The scheduler looks twice a second."""
REASON: Final = "ResizeRefused"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a wish. ``note``: what the pod was told last where it is not granted; empty for nothing."""

    pod: str
    container: str
    granted: bool
    note: str = ""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Event(msgspec.Struct, frozen=True):
    metadata: _Meta
    reason: str = ""
    note: str = ""


async def wish(  # noqa: PLR0913 - what a person says, and where
    client: KubeClient,
    clock: Clock,
    namespace: str,
    name: str,
    *,
    container: str | None,
    memory: str | None,
    compute: str | None,
) -> Answer:
    """Write the wish, and wait a few seconds for what comes of it.

    Raises :class:`InputErrors` for a pod without a share, a container that is not named where there are several,
    and amounts that cannot be read.
    """
    _, facts = await seen_pod(client, namespace, name, "resize")
    chosen = _container(facts, container)
    text = _text(facts, chosen, memory, compute)
    patch = {"metadata": {"uid": facts.uid, "annotations": {RESIZE: text}}}
    with reading("patch", PODS, namespace):
        await client.patch(PODS, name, patch, dict, namespace=namespace)
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while not _is_met(facts, text):
        if clock.monotonic() >= deadline:
            return Answer(facts.key, chosen, granted=False, note=await _refusal(client, facts))
        await clock.sleep(LOOK_SECONDS)
        _, facts = await seen_pod(client, namespace, name, "resize")
    return Answer(facts.key, chosen, granted=True)


def _container(facts: PodFacts, named: str | None) -> str:
    if facts.request is None or not facts.node:
        what = "holds no share of Tessera" if facts.request is None else "waits for a node and holds nothing yet"
        raise _wrong(facts.key, what, "name a running pod; 'kubectl tessera top' lists those that use a share")
    try:
        request, _ = decode_request(facts.request)
    except ValueError as error:
        raise _wrong(facts.key, f"cannot be read: its request {error}", "create the pod again") from error
    holders = sorted({name for claim in request.claims for name in claim.containers})
    if named is None and len(holders) > 1:
        raise _wrong(facts.key, "has several containers with a share", f"name one with -c: {', '.join(holders)}")
    if named is not None and named not in holders:
        raise _wrong(named, "is no container with a share", f"those are {', '.join(holders)}")
    return named or holders[0]


def _text(facts: PodFacts, container: str, memory: str | None, compute: str | None) -> str:
    """The annotation: what was wished for other containers before stays."""
    try:
        mine = msgspec.json.decode(encode_wish(container, memory, compute), type=dict[str, dict[str, str]])
    except ValueError as error:
        raise InputErrors(
            [Problem("resize", "", "", "", str(error), "see 'kubectl tessera resize -h'")]
        ) from error
    try:
        before = msgspec.json.decode(facts.resize or "{}", type=dict[str, dict[str, str]])
    except msgspec.MsgspecError:
        before = {}
    return msgspec.json.encode({**before, container: {**before.get(container, {}), **mine[container]}}).decode()


def _is_met(facts: PodFacts, text: str) -> bool:
    try:
        request, _ = decode_request(facts.request or "")
        return wished(request, decode_wishes(text)) == request
    except ValueError:
        return False


async def _refusal(client: KubeClient, facts: PodFacts) -> str:
    """What the pod was told last about its wish."""
    of_pod = Select(namespace=facts.namespace, fields=f"regarding.uid={facts.uid}")
    with reading("list", EVENTS, facts.namespace):
        found = await client.list(EVENTS, _Event, of_pod)
    notes = [event for event in found.items if event.reason == REASON]
    return max(notes, key=lambda e: int(e.metadata.resource_version or 0)).note if notes else ""


def _wrong(value: str, message: str, remedy: str) -> InputErrors:
    return InputErrors([Problem("resize", "", "", value, message, remedy)])
