"""Has kube-scheduler try waiting pods again when there may be room that it cannot see.

kube-scheduler tries a pod that an extender refused again after any event of the kinds that it watches, else after
five minutes. It does not watch what frees room for us: a GPUNode that appears or heals, a ticket that is used up,
a reservation that ends; and where it does (a pod that is deleted), it may ask us before we have heard of it. So we
touch an object that it watches: a CSIStorageCapacity of our own, in our own namespace, which belongs to no storage
class and means nothing. It needs the right to write that one object, and no right over nodes or pods.

Source: kube-scheduler's framework/runtime/framework.go (the extender's default events: all) and eventhandlers.go.
"""

from typing import Any, Final

from tessera.runtime.clock import Clock
from tessera.runtime.kube.port import ApiError, ConnectionLostError, Kind, KubeClient, PatchType
from tessera.runtime.log import logger
from tessera.scheduler.state import State

CAPACITIES: Final = Kind("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
NAME: Final = "tessera-wake"
COUNT: Final = "tessera.dev/wakes"
PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 60.0

_log: Final = logger("wake")


class Waker:
    """At most one write in two seconds, and none while no pod waits."""

    def __init__(self, state: State, client: KubeClient, namespace: str, clock: Clock) -> None:
        self._state, self._client, self._namespace, self._clock = state, client, namespace, clock
        self._not_before = clock.monotonic()
        self._pause = PAUSE_SECONDS
        self.wakes = 0

    async def turn(self) -> bool:
        """Wake, if there is a reason and it is time; whether that was done."""
        state = self._state
        if not state.freed:
            return False
        if not state.refused:
            state.freed = False
            return False
        now = self._clock.monotonic()
        if now < self._not_before:
            return False
        state.freed = False
        try:
            await self._touch()
        except (ApiError, ConnectionLostError) as error:
            state.freed = True
            self._pause = min(LONGEST_PAUSE_SECONDS, self._pause * 2)
            _log.warning("waiting pods not woken", pause=self._pause, error=str(error))
        else:
            self.wakes += 1
            self._pause = PAUSE_SECONDS
        self._not_before = self._clock.monotonic() + self._pause
        return self._pause == PAUSE_SECONDS

    async def _touch(self) -> None:
        """One write: an apply makes the object where it is missing."""
        body: dict[str, Any] = {
            "apiVersion": CAPACITIES.api_version,
            "kind": CAPACITIES.kind,
            "metadata": {"name": NAME, "annotations": {COUNT: f"{self._clock.wall():.3f}"}},
            "storageClassName": NAME,
        }
        await self._client.patch(CAPACITIES, NAME, body, dict, type_=PatchType.APPLY, namespace=self._namespace)
