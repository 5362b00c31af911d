"""Another share for a running pod, where somebody wishes for one: room, one write, and who is told.

The wish stands in an annotation of the pod (:mod:`tessera.wire.kube.resize`) and is a state, not an order: what
the pod has is compared with it again and again, so a growth that finds no room now is granted once there is some.
What is granted is written in one patch of request and allocation, and only if the allocation is still the one that
it was decided on. Pods stay the log: a rebuild believes the pair as it believes what was bound.

A growth is booked before it is written, so that nobody else gets the room. Memory that is given back stays booked
for as long as the pod runs: whether it is free is known to the node alone, which may still have to refuse.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tessera.allocator.resize import Room, Short, most, placed_again, shortages
from tessera.core.device import Device
from tessera.core.placement import Charge, Placement, Reason
from tessera.core.request import Dialect, Pod, Request
from tessera.core.units import render_mib, render_percent
from tessera.runtime.clock import Clock
from tessera.runtime.kube.events import EventKind, Subject
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError, KubeClient, PatchType
from tessera.runtime.log import logger
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.holdings import Held, Phase
from tessera.scheduler.state import State
from tessera.scheduler.teller import Recorder
from tessera.wire.kube.allocation import Allocation, encode_allocation
from tessera.wire.kube.names import ALLOCATION, REQUEST, RESIZE
from tessera.wire.kube.request import decode_request, encode_request
from tessera.wire.kube.resize import decode_wishes, wished

AT_ONCE: Final = 20
"""Writes in one turn, of which there are two in a second."""

_log: Final = logger("resize")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The records that the pod is to have, and what they say."""

    request: str
    allocation: Allocation
    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the wish is not met, for the person who wished it."""

    why: str


def plan(state: State, facts: PodFacts) -> Rewrite | Refused | None:
    """What is to be done about a pod's wish; ``None`` where it has what it wishes, or holds nothing of ours."""
    held = state.holdings.get(facts.uid)
    if held is None or held.phase is not Phase.BOUND or facts.request is None or facts.resize is None:
        return None
    try:
        request, dialect = decode_request(facts.request)
        wanted = wished(request, decode_wishes(facts.resize))
    except ValueError as error:
        return Refused(f"the annotation {RESIZE} {error}")
    if wanted == request:
        return None
    return _fitted(state, facts, held, wanted, dialect)


def _fitted(state: State, facts: PodFacts, held: Held, wanted: Request, dialect: Dialect) -> Rewrite | Refused:
    pod = Pod(facts.namespace, facts.name, facts.uid, facts.containers, wanted)
    placement = placed_again(pod, held.placement, _devices(state, held.placement))
    if placement is None:
        return Refused("a device of the pod is not known any more, or its TFLOPS are not")
    placement = replace(placement, charges=tuple(_kept(held.placement, charge) for charge in placement.charges))
    if shorts := shortages(held.placement, placement, _room(state, held.placement)):
        return Refused(no_room(shorts))
    allocation = Allocation(placement, held.tickets)
    return Rewrite(encode_request(wanted, dialect), allocation, encode_allocation(placement, held.tickets))


def _kept(before: Placement, charge: Charge) -> Charge:
    """The charge, with no less memory than before."""
    was = next(one for one in before.charges if one.uuid == charge.uuid)
    return replace(charge, memory_mib=max(charge.memory_mib, was.memory_mib))


def _devices(state: State, placement: Placement) -> Mapping[str, Device]:
    fleet = state.fleet
    rows = (fleet.device_row.get(charge.uuid) for charge in placement.charges)
    return {fleet.devices[row].uuid: fleet.devices[row] for row in rows if row is not None}


def _room(state: State, placement: Placement) -> Mapping[str, Room]:
    """What the pod may have of its devices at most: all but what others hold."""
    fleet, usage = state.fleet, state.view().usage
    rows = [(charge, fleet.device_row[charge.uuid]) for charge in placement.charges]
    return {
        charge.uuid: Room(
            int(fleet.memory[row] - usage.memory[row]) + charge.memory_mib,
            int(fleet.compute[row] - usage.compute[row]) + charge.compute_milli,
        )
        for charge, row in rows
    }


