"""A waiting pod as the allocator takes it: its request, and what binds it to nodes besides devices."""

from dataclasses import replace

from tessera.cluster.hosts import Peaks
from tessera.cluster.observe import Look
from tessera.core.request import Pod
from tessera.scheduler.facts import PodFacts
from tessera.wire.kube.request import decode_request


def pod_of(look: Look, facts: PodFacts) -> Pod | str:
    """The pod with its CPU, memory and node selector; or what is wrong with its request.

    Affinity, taints, ports and volumes are kube-scheduler's to judge and are not in it.
    """
    ask = look.state.requests.ask(facts)
    if ask is None:
        return "is missing"
    if isinstance(ask, str):
        return ask
    pod = look.pods[facts.uid]
    peak = Peaks().of(pod)
    return replace(
        ask.pod,
        dialect=decode_request(facts.request or "")[1],
        cpu_milli=peak.cpu_milli,
        memory_mib=peak.memory_mib,
        node_selector=tuple(sorted((pod.spec.node_selector or {}).items())),
    )
