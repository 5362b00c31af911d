"""Bindings that we are not sure of: beside what another leader binds, and of pods that the watch has not shown."""

from scheduler.world import GIB, a_pod, a_state, bind, bound, exclusively, place, share
from tessera.core.request import Claim
from tessera.scheduler.audit import drift_of
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.state import UNSEEN_SECONDS, Bindable, NoticeKind, Outcome, State


def a_doubt(state: State, name: str, *claims: Claim) -> None:
    """A pod whose Binding nobody knows the end of."""
    pod = a_pod(name, *claims)
    state.saw_pod(None, pod, 0.0)
    assert place(state, pod) == "n0"
    bindable = state.begin_bind(pod.uid, pod.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.end_bind(bindable, Outcome.DOUBTFUL, 0.0)


def another_leaders(name: str, *claims: Claim) -> tuple[PodFacts, str]:
    """A pod, and the allocation that another instance writes for it on the same inventory."""
    pod = a_pod(name, *claims)
    other = a_state({"n0": 1})
    other.saw_pod(None, pod, 0.0)
    assert place(other, pod) == "n0"
    return pod, bind(other, pod, "n0").allocation or ""


def kinds(state: State) -> list[NoticeKind]:
    return [notice.kind for notice in state.take_notices()]


def test_what_another_leader_binds_beside_a_doubt_is_no_overcommitment() -> None:
    for doubt, claim in ((share(20 * GIB), share(8 * GIB)), (exclusively(), share()), (share(), exclusively())):
        state = a_state({"n0": 1})
        a_doubt(state, "mine", doubt)
        pod, text = another_leaders("theirs", claim)
        state.saw_pod(pod, bound(pod, "n0", text), 0.0)
        assert kinds(state) == []
        assert len(state.holdings) == 2


def test_bound_pods_that_take_more_than_there_is_are_told_beside_a_doubt_too() -> None:
    """24 GiB: 4 in doubt, then 12 and 16 bound: the last one is over by 4 without the doubt."""
    state = a_state({"n0": 1})
    a_doubt(state, "mine", share(4 * GIB))
    for name, memory, told in (("first", 12, []), ("second", 16, [NoticeKind.OVERCOMMITTED])):
        pod, text = another_leaders(name, share(memory * GIB))
        state.saw_pod(pod, bound(pod, "n0", text), 0.0)
        assert kinds(state) == told


def bound_unseen(state: State) -> PodFacts:
    """A pod that is bound before the watch has shown that it exists, as it will be seen."""
    pod = a_pod("early", share(20 * GIB))
    assert place(state, pod) == "n0"
    return bind(state, pod, "n0")


def test_a_pod_that_is_bound_before_it_is_seen_is_no_drift_and_survives_a_repair() -> None:
    state = a_state({"n0": 1})
    pod = bound_unseen(state)
    assert drift_of(state) == ()
    state.repair(1.0)
    assert place(state, a_pod("other", share(8 * GIB))) is None
    state.saw_pod(None, pod, 2.0)
    assert not state.holdings.open()
    state.expire(1_000_000.0)
    assert drift_of(state) == ()
    assert place(state, a_pod("other", share(8 * GIB))) is None


def test_a_pod_that_is_bound_and_gone_before_it_is_seen_is_not_held_for_ever() -> None:
    state = a_state({"n0": 1})
    bound_unseen(state)
    state.expire(UNSEEN_SECONDS - 1)
    assert place(state, a_pod("other", share(8 * GIB))) is None
    state.expire(UNSEEN_SECONDS)
    assert place(state, a_pod("other", share(8 * GIB))) == "n0"
