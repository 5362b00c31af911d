"""Publishing what the node has: ``GPUNode`` and ``GPU`` objects, brought to what is true now, written on change.

``plan`` decides from what is there; the publisher observes, acts and looks again until nothing is left to do. A
write that meets somebody else's looks again at once; an API server that is away is waited for, and what is written
then is what is true then.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from tessera.agent.inventory import gpu_statuses
from tessera.core.errors import TesseraError, UnavailableError
from tessera.runtime.clock import Clock
from tessera.runtime.kube.port import GPU_NODES, GPUS, NODES, ApiError, Kind, KubeClient, PatchType, Select
from tessera.runtime.log import logger
from tessera.wire.kube.inventory import GPUNodeStatus, GPUStatus
from tessera.wire.kube.names import API_VERSION
from tessera.wire.kube.objects import Meta

NODE_LABEL: Final = "tessera.dev/node"
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
RESYNC_SECONDS: Final = 600.0
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
_ROUNDS: Final = 8

_log: Final = logger("agent.publish")
_T = TypeVar("_T")


class Published(msgspec.Struct, frozen=True):
    """One of our objects as it stands; ``status`` is untyped, since anybody may have written it."""

    metadata: Meta
    status: dict[str, Any] | None = None


class NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    """What a kubelet says of its node's software."""

    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A node's status, as far as we read it."""

    node_info: NodeInfo = NodeInfo()


class NodeObject(msgspec.Struct, frozen=True):
    """A node."""

    metadata: Meta
    status: NodeStatus = NodeStatus()


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object; its status is written in the next round."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write an object's status, if it is still the one that was seen."""

    kind: Kind
    name: str
    resource_version: str
    status: GPUNodeStatus | GPUStatus


@dataclass(frozen=True, slots=True)
class Remove:
    """Take an object away, if it is still the one that was seen."""

    kind: Kind
    name: str
    uid: str


Step = Create | Write | Remove


def plan(
    node: str, status: GPUNodeStatus, observed: Published | None, gpus: Mapping[str, Published]
) -> tuple[Step, ...]:
    """The steps that bring the objects to ``status``; none when they are there."""
    wanted = gpu_statuses(node, status)
    steps: list[Step] = list(_steps(GPU_NODES, node, status, observed))
    for name in sorted(wanted):
        steps.extend(_steps(GPUS, name, wanted[name], gpus.get(name)))
    steps.extend(Remove(GPUS, name, gpus[name].metadata.uid) for name in sorted(gpus) if name not in wanted)
    return tuple(steps)


def _steps(kind: Kind, name: str, status: GPUNodeStatus | GPUStatus, observed: Published | None) -> Iterable[Step]:
    if observed is None:
        return (Create(kind, name),)
    if _read(observed.status, type(status)) == status:
        return ()
    return (Write(kind, name, observed.metadata.resource_version, status),)


def _read(
    status: dict[str, Any] | None, type_: type[GPUNodeStatus | GPUStatus]
) -> GPUNodeStatus | GPUStatus | None:
    """A status as a value, so that defaults count the same written or not; ``None`` where it is none of ours."""
    if status is None:
        return None
    try:
        return msgspec.convert(status, type_)
    except msgspec.ValidationError:
        return None


class Publisher:
    """See the module. ``wanted`` gives what is true now; :meth:`changed` tells that it may be another."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        wanted: Callable[[], GPUNodeStatus | None],
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._client, self._node, self._wanted, self._clock, self._chance = client, node, wanted, clock, chance
        self._woken = asyncio.Event()
        self.published: GPUNodeStatus | None = None
        """What stands in the API as far as we know."""

    def wake(self) -> None:
        """Look again."""
        self._woken.set()

    def changed(self) -> None:
        """Look again where what is true is not what was published: a node that only looked costs no call."""
        if self.published is None or self._wanted() != self.published:
            self.wake()

    def noticed(self, _: Published | None, new: Published | None) -> None:
        """Look again where our node's object was changed by somebody else, or taken away."""
        if new is None or _read(new.status, GPUNodeStatus) != self._wanted():
            self.wake()

    async def run(self) -> None:
        """Publish whenever something changed, and look now and then; until cancelled."""
        pause = FIRST_PAUSE
        while True:
            self._woken.clear()
            try:
                await self.publish()
            except TesseraError as error:
                _log.warning("not published", node=self._node, error=str(error), again_in=round(pause, 1))
                await self._clock.sleep(pause * self._chance.uniform(0.8, 1.2))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            await self._rest()

    async def _rest(self) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(RESYNC_SECONDS * self._chance.uniform(0.8, 1.2)))
        waking = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    async def publish(self) -> None:
        """Bring the objects to what is true now.

        Raises :class:`ApiError` or :class:`ConnectionLostError`, or :class:`UnavailableError` where others write
        the same objects all the time, or one of them may not be written.
        """
        for _ in range(_ROUNDS):
            status = self._wanted()
            if status is None:
                return
            steps = plan(self._node, status, await self._observed(), await self._gpus())
            if not steps:
                self.published = status
                return
            self.published = None
            for step in steps:
                await self._act(step)
        raise UnavailableError(
            f"GPUNode {self._node} and its GPUs are not what was written",
            "see who else writes them, or forbids it",
        )

    async def _observed(self) -> Published | None:
        return await _or_none(self._client.get(GPU_NODES, self._node, Published))

    async def _gpus(self) -> dict[str, Published]:
        listed = await self._client.list(GPUS, Published, Select(labels=f"{NODE_LABEL}={self._node}"))
        return {gpu.metadata.name: gpu for gpu in listed.items}

    async def _act(self, step: Step) -> None:
        """One step; that the object is another than it was seen is found out by the next look."""
        try:
            match step:
                case Create():
                    await self._create(step)
                case Write():
                    body = _body(step.kind, {"name": step.name, "resourceVersion": step.resource_version})
                    body["status"] = step.status
                    await self._client.replace(step.kind, step.name, body, Published, subresource="status")
                    _log.info("published", kind=step.kind.kind, name=step.name)
                case Remove():
                    await self._client.delete(step.kind, step.name, uid=step.uid)
                    _log.info("removed", kind=step.kind.kind, name=step.name)
        except ApiError as error:
            if error.code not in (_CONFLICT, _NOT_FOUND):
                raise

    async def _create(self, step: Create) -> None:
        owner = await _or_none(self._client.get(NODES, self._node, NodeObject))
        meta: dict[str, Any] = {"name": step.name, "labels": {NODE_LABEL: self._node}}
        if owner is not None:
            reference = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": owner.metadata.uid}
            meta["ownerReferences"] = [reference]
        try:
            await self._client.create(step.kind, _body(step.kind, meta), Published)
        except ApiError as error:
            if error.code != _CONFLICT or step.kind is GPU_NODES:
                raise
            # A device that came from another node: its object becomes ours, as soon as that may be.
            try:
                await self._client.patch(
                    step.kind, step.name, {"metadata": meta}, Published, type_=PatchType.MERGE
                )
            except ApiError as denied:
                if denied.code != _FORBIDDEN:
                    raise
                _log.warning("not ours yet", kind=step.kind.kind, name=step.name, error=str(denied))


def _body(kind: Kind, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": metadata}


async def _or_none(call: Awaitable[_T]) -> _T | None:
    """The object, or ``None`` where there is none."""
    try:
        return await call
    except ApiError as error:
        if error.code == _NOT_FOUND:
            return None
        raise
