"""The judge: replays etcd's history with arithmetic of its own. Nothing of the allocator is imported; annotations
are plain JSON to it.

At every revision, for every device: what the live pods (bound, neither over nor gone) are charged is at most what
the device has, and an exclusive holder is alone. An allocation is written in the write that binds the pod, and
never changes. Of the containers that wait on a node, no two have one ticket.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.chaos.history import GPU_NODES, PODS, Change, Clock

ALLOCATION: Final = "tessera.dev/allocation"
REQUEST: Final = "tessera.dev/request"
TICKET: Final = "tessera.dev/ticket-"
SLOTS: Final = 100
"""Of a device whose inventory does not say otherwise."""

WHOLE: Final = 1000
STALE_SECONDS: Final = 20.0
"""A scheduler may not know for so long that a device broke: it was killed, stalled, or cut off."""

HISTORY_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Violation:
    """``rule`` was broken by ``subject`` (a pod's key or a device's uuid) in this revision; 0: at the end."""

    rule: str
    subject: str
    text: str
    revision: int = 0


@dataclass(slots=True)
class PodNow:
    """A pod as its last version says."""

    key: str
    uid: str
    node: str = ""
    phase: str = ""
    record: dict[str, Any] | None = None
    text: str | None = None
    tickets: tuple[tuple[str, int], ...] = ()
    waits: bool = False
    reason: str = ""
    ends: tuple[str, ...] = ()
    leaving: bool = False

    @property
    def live(self) -> bool:
        """Whether it holds what it was given."""
        return bool(self.node) and self.phase not in ("Succeeded", "Failed")

    @property
    def charges(self) -> list[dict[str, Any]]:
        """What it holds."""
        return list(self.record["charges"]) if self.record and self.live else []


@dataclass(slots=True)
class DeviceNow:
    """A device as its node's inventory says, and who is on it by uid."""

    node: str
    memory: int
    slots: int
    usable: bool = True
    unusable_since: float = 0.0
    users: dict[str, dict[str, Any]] = field(default_factory=dict)

    def excess(self) -> str:
        """In what it is over-booked; empty where it is not."""
        users = list(self.users.values())
        sums = {name: sum(user.get(name, rest) for user in users) for name, rest in _REST.items()}
        most = {"memory": self.memory, "compute": WHOLE, "slots": self.slots}
        over = [f"{name} {sums[name]} of {most[name]}" for name in most if sums[name] > most[name]]
        if len(users) > 1 and any(user.get("exclusive") for user in users):
            over.append(f"{len(users)} users beside an exclusive one")
        return ", ".join(over)


_REST: Final = {"memory": 0, "compute": 0, "slots": 1}


@dataclass(slots=True)
class Tally:
    """Figures of a run, by uid."""

    created: set[str] = field(default_factory=set)
    bound: dict[str, float] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    failed: dict[str, tuple[PodNow, float]] = field(default_factory=dict)
    allocations: dict[str, dict[str, Any]] = field(default_factory=dict)


