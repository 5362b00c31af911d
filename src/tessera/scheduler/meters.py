"""What is measured of the scheduler, by name. Values of devices are read when they are scraped."""

from collections.abc import Iterator, Sequence
from typing import Final

from tessera.core.units import BYTES_PER_MIB, WHOLE
from tessera.runtime.instruments import Counter
from tessera.runtime.metrics import Metrics, Unavailable
from tessera.scheduler.holdings import Phase
from tessera.scheduler.state import NoticeKind, State

ATTEMPTS: Final = ("placed", "refused", "unclear", "unready", "not_ours")
BINDINGS: Final = ("done", "failed", "doubtful", "lost", "unready")


def _labelled(counter: Counter, values: Sequence[str]) -> dict[str, Counter]:
    """The children of a counter by label value, bound once and shown from the start."""
    return {value: counter.labels(value) for value in values}


class Meters:
    """The scheduler's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self.attempts = _labelled(
            metrics.counter("attempts_total", "Filter calls by outcome.", ("outcome",)), ATTEMPTS
        )
        self.bindings = _labelled(
            metrics.counter("bindings_total", "Bind calls by outcome.", ("outcome",)), BINDINGS
        )
        self.notices = _labelled(
            metrics.counter("notices_total", "Pods whose records are not as they should be.", ("reason",)),
            [kind.value for kind in NoticeKind],
        )
        self.malformed = metrics.counter("malformed_calls_total", "Calls of the extender that could not be read.")
        self.resized = metrics.counter("resized_total", "Running pods that were granted another share.")
        self.wakes = metrics.counter(
            "wakes_total", "Times that kube-scheduler was told to try waiting pods again."
        )
        self.rebuilds = metrics.counter("fleet_rebuilds_total", "Times that the fleet was put together anew.")
        self.expired = metrics.counter("expired_reservations_total", "Reservations whose Bind never came.")
        self.repairs = metrics.counter(
            "ledger_repairs_total", "Times that a ledger in error was rebuilt from pods."
        )
        self.scheduled = metrics.counter("scheduled_total", "Pods seen bound for the first time in this process.")
        self.decision = metrics.histogram("decision_seconds", "Time of a Filter call, without the network.")
        self.binding = metrics.histogram("binding_seconds", "Time of a Bind call, with the API server's answer.")
        self.e2e = metrics.histogram(
            "e2e_seconds",
            "From a pod's creation (whole seconds, API server's clock) to its binding.",
            buckets=(0.5, 1, 2, 5, 10, 20, 60, 120, 300, 900, 3600),
        )


def expose_state(metrics: Metrics, state: State) -> None:
    """What the state holds, read when it is scraped."""
    metrics.gauge("reservations", "Pods that hold devices and are not bound.", lambda: len(state.holdings.open()))
    metrics.gauge("holding_pods", "Pods that hold devices.", lambda: len(state.holdings))
    metrics.gauge("refused_pods", "Pods that found no room when last asked for.", lambda: len(state.refused))
    metrics.gauge(
        "foreign_pods",
        "Bound pods that use devices without Tessera.",
        lambda: sum(map(len, state.foreign.values())),
    )
    metrics.gauge("gpu_nodes", "Nodes with an inventory.", lambda: len(state.inventory))
    metrics.gauge(
        "gpu_nodes_without_tickets",
        "Nodes with an inventory that take no pods because their agents offer no tickets.",
        lambda: len(state.population.offers.without),
    )
    metrics.matrix(
        "device_allocated_memory_bytes",
        "Memory of a device that is allocated, by requests.",
        ("node", "device"),
        lambda: _per_device(state, memory=True),
    )
    metrics.matrix(
        "device_allocated_compute_ratio",
        "Compute of a device that is allocated, by requests (1 is the whole device).",
        ("node", "device"),
        lambda: _per_device(state, memory=False),
    )
    metrics.matrix(
        "holdings",
        "Holdings by phase.",
        ("phase",),
        lambda: [((phase.value,), float(count)) for phase, count in _phases(state).items()],
    )


def _per_device(state: State, *, memory: bool) -> Iterator[tuple[tuple[str, str], float]] | Unavailable:
    fleet, usage = state.fleet, state.view().usage
    if not fleet.devices:
        return Unavailable("no inventory")
    values = usage.memory.tolist() if memory else usage.compute.tolist()
    factor = BYTES_PER_MIB if memory else 1 / WHOLE
    names = fleet.node_names
    return (
        ((names[node], device.uuid), float(value * factor))
        for device, node, value in zip(fleet.devices, fleet.node_of.tolist(), values, strict=True)
    )


def _phases(state: State) -> dict[Phase, int]:
    found = dict.fromkeys(Phase, 0)
    for held in state.holdings.open().values():
        found[held.phase] += 1
    found[Phase.BOUND] = len(state.holdings) - len(state.holdings.open())
    return found
