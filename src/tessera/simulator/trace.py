"""A stream's pods by the shape of what they ask, against one fleet: thousands of equal pods are one template.

What a pod asks of a device is one number here, its *dominant share*: the greater of its part of the memory and its
part of the compute, in milli. It is taken on each model of the fleet, since MiB and TFLOPS are different parts of
different models; the pod's demand is that on the model where it is least.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tessera.allocator.rules import constraints_of, model_passes
from tessera.core.device import Device, Node
from tessera.core.errors import Problem
from tessera.core.request import Claim, Constraints, Pod
from tessera.core.share import resolve
from tessera.core.units import WHOLE
from tessera.policy.target import Kind as TargetKind
from tessera.simulator.result import Kind


@dataclass(frozen=True, slots=True)
class Shape:
    """Pods that ask alike. ``milli`` is the dominant share of one device by model, for the models that may be
    used.

    ``count`` devices are asked for, ``demand`` milli of them together. ``pod`` is a template without a name.
    """

    pod: Pod
    kind: Kind
    count: int
    milli: Mapping[str, int]
    demand: int
    constrained: bool

    def named(self, name: str, uid: str) -> Pod:
        """A pod of this shape."""
        return replace(self.pod, name=name, uid=uid)


@dataclass(frozen=True)
class Trace:
    """Pods in their order: names, the shape of each, and the seconds that each stays (``None``: not said)."""

    names: tuple[str, ...]
    shape_of: tuple[int, ...]
    shapes: tuple[Shape, ...]
    lifetimes: tuple[int | None, ...]

    @cached_property
    def demand(self) -> int:
        """What all pods ask of devices together, in milli."""
        return sum(self.shapes[shape].demand for shape in self.shape_of)

    def by_name(self) -> "Trace":
        """The same pods sorted by name, which is the order that recorded sequences count in."""
        order = sorted(range(len(self.names)), key=lambda i: self.names[i])
        return Trace(
            tuple(self.names[i] for i in order),
            tuple(self.shape_of[i] for i in order),
            self.shapes,
            tuple(self.lifetimes[i] for i in order),
        )

    def kinds(self) -> dict[TargetKind, int]:
        """How often each kind of pod comes, as policies count them."""
        counts: Counter[TargetKind] = Counter()
        for row, times in Counter(self.shape_of).items():
            counts[target_kind(self.shapes[row])] += times
        return dict(counts)


def target_kind(shape: Shape) -> TargetKind:
    """The shape as the target workload has it: one number of milli, and models only where the pod names them.

    Names are as the pod has them, order and repeats included: the published workload counts such pods apart.
    """
    rules = shape.pod.request.constraints.models_allowed if shape.pod.request else ()
    written = tuple(rule.pattern for rule in rules if rule.exact)
    models = written if written and len(written) == len(rules) else tuple(shape.milli) if shape.constrained else ()
    milli = max(shape.milli.values(), default=0) if shape.count else 0
    return TargetKind(shape.pod.cpu_milli, milli, shape.count, models)


def trace_of(pods: Sequence[Pod], nodes: Sequence[Node], lifetimes: Sequence[int | None] = ()) -> Trace:
    """The trace of these pods for a fleet of these nodes."""
    samples = _samples(nodes)
    rows: dict[Pod, int] = {}
    shapes: list[Shape] = []
    shape_of: list[int] = []
    for pod in pods:
        like = replace(pod, name="", uid="")
        row = rows.get(like)
        if row is None:
            row = rows[like] = len(shapes)
            shapes.append(_shape(like, samples))
        shape_of.append(row)
    stays = tuple(lifetimes) or (None,) * len(pods)
    return Trace(tuple(pod.name for pod in pods), tuple(shape_of), tuple(shapes), stays)


def _samples(nodes: Iterable[Node]) -> dict[str, Device]:
    """One device of each model."""
    return {device.model: device for node in reversed(list(nodes)) for device in node.devices}


def _shape(pod: Pod, samples: Mapping[str, Device]) -> Shape:
    request = pod.request
    if request is None or not request.claims:
        return Shape(pod, Kind.CPU_ONLY, 0, {}, 0, constrained=False)
    claims = [(claim, constraints_of(claim, request.constraints)) for claim in request.claims]
    count = sum(claim.count for claim in request.claims)
    largest = [_millis(claim, rules, samples) for claim, rules in claims]
    models = [model for model in sorted(samples) if all(model in milli for milli in largest)]
    milli = {model: max(of[model] for of in largest) for model in models}
    totals = [
        sum(claim.count * of[model] for (claim, _), of in zip(claims, largest, strict=True)) for model in models
    ]
    demand = min(totals, default=count * WHOLE)
    constrained = bool(request.constraints.models_allowed or request.constraints.models_denied)
    return Shape(pod, _kind(count, demand), count, milli, demand, constrained)


def _millis(claim: Claim, rules: Constraints, samples: Mapping[str, Device]) -> dict[str, int]:
    """The dominant share of one device on each model that the claim may use."""
    found = {}
    for model, device in samples.items():
        share = resolve(claim.share, device.memory_mib, device.milli_tflops)
        fits_vendor = rules.vendor in (None, device.vendor)
        if share is None or not fits_vendor or not model_passes(model, rules):
            continue
        found[model] = WHOLE if share.exclusive else dominant(device, share.memory_request, share.compute_request)
    return found


def dominant(device: Device, memory_mib: int, compute_milli: int) -> int:
    """The greater part that this memory and this compute are of the device, in milli, rounded up."""
    memory = -(-memory_mib * WHOLE // device.memory_mib) if device.memory_mib else 0
    compute = -(-compute_milli * WHOLE // device.compute_milli) if device.compute_milli else 0
    return max(memory, compute)


def _kind(count: int, demand: int) -> Kind:
    if count > 1:
        return Kind.MANY
    return Kind.ONE if demand >= WHOLE else Kind.SHARING


def strangers(trace: Trace, sources: Sequence[str]) -> list[Problem]:
    """A problem for each shape whose devices exist nowhere in the fleet; ``sources`` say where each pod stands."""
    first: dict[int, int] = {}
    for i, row in enumerate(trace.shape_of):
        first.setdefault(row, i)
    remedy = "take the model from the nodes, or ask for what they have"
    problems = []
    for row, i in first.items():
        shape = trace.shapes[row]
        if shape.count and not shape.milli:
            rules = shape.pod.request.constraints.models_allowed if shape.pod.request else ()
            asked = "|".join(rule.pattern for rule in rules)
            problems.append(
                Problem(sources[i], trace.names[i], "gpu_spec" if asked else "", asked,
                        "asks for devices that no node has", remedy)
            )  # fmt: skip
    return problems