class Judge:
    """Feed it every change in order; what it found is in ``violations``."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pods: dict[str, PodNow] = {}
        self.devices: dict[str, DeviceNow] = {}
        self.waiting: dict[tuple[str, str, int], str] = {}
        self.tally = Tally()
        self.violations: list[Violation] = []

    def feed(self, changes: Iterable[Change]) -> None:
        """Replay."""
        for change in changes:
            if change.kind == PODS:
                self._pod(change)
            elif change.kind == GPU_NODES:
                self._inventory(change)

    def _accuse(self, rule: str, subject: str, text: str, change: Change) -> None:
        self.violations.append(Violation(rule, subject, text, change.revision))

    # inventory

    def _inventory(self, change: Change) -> None:
        devices = ((change.value or {}).get("status") or {}).get("devices") or []
        at = self.clock.at(change.revision)
        listed = set()
        for facts in devices:
            uuid = facts["uuid"]
            listed.add(uuid)
            slots = facts.get("slots", SLOTS)
            device = self.devices.setdefault(uuid, DeviceNow(change.name, facts["memoryMib"], slots))
            device.node, device.memory, device.slots = change.name, facts["memoryMib"], slots
            self._set_usable(device, facts.get("healthy", True), at)
        for uuid, device in self.devices.items():
            if device.node == change.name and uuid not in listed:
                self._set_usable(device, False, at)

    @staticmethod
    def _set_usable(device: DeviceNow, usable: bool, at: float) -> None:
        if device.usable and not usable:
            device.unusable_since = at
        device.usable = usable

    # pods

    def _pod(self, change: Change) -> None:
        before = self.pods.get(change.name)
        now = None if change.value is None else read_pod(change.name, change.value)
        if before is not None and (now is None or now.uid != before.uid):
            self._leave(before)
            before = None
        if now is None:
            self.pods.pop(change.name, None)
            return
        self.pods[change.name] = now
        self._count(before, now, change)
        self._same_record(before, now, change)
        if before is not None:
            self._leave(before)
        self._enter(now, change)
        if now.node and (before is None or not before.node):
            self._binding(now, change)

    def _count(self, before: PodNow | None, now: PodNow, change: Change) -> None:
        tally = self.tally
        tally.created.add(now.uid)
        if now.node and now.uid not in tally.bound:
            tally.bound[now.uid] = self.clock.at(change.revision)
        if now.record is not None:
            tally.allocations[now.uid] = now.record
        if now.phase in ("Succeeded", "Failed"):
            tally.finished.add(now.uid)
        if now.phase == "Failed" and now.uid not in tally.failed:
            tally.failed[now.uid] = (now, self.clock.at(change.revision))

    def _same_record(self, before: PodNow | None, now: PodNow, change: Change) -> None:
        was_text, was_node = (before.text, before.node) if before else (None, "")
        if now.text != was_text and (was_node or not now.node):
            self._accuse("an allocation is only ever written with the binding", now.key, str(now.text), change)
        if was_node and now.node != was_node:
            self._accuse("a binding is for ever", now.key, f"{was_node} became {now.node}", change)

    def _binding(self, now: PodNow, change: Change) -> None:
        """What must hold of a pod in the write that binds it."""
        meta = (change.value or {})["metadata"]
        if now.record is None:
            if REQUEST in meta.get("annotations", {}):
                self._accuse("who is bound has an allocation", now.key, f"on {now.node} without one", change)
            return
        named = (now.record["pod"], now.record["node"])
        if named != (now.uid, now.node):
            self._accuse("an allocation is of its pod and node", now.key, f"{named}: {now.uid} {now.node}", change)
        for fault in misfits(now.record, json.loads(meta["annotations"][REQUEST])):
            self._accuse("an allocation is what was asked for", now.key, fault, change)
        for charge in now.record["charges"]:
            self._on_device(now, charge["uuid"], change)

    def _on_device(self, now: PodNow, uuid: str, change: Change) -> None:
        device = self.devices.get(uuid)
        if device is None or device.node != now.node:
            self._accuse("a pod has devices of its node", now.key, f"{uuid} is not on {now.node}", change)
        elif not device.usable and self.clock.at(change.revision) - device.unusable_since > STALE_SECONDS:
            since = f"{uuid} has been unusable since {device.unusable_since:.1f} s"
            self._accuse("nobody is placed on a broken device", now.key, since, change)

    def _leave(self, pod: PodNow) -> None:
        for charge in pod.charges:
            device = self.devices.get(charge["uuid"])
            if device is not None:
                device.users.pop(pod.uid, None)
        for ticket in pod.tickets:
            if self.waiting.get((pod.node, *ticket)) == pod.uid:
                del self.waiting[pod.node, *ticket]

    def _enter(self, pod: PodNow, change: Change) -> None:
        for charge in pod.charges:
            device = self.devices.get(charge["uuid"])
            if device is None:
                continue
            device.users[pod.uid] = charge
            over = device.excess()
            if over:
                self._accuse("no device is over-booked", charge["uuid"], f"{over}, with {pod.key}", change)
        for ticket in pod.tickets if pod.live and pod.waits else ():
            other = self.waiting.setdefault((pod.node, *ticket), pod.uid)
            if other != pod.uid:
                text = f"{ticket[0]} x {ticket[1]} waits on {pod.node} for {other} too"
                self._accuse("a ticket waits once on a node", pod.key, text, change)

    # the end

    def booked(self) -> dict[str, tuple[int, int]]:
        """Memory and compute booked of each device by the live pods."""
        found: dict[str, tuple[int, int]] = {}
        for uuid, device in self.devices.items():
            users = device.users.values()
            found[uuid] = (sum(user["memory"] for user in users), sum(user["compute"] for user in users))
        return found


def read_pod(key: str, obj: Mapping[str, Any]) -> PodNow:
    """What counts of a pod's version."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status", {})
    text = meta.get("annotations", {}).get(ALLOCATION)
    started = status.get("containerStatuses") or status.get("initContainerStatuses")
    return PodNow(
        key=key,
        uid=meta["uid"],
        node=spec.get("nodeName", ""),
        phase=status.get("phase", ""),
        record=json.loads(text) if text else None,
        text=text,
        tickets=tuple(tickets_in(spec)),
        waits=not started and status.get("phase", "Pending") == "Pending",
        reason=f"{status.get('reason', '')} {status.get('message', '')}".strip(),
        ends=tuple(ends_in(status)),
        leaving="deletionTimestamp" in meta,
    )


