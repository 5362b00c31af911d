"""The agent's metrics: shares and devices as rows at scrape time, from the regions and the driver."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from tessera.agent.machine import Machine
from tessera.agent.node import NodeState
from tessera.agent.store import ShareStore, StoredShare, read_region
from tessera.core.device import Device
from tessera.core.units import WHOLE
from tessera.runtime.clock import Clock
from tessera.runtime.metrics import Metrics, Unavailable, Value
from tessera.wire.shm import Region, RegionDevice

KEPT_SECONDS: Final = 0.2
_CONTAINER: Final = ("namespace", "pod", "container", "device")
_DEVICE: Final = ("device", "index", "model")
_GATE_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.015, 0.05, 0.2, 1.0)

Rows = Iterator[tuple[Sequence[str], Value]]


class Lives(Protocol):
    """Who runs, by the kubelet's word; :class:`~tessera.agent.pods.NodePods` says it."""

    def is_over(self, uid: str) -> bool:
        """Whether nothing of a pod runs any more."""
        ...

    def has_ended(self, uid: str, container: str, container_id: str) -> bool:
        """Whether this very container does not run any more."""
        ...


class Readings:
    """The shares of pods that are there, with their regions, read once a scrape: many metrics show one reading.

    A share lies on disk for a while after its pod, and says to the end what its processes used: that is not shown.
    """

    def __init__(self, store: ShareStore, lives: Lives, clock: Clock) -> None:
        self._store, self._lives, self._clock = store, lives, clock
        self._read: tuple[tuple[StoredShare, Region | str], ...] = ()
        self._at = -KEPT_SECONDS

    def now(self) -> tuple[tuple[StoredShare, Region | str], ...]:
        """Each share and its region, or what is wrong with it; not older than :data:`KEPT_SECONDS`."""
        if self._clock.monotonic() - self._at >= KEPT_SECONDS:
            shares = [share for share in self._store.shares() if not self._lives.is_over(share.grant.uid)]
            self._read = tuple((share, read_region(share.region)) for share in shares)
            self._at = self._clock.monotonic()
        return self._read

    def is_in_use(self, share: StoredShare) -> bool:
        """Whether its container may use anything: what one that ended used last stays in its region."""
        return not self._lives.has_ended(share.grant.uid, share.grant.container, share.gated)


def declare_containers(metrics: Metrics, readings: Readings, isolation: Callable[[StoredShare], str]) -> None:
    """A row for each device of each container; ``isolation`` says whether limits hold, empty before it starts."""

    def rows(value: Callable[[RegionDevice], Value], *, while_used: bool) -> Callable[[], Rows]:
        return lambda: _container_rows(readings, value, while_used=while_used)

    for name, help_, value in _PER_CONTAINER:
        counter, of_use = name.endswith("_total"), name == "memory_used_bytes"
        metrics.matrix(f"container_{name}", help_, _CONTAINER, rows(value, while_used=of_use), counter=counter)

    def states() -> Rows:
        for share, _ in readings.now():
            if state := isolation(share):
                grant = share.grant
                yield (grant.namespace, grant.pod, grant.container, state), 1.0

    labels = ("namespace", "pod", "container", "state")
    help_ = "1 for how a container's limits hold: enforced, unverified (no gate), absent."
    metrics.matrix("container_isolation", help_, labels, states)


def _limit(device: RegionDevice) -> Value:
    return Unavailable("no limit") if device.memory_limit is None else device.memory_limit


