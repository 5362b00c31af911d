"""Has kube-scheduler try waiting pods again when there may be room for them that it does not see by itself.

**What frees room for us.** kube-scheduler tries a pod that an extender refused again after any event of the kinds
that it watches, else after five minutes. It does not watch what frees room for us: a GPUNode that appears or
heals, a ticket that is used up, a reservation that ends; and where it does (a pod that is deleted), it may ask us
before we have heard of it. So we touch an object that it watches: a CSIStorageCapacity of our own, in our own
namespace, which belongs to no storage class and means nothing.

**Nodes that join or grow** (:mod:`.growth`). Neither that nor the touch wakes a pod that kube-scheduler refused
itself. What does: a pod that is no longer nominated for a node, since that counts as a pod that left the node; it
wakes all pods of its priority and below. So one waiting pod, of the highest priority, is nominated for a node that
does not exist, and that is taken back at once. Should we end between the two writes, the mark is found on the pod,
and taken off.

Source: Kubernetes 1.37 pkg/scheduler/framework/runtime/framework.go (the extender's default events: all) and
pkg/scheduler/eventhandlers.go (hasNominatedNodeNameChanged, getLEPriorityPreCheck).
"""

from collections.abc import Awaitable
from typing import Any, Final

from tessera.runtime.clock import Clock
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError, Kind, KubeClient, PatchType
from tessera.runtime.log import logger
from tessera.scheduler.facts import MARK, PodFacts
from tessera.scheduler.state import State

CAPACITIES: Final = Kind("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
NAME: Final = "tessera-wake"
COUNT: Final = "tessera.dev/wakes"
PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 60.0

_log: Final = logger("wake")


class Waker:
    """Each of the two at most once in two seconds, and nothing while no pod waits."""

    def __init__(self, state: State, client: KubeClient, namespace: str, clock: Clock) -> None:
        self._state, self._client, self._namespace, self._clock = state, client, namespace, clock
        self._touches, self._marks = _Pace(clock), _Pace(clock)
        self.wakes = 0

    async def turn(self) -> int:
        """Wake as far as there is a reason and it is time; how often that was done."""
        done = await self._after_freeing() + await self._after_growth()
        self.wakes += done
        return done

    async def _after_freeing(self) -> bool:
        state = self._state
        if not state.freed:
            return False
        if not state.refused:
            state.freed = False
            return False
        if not self._touches.is_time():
            return False
        state.freed = False
        done = await self._touches.keep(self._touch())
        state.freed = state.freed or not done
        return done

    async def _touch(self) -> None:
        """One write: an apply makes the object where it is missing."""
        body: dict[str, Any] = {
            "apiVersion": CAPACITIES.api_version,
            "kind": CAPACITIES.kind,
            "metadata": {"name": NAME, "annotations": {COUNT: f"{self._clock.wall():.3f}"}},
            "storageClassName": NAME,
        }
        await self._client.patch(CAPACITIES, NAME, body, dict, type_=PatchType.APPLY, namespace=self._namespace)

    async def _after_growth(self) -> bool:
        growth = self._state.growth
        if not (growth.due or growth.marked) or not self._marks.is_time():
            return False
        pods = growth.foremost(self._state.holdings.get) if growth.due else ()
        growth.due = False
        if not (pods or growth.marked):
            return False
        done = await self._marks.keep(self._nominate(tuple(growth.marked.values()), pods))
        growth.due = growth.due or not done
        return done

    async def _nominate(self, marked: tuple[PodFacts, ...], pods: tuple[PodFacts, ...]) -> None:
        """Take off the marks that were left, which wakes too, and put one on each of ``pods`` and off again."""
        for facts in marked:
            await self._mark(facts, None)
        for facts in pods:
            await self._mark(facts, MARK)
            await self._mark(facts, None)

    async def _mark(self, facts: PodFacts, node: str | None) -> None:
        """One write, to this very pod: another of its name has another uid, and is left alone with a conflict."""
        body = {"metadata": {"uid": facts.uid}, "status": {"nominatedNodeName": node}}
        await self._client.patch(PODS, facts.name, body, dict, namespace=facts.namespace, subresource="status")


class _Pace:
    """Not too often, and less and less often while it fails."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before = clock.monotonic()
        self._pause = PAUSE_SECONDS

    def is_time(self) -> bool:
        """Whether the pause is over."""
        return self._clock.monotonic() >= self._not_before

    async def keep(self, work: Awaitable[None]) -> bool:
        """Do it and pause; whether it was done."""
        try:
            await work
        except (ApiError, ConnectionLostError) as error:
            self._pause = min(LONGEST_PAUSE_SECONDS, self._pause * 2)
            _log.warning("waiting pods not woken", pause=self._pause, error=str(error))
        else:
            self._pause = PAUSE_SECONDS
        self._not_before = self._clock.monotonic() + self._pause
        return self._pause == PAUSE_SECONDS
