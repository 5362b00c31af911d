"""Place many pods one after another on a fleet, and explain every no."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tessera.allocator.explain import reject
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import place
from tessera.allocator.suggest import Suggestion, suggest
from tessera.core.fleet import Fleet, Snapshot
from tessera.core.placement import Decision, Placed, Placement
from tessera.core.request import Pod
from tessera.policy.rank import Policy


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one pod; ``decision`` is ``None`` for a pod that asks for no accelerator."""

    pod: Pod
    decision: Decision | None
    suggestions: tuple[Suggestion, ...] = ()


def decide(snapshot: Snapshot, pod: Pod, policy: Policy) -> Decision:
    """The best placement of one pod, or its rejection with a reason for every node."""
    return place(snapshot, pod, policy) or reject(snapshot, pod)


def plan(pods: Iterable[Pod], fleet: Fleet, policy: Policy, held: Iterable[Placement] = ()) -> tuple[Verdict, ...]:
    """A verdict for each pod, in order; each placement counts for the pods after it, ``held`` for all of them.

    Reasons are those of the moment of the decision. Suggestions are asked of the fleet as the whole plan
    leaves it, so that acting on one does not take room from a pod that was placed.
    """
    ledger = Ledger.rebuilt(fleet, held)
    decided: list[tuple[Pod, Decision | None]] = []
    for pod in pods:
        decision = None if pod.request is None else decide(ledger.view(), pod, policy)
        decided.append((pod, decision))
        if decision is not None and isinstance(decision, Placed):
            ledger.apply(Adopt(decision.placement))
    return _with_suggestions(decided, ledger.snapshot())


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