def ends_in(status: Mapping[str, Any]) -> Iterable[str]:
    """How the containers ended: ``exit <code>``, then reason and message."""
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for state in ("lastState", "state"):
            end = one.get(state, {}).get("terminated")
            if end is not None:
                yield f"exit {end.get('exitCode')}"
                yield f"{end.get('reason', '')} {end.get('message', '')}".strip()


def tickets_in(spec: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Resource and quantity of every ticket that the containers carry."""
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        for name, amount in (container.get("resources", {}).get("limits") or {}).items():
            if name.startswith(TICKET):
                yield name, int(amount)


def misfits(record: Mapping[str, Any], request: Mapping[str, Any]) -> Iterable[str]:
    """In what an allocation gives other numbers of devices, or other memory, than the request asks for."""
    wanted: defaultdict[str, int] = defaultdict(int)
    memory: dict[str, set[int]] = defaultdict(set)
    for claim in request["claims"]:
        for container in claim["containers"]:
            wanted[container] += claim["count"]
            memory[container].add(claim["share"]["memory"].get("mib", -1))
    if set(wanted) != set(record["containers"]):
        yield f"containers {sorted(record['containers'])} for {sorted(wanted)}"
    for container, grants in record["containers"].items():
        if len(grants) != wanted[container] or len({grant["uuid"] for grant in grants}) != len(grants):
            yield f"{container} has {[grant['uuid'] for grant in grants]} for {wanted[container]} devices"
        asked = memory[container]
        if -1 not in asked and {grant["memory"][0] for grant in grants} != asked:
            yield f"{container} has {[grant['memory'] for grant in grants]} MiB for {sorted(asked)}"


def story(subject: str, changes: Iterable[Change], clock: Clock, until: int) -> list[str]:
    """The last versions of a pod, or of the pods on a device, until a revision (0: until the end), a line each."""
    lines: list[str] = []
    concerned: set[str] = set()
    for change in changes:
        if until and change.revision > until:
            break
        if change.name == subject or change.name in concerned or subject in _uuids(change):
            concerned.add(change.name)
            lines.append(
                f"    {clock.at(change.revision):7.1f} s, {change.revision}: {change.name} {_line(change)}"
            )
    return lines[-HISTORY_LINES:]


def _uuids(change: Change) -> set[str]:
    """The devices that a version names."""
    if change.value is None:
        return set()
    if change.kind == GPU_NODES:
        return {device["uuid"] for device in (change.value.get("status") or {}).get("devices") or []}
    record = read_pod(change.name, change.value).record or {"charges": []}
    return {charge["uuid"] for charge in record["charges"]}


def _line(change: Change) -> str:
    if change.value is None:
        return "gone"
    if change.kind == GPU_NODES:
        devices = (change.value.get("status") or {}).get("devices") or []
        return " ".join(f"{d['uuid']}{'' if d.get('healthy', True) else ' broken'}" for d in devices)
    pod = read_pod(change.name, change.value)
    leaving = " leaving" if "deletionTimestamp" in change.value["metadata"] else ""
    held = " ".join(f"{c['uuid']} {c['memory']}/{c['compute']}" for c in (pod.record or {}).get("charges", ()))
    return f"{pod.uid} {pod.phase}{leaving} {pod.reason} on {pod.node or '-'} {held}".rstrip()