def no_room(shorts: tuple[Short, ...]) -> str:
    """What was asked, what there is, and what would fit."""
    said = [f"device {short.uuid} has {_amount(short, short.room)} for it, {_amount(short, short.asked)} is more"
            for short in shorts]  # fmt: skip
    memory, compute = most(shorts, Reason.MEMORY), most(shorts, Reason.COMPUTE)
    fits = [f"memory {memory}Mi"] * (memory is not None) + [
        f"compute {render_percent(compute or 0)}" for _ in (compute,) if compute is not None
    ]
    return f"{'; '.join(said)}; what would fit: {', '.join(fits)}. It is granted once there is room"


def _amount(short: Short, amount: int) -> str:
    amount = max(0, amount)
    return render_mib(amount) if short.reason is Reason.MEMORY else f"{render_percent(amount)} compute"


class Resizer:
    """Meets the wishes that can be met. One call of :meth:`turn` at a time, and only while we lead."""

    def __init__(self, state: State, client: KubeClient, recorder: Recorder, clock: Clock) -> None:
        self._state, self._client, self._recorder, self._clock = state, client, recorder, clock
        self._told: dict[str, tuple[str | None, str]] = {}
        self.resized = 0

    async def turn(self) -> int:
        """Look at every wish once; how many were met."""
        state, before = self._state, self.resized
        self._told = {uid: told for uid, told in self._told.items() if uid in state.wishing}
        for uid in list(state.wishing):
            facts = state.pods.get(uid)
            step = None if facts is None else plan(state, facts)
            if isinstance(step, Refused) and facts is not None:
                self._tell(facts, step)
            elif isinstance(step, Rewrite) and facts is not None and self.resized - before < AT_ONCE:
                await self._write(facts, step)
        return self.resized - before

    def _tell(self, facts: PodFacts, refused: Refused) -> None:
        """Once for each wish: what has room changes, and is told with the next one."""
        if self._told.get(facts.uid, ("", ""))[0] != facts.resize:
            self._told[facts.uid] = (facts.resize, refused.why)
            self._record(facts, EventKind.WARNING, "ResizeRefused", refused.why)

    async def _write(self, facts: PodFacts, step: Rewrite) -> None:
        """One patch, under what was decided on; booked before, and undone where it was refused."""
        self._state.rebook(facts, step.allocation, step.text)
        try:
            await self._client.patch(
                PODS,
                facts.name,
                _patch(facts, step),
                dict,
                type_=PatchType.JSON,
                namespace=facts.namespace,
            )
        except ApiError as error:
            _log.warning("not resized", pod=facts.key, error=str(error))
            self._state.reread(facts.uid)
        except ConnectionLostError as error:
            _log.warning("not known whether it was resized", pod=facts.key, error=str(error))
        else:
            self.resized += 1
            after = msgspec.structs.replace(facts, request=step.request, allocation=step.text)
            if self._state.pods.get(facts.uid) == facts:  # what the watch shows of it may be there already
                self._state.saw_pod(facts, after, self._clock.monotonic())
            self._record(facts, EventKind.NORMAL, "Resized", _said(step.allocation.placement))

    def _record(self, facts: PodFacts, kind: EventKind, reason: str, note: str) -> None:
        subject = Subject("Pod", facts.name, facts.uid, facts.namespace)
        self._recorder.record(subject, kind, reason, note, "Resizing")


def _patch(facts: PodFacts, step: Rewrite) -> list[dict[str, Any]]:
    def at(key: str) -> str:
        return f"/metadata/annotations/{key.replace('/', '~1')}"

    return [
        {"op": "test", "path": "/metadata/uid", "value": facts.uid},
        {"op": "test", "path": at(ALLOCATION), "value": facts.allocation},
        {"op": "replace", "path": at(ALLOCATION), "value": step.text},
        {"op": "replace", "path": at(REQUEST), "value": step.request},
    ]


def _said(placement: Placement) -> str:
    """The shares that are granted now, by container."""
    parts = [
        f"{name}: {render_mib(g.share.memory_limit)} and {render_percent(g.share.compute_limit)} of {g.uuid}"
        for name, grants in placement.grants.items()
        for g in grants
    ]
    return f"granted {'; '.join(parts)}; the node puts it in force"
