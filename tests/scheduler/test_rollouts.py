"""Who waits for its own: pods of a Deployment whose other revision holds what they ask for."""

import asyncio

import pytest

from scheduler.test_parts import refuse, telling
from scheduler.world import a_pod, a_state, exclusively, run_pod
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.rollouts import REMEMBERED_SECONDS, REVISION, WAITS_FOR_ITSELF, Rollouts
from tessera.scheduler.teller import FIRST_SECONDS

APP = {"app": "server"}


def of_revision(name: str, revision: str, **labels: str) -> PodFacts:
    return a_pod(name, exclusively(), labels={**APP, REVISION: revision, **labels})


def test_a_pod_whose_older_revision_holds_devices_is_told_that_the_rollout_waits_for_itself() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        run_pod(state, of_revision("old", "1"))
        teller, events, clock = telling(state)
        refuse(state, teller, of_revision("new", "2"))
        for _ in range(3):  # one look at a time: first what would help, then who holds it
            await clock.advance(FIRST_SECONDS)
            teller.tell()
        ((name, reason, note),) = events.notes
        assert (name, reason) == ("new", "NotPlaced")
        assert note.startswith("the only candidate node cannot take it: GPU held exclusively by another pod. ")
        assert note.endswith(WAITS_FOR_ITSELF)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "holder",
    [
        of_revision("h", "2"),
        of_revision("h", "1", tier="canary"),
        a_pod("h", exclusively(), labels=APP),
        a_pod("h", exclusively(), labels={"app": "other", REVISION: "1"}),
        a_pod("h", exclusively(), labels={**APP, REVISION: "1"}, metadata={"namespace": "another"}),
    ],
    ids=["the same revision", "other labels", "of no Deployment", "of another", "in another namespace"],
)
def test_devices_that_others_hold_make_no_rollout_wait_for_itself(holder: PodFacts) -> None:
    state = a_state({"n0": 1})
    run_pod(state, holder)
    assert Rollouts(state).words(of_revision("new", "2"), 0.0, fresh=True) == (True, "")


def test_a_reservation_of_an_older_revision_is_no_holding_yet() -> None:
    state = a_state({"n0": 1})
    older = of_revision("old", "1")
    state.saw_pod(None, older, 0.0)
    state.filter(older, ["n0"], 0.0)
    assert Rollouts(state).words(of_revision("new", "2"), 0.0, fresh=True) == (True, "")


def test_a_look_is_remembered_for_all_pods_of_a_revision() -> None:
    state = a_state({"n0": 1})
    running = run_pod(state, of_revision("old", "1"))
    rollouts = Rollouts(state)
    assert rollouts.words(of_revision("a", "2"), 0.0, fresh=False) is None
    assert rollouts.words(of_revision("a", "2"), 0.0, fresh=True) == (True, WAITS_FOR_ITSELF)
    assert rollouts.words(of_revision("b", "2"), REMEMBERED_SECONDS - 1, fresh=False) == (False, WAITS_FOR_ITSELF)
    state.saw_pod(running, None, 0.0)
    assert rollouts.words(of_revision("b", "2"), REMEMBERED_SECONDS, fresh=True) == (True, "")


def test_a_pod_of_no_deployment_costs_no_look() -> None:
    assert Rollouts(a_state()).words(a_pod("p", exclusively(), labels=APP), 0.0, fresh=False) == (False, "")