_PER_CONTAINER: Final[tuple[tuple[str, str, Callable[[RegionDevice], Value]], ...]] = (
    ("memory_limit_bytes", "Memory that a container may use of a device.", _limit),
    ("memory_used_bytes", "Memory that a container uses of a device.", lambda d: d.used_bytes),
    ("memory_peak_bytes", "The most memory that a container used of a device.", lambda d: d.peak_bytes),
    ("refused_total", "Allocations of a container that its limit refused.", lambda d: d.refused),
    ("device_full_total", "Allocations within the limit that found the device full.", lambda d: d.memory.full),
    ("memory_spilled_bytes", "Memory of a container that lies in host memory.", lambda d: d.memory.spilled_bytes),
    (
        "memory_spill_limit_bytes",
        "Memory of a container that may lie in host memory.",
        lambda d: d.memory.spill_limit,
    ),
    ("spills_total", "Allocations of a container that went to host memory instead.", lambda d: d.memory.spills),
    (
        "memory_ceiling_bytes",
        "Memory of a device that a container may have now, beyond its request included.",
        lambda d: Unavailable("up to its limit") if d.memory.ceiling is None else d.memory.ceiling,
    ),
    (
        "priority",
        "Who goes first on a device: 1 is low, 2 medium, 3 high, 4 critical.",
        lambda d: d.order.priority or 2,
    ),
    (
        "yield_cap_ratio",
        "Part of a device's compute that containers of a higher priority leave to this one.",
        lambda d: (d.order.cap_milli or WHOLE) / WHOLE,
    ),
    ("frozen", "1 where a container has to ask before it goes on.", lambda d: float(d.order.frozen)),
    (
        "yielded_seconds_total",
        "Time that a container's launches waited to be let go, or for others of a higher priority.",
        lambda d: d.order.yielded_ns / 1e9,
    ),
    (
        "compute_limit_ratio",
        "Part of a device's compute that a container may use.",
        lambda d: d.compute_limit_milli / WHOLE,
    ),
    (
        "throttled_seconds_total",
        "Time that a container's launches waited for its compute limit, all of its threads together.",
        lambda d: d.compute.throttled_ns / 1e9,
    ),
    (
        "throttled_launches_total",
        "Launches of a container that its compute limit held.",
        lambda d: d.compute.throttled,
    ),
)


def declare_busy(metrics: Metrics, readings: Readings, busy: Callable[[StoredShare, str], Value]) -> None:
    """A row for each device of each container; ``busy`` is its device time in seconds."""

    def rows() -> Rows:
        for share, _ in readings.now():
            grant = share.grant
            for device in grant.devices:
                yield (grant.namespace, grant.pod, grant.container, device.uuid), busy(share, device.uuid)

    metrics.matrix(
        "container_busy_seconds_total",
        "Time that a device ran work of a container with a compute limit, by the driver's samples.",
        ("namespace", "pod", "container", "device"),
        rows,
        counter=True,
    )


def _container_rows(readings: Readings, value: Callable[[RegionDevice], Value], *, while_used: bool) -> Rows:
    for share, region in readings.now():
        grant = share.grant
        ended = while_used and not readings.is_in_use(share)
        for granted in grant.devices:
            labels = (grant.namespace, grant.pod, grant.container, granted.uuid)
            if isinstance(region, str):
                yield labels, Unavailable("region unreadable")
            elif ended:
                yield labels, Unavailable("container ended")
            else:
                found = next((d for d in region.devices if d.uuid == granted.uuid), None)
                yield labels, Unavailable("not in region") if found is None else value(found)


def declare_devices(metrics: Metrics, node: NodeState, machine: Machine) -> None:
    """A row for each device, from the driver where it answers."""

    def rows(value: Callable[[Device], Value | None]) -> Callable[[], Rows]:
        def found() -> Rows:
            for device in node.devices():
                amount = value(device)
                labels = (device.uuid, str(device.index), device.model)
                yield labels, Unavailable("driver does not say") if amount is None else amount

        return found

    def busy(device: Device) -> Value | None:
        percent = machine.reading(device.uuid).busy_percent
        return None if percent is None else percent / 100

    table: tuple[tuple[str, str, Callable[[Device], Value | None]], ...] = (
        ("memory_total_bytes", "Memory of a device.", lambda d: d.memory_mib << 20),
        ("memory_used_bytes", "Memory in use by anybody.", lambda d: machine.reading(d.uuid).used_bytes),
        ("utilization_ratio", "Part of the time that a device had work.", busy),
        ("healthy", "1 where a device takes new shares.", lambda d: float(d.uuid not in node.unfit())),
    )
    for name, help_, value in table:
        metrics.matrix(f"device_{name}", help_, _DEVICE, rows(value))
    metrics.matrix(
        "isolation_info",
        "How memory is limited on this node: driver, hook, unverified (no gate), report (not at all).",
        ("isolation",),
        lambda: [((node.tier.isolation,), 1.0)],
    )


def gate_histogram(metrics: Metrics) -> Callable[[float], None]:
    """What is told of each answer of the gate, in seconds."""
    return metrics.histogram(
        "gate_seconds", "Time to judge a container that starts.", buckets=_GATE_BUCKETS
    ).observe
