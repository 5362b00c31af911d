"""``tessera plan --cluster``: a live cluster as the fleet, what is held there, and its waiting pods."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tessera.cli.connection import ask, config_of
from tessera.cli.world import World, read
from tessera.cluster.anomalies import Fault, anomalies_of
from tessera.cluster.observe import Look, observe
from tessera.cluster.waiting import pod_of
from tessera.core.errors import Problem, Severity
from tessera.runtime.files import Texts
from tessera.scheduler.facts import PodFacts
from tessera.wire.fleetfile import FleetInput
from tessera.wire.manifests import Manifests, PlannedPod

SOURCE: Final = "cluster"
_JUDGED_ELSEWHERE: Final = (
    "taints, affinity, ports and volumes are kube-scheduler's to judge and are not looked at"
)
_TOLD: Final = frozenset({Fault.NODE, Fault.NOT_BELIEVED, Fault.FOREIGN, Fault.NOT_ADMITTED, Fault.TWICE})
_NAMES_SHOWN: Final = 3


def live_world(texts: Texts | None, kubeconfig: Path | None, context: str) -> World:
    """The cluster and these manifests, or its own waiting pods. Raises as :func:`observe` does."""
    config = config_of(kubeconfig, context)
    look = ask(config, observe)
    return world_of(look, config.source, texts)


def world_of(look: Look, source: str, texts: Texts | None) -> World:
    """A look as something to plan on."""
    notes = [_JUDGED_ELSEWHERE, *(f"{a.object} {a.text}" for a in anomalies_of(look) if a.fault in _TOLD)]
    fleet = FleetInput(nodes=look.fleet.nodes)
    if texts is None:
        pods, unread = _waiting(look)
        manifests = Manifests(pods=pods)
        notes += unread
    else:
        manifests = read(texts, fleet)
        notes += _twice(look, manifests)
    return World(source, replace(fleet, notes=tuple(notes)), manifests, look.held)


def _waiting(look: Look) -> tuple[tuple[PlannedPod, ...], list[str]]:
    """The waiting pods in the order in which they came, and why some of them cannot be planned."""
    pods, unread = [], []
    for facts in look.waiting():
        if facts.request is None:
            continue
        pod = pod_of(look, facts)
        if isinstance(pod, str):
            unread.append(f"pod {facts.key} cannot be placed: its request {pod}")
        else:
            label = f"Pod/{facts.namespace}/{facts.name}"
            pods.append(PlannedPod(pod, SOURCE, label, tuple(_warnings(look, facts, label))))
    return tuple(pods), unread


def _warnings(look: Look, facts: PodFacts, label: str) -> Iterator[Problem]:
    gates = ", ".join(gate.name for gate in look.pods[facts.uid].spec.scheduling_gates or ())
    if gates:
        message, remedy = "is held by scheduling gates", "nobody places it before they are removed"
        yield Problem(SOURCE, label, "spec.schedulingGates", gates, message, remedy, Severity.WARNING)


def _twice(look: Look, manifests: Manifests) -> Iterator[str]:
    there = {facts.key for facts in look.facts.values()}
    names = [planned.pod.key for planned in manifests.pods if planned.pod.key in there]
    if names:
        more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
        listed = ", ".join(names[:_NAMES_SHOWN])
        yield f"{listed}{more}: on the cluster already, which counts beside what is planned here"
