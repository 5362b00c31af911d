"""Place many pods one after another on a fleet, and explain every no."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from tessera.allocator.explain import reject
from tessera.allocator.index import Index
from tessera.allocator.kinds import kind_of
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.look import Looker
from tessera.allocator.place import place
from tessera.allocator.suggest import Suggestion, suggest
from tessera.core.fleet import Fleet, Snapshot, Usage
from tessera.core.placement import Decision, Placed, Placement
from tessera.core.request import Pod
from tessera.policy.outlook import Outlook, outlook_of, protecting
from tessera.policy.rank import SIGN, Policy
from tessera.policy.workload import Workload

_PODS_PER_LOOK: Final = 100
"""Pods after which what is scarce is looked at again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one pod; ``decision`` is ``None`` for a pod that asks for no accelerator."""

    pod: Pod
    decision: Decision | None
    suggestions: tuple[Suggestion, ...] = ()


def decide(snapshot: Snapshot, pod: Pod, policy: Policy) -> Decision:
    """The best placement of one pod, or its rejection with a reason for every node."""
    return place(snapshot, pod, policy) or reject(snapshot, pod)


def plan(
    pods: Iterable[Pod],
    fleet: Fleet,
    policy: Policy,
    held: Iterable[Placement] = (),
    looker: Looker | None = None,
) -> tuple[Verdict, ...]:
    """A verdict for each pod, in order; each placement counts for the pods after it, ``held`` for all of them.

    What is expected to come, for policies that weigh it, is what is usual and what is planned. Reasons are those
    of the moment of the decision. Suggestions are asked of the fleet as the whole plan leaves it, so that acting
    on one does not take room from a pod that was placed.
    """
    listed = list(pods)
    ledger = Ledger.rebuilt(fleet, held)
    index = Index(ledger, policy, _outlook(fleet, listed, policy), looker)
    decided: list[tuple[Pod, Decision | None]] = []
    for pod in listed:
        decision = None if pod.request is None else index.place(pod) or reject(ledger.view(), pod)
        decided.append((pod, decision))
        if decision is not None and isinstance(decision, Placed):
            ledger.apply(Adopt(decision.placement))
            if len(decided) % _PODS_PER_LOOK == 0:
                index.outlook = protecting(index.outlook, ledger.view(), index.outlook.generation + 1)
    return _with_suggestions(decided, ledger.snapshot())


def _outlook(fleet: Fleet, pods: Iterable[Pod], policy: Policy) -> Outlook | None:
    """What is expected to come; ``None`` (what is usual) for a policy that does not ask."""
    if policy.node in SIGN and policy.device in SIGN:
        return None
    workload = Workload()
    for pod in pods:
        if pod.request is not None:
            workload.saw(kind_of(fleet, pod))
    outlook = outlook_of(fleet, workload.counts())
    return protecting(outlook, Snapshot(fleet, Usage.nothing(fleet)), outlook.generation + 1)


def _with_suggestions(decided: Iterable[tuple[Pod, Decision | None]], end: Snapshot) -> tuple[Verdict, ...]:
    """Equal requests get equal suggestions, which are found once."""
    known: dict[Pod, tuple[Suggestion, ...]] = {}
    verdicts: list[Verdict] = []
    for pod, decision in decided:
        if decision is None or isinstance(decision, Placed):
            verdicts.append(Verdict(pod, decision))
            continue
        like = replace(pod, namespace="", name="", uid="")
        if like not in known:
            known[like] = suggest(end, like)
        verdicts.append(Verdict(pod, decision, known[like]))
    return tuple(verdicts)
