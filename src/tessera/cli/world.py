"""What a plan is made of: pods from texts, the fleet that they go on, and what is held there already."""

from dataclasses import dataclass, replace

from tessera.core.device import HOSTNAME_LABEL
from tessera.core.placement import Placement
from tessera.runtime.files import Texts
from tessera.wire import openb
from tessera.wire.fleetfile import FleetInput
from tessera.wire.manifests import Manifests, read_manifests


@dataclass(frozen=True, slots=True)
class World:
    """What to plan, and on what: ``held`` is given out there already."""

    source: str
    fleet: FleetInput
    manifests: Manifests
    held: tuple[Placement, ...] = ()


def has_labels(fleet: FleetInput) -> bool:
    """Whether the fleet says anything of labels beyond each node's own name."""
    return any(key != HOSTNAME_LABEL for node in fleet.nodes for key in node.labels)


def read(found: Texts, fleet: FleetInput) -> Manifests:
    """All pods of all texts, manifests before traces, with every problem of the input, the fleet's first."""
    traces = [
        (source, text) for source, text in found.texts if source.endswith(".csv") or openb.looks_like_pods(text)
    ]
    texts = [pair for pair in found.texts if pair not in traces]
    labelled = has_labels(fleet)
    manifests = read_manifests(texts, [(node.name, node.labels if labelled else None) for node in fleet.nodes])
    listed = [openb.read_pods(source, text) for source, text in traces]
    pods = [*manifests.pods, *(planned for trace in listed for planned in trace.pods)]
    problems = [
        *fleet.problems,
        *found.problems,
        *manifests.problems,
        *(problem for trace in listed for problem in trace.problems),
    ]
    return replace(manifests, pods=tuple(pods), problems=tuple(problems))
