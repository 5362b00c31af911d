"""Another share for a running pod: room, one write, the ledger and the log."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from scheduler.test_process import World, play
from scheduler.world import GIB, a_state, run_pod, share
from scheduler.world import a_pod as a_pod_of
from tessera.runtime.kube.port import PODS, ApiError, ConnectionLostError
from tessera.scheduler.audit import drift_of
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.resize import Refused, Rewrite, plan
from tessera.scheduler.state import State
from tessera.wire.kube.names import ALLOCATION, REQUEST, RESIZE


def a_wish(container: str = "main", **said: str) -> str:
    return json.dumps({container: said})


def wishing(state: State, facts: PodFacts, wish: str) -> PodFacts:
    """The pod as it is seen once somebody wished for that."""
    after = msgspec.structs.replace(facts, resize=wish)
    state.saw_pod(facts, after, 0.0)
    return after


def used(state: State) -> tuple[int, int]:
    """MiB and milli that are booked on the first device."""
    usage = state.view().usage
    return int(usage.memory[0]), int(usage.compute[0])


def granted(state: State, facts: PodFacts) -> PodFacts:
    """The pod after the write that was planned for it, as the API server would have it."""
    step = plan(state, facts)
    assert isinstance(step, Rewrite), step
    state.rebook(facts, step.allocation, step.text)
    after = msgspec.structs.replace(facts, request=step.request, allocation=step.text)
    state.saw_pod(facts, after, 0.0)
    return after


def test_who_wishes_for_nothing_or_has_it_is_left_alone() -> None:
    state = a_state()
    facts = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    assert plan(state, facts) is None
    assert plan(state, wishing(state, facts, a_wish(memory="8Gi", compute="30%"))) is None
    waits = a_pod_of("b", share(8 * GIB, 300))
    assert plan(state, msgspec.structs.replace(waits, resize=a_wish(memory="9Gi"))) is None


def test_a_growth_is_booked_and_the_log_says_the_same() -> None:
    state = a_state()
    facts = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    after = granted(state, wishing(state, facts, a_wish(memory="16Gi", compute="50%")))
    assert used(state) == (16 * GIB, 500)
    assert drift_of(state) == ()
    assert plan(state, after) is None, "it has what it wishes"
    state.repair(1.0)
    assert used(state) == (16 * GIB, 500), "rebuilt from the pods alone"


@pytest.mark.parametrize(
    ("memory", "compute", "fits"), [("16Gi", "70%", True), ("16385Mi", "70%", False), ("16Gi", "70.1%", False)]
)
def test_a_growth_fits_exactly_as_far_as_the_others_leave_room(memory: str, compute: str, fits: bool) -> None:
    state = a_state()
    facts = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    run_pod(state, a_pod_of("b", share(8 * GIB, 300)))
    step = plan(state, wishing(state, facts, a_wish(memory=memory, compute=compute)))
    assert isinstance(step, Rewrite) == fits
    if not fits:
        assert isinstance(step, Refused)
        assert "what would fit: " in step.why
    assert used(state) == (16 * GIB, 600), "a plan books nothing"


def test_a_refusal_has_the_figures() -> None:
    state = a_state()
    facts = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    run_pod(state, a_pod_of("b", share(10 * GIB, 400)))
    step = plan(state, wishing(state, facts, a_wish(memory="20Gi", compute="70%")))
    assert step == Refused(
        "device n0-0 has 14,336 MiB for it, 20,480 MiB is more; "
        "device n0-0 has 60% compute for it, 70% compute is more; "
        "what would fit: memory 14336Mi, compute 60%. It is granted once there is room"
    )


def test_memory_that_is_given_back_stays_booked_and_compute_does_not() -> None:
    """Whether memory is free is known to the node alone; nobody else may be given it before it is."""
    state = a_state()
    facts = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    after = granted(state, wishing(state, facts, a_wish(memory="4Gi", compute="10%")))
    assert used(state) == (8 * GIB, 100)
    held = state.holdings.get(after.uid)
    assert held is not None
    (grant,) = held.placement.grants["main"]
    assert (grant.share.memory_limit, grant.share.compute_limit) == (4 * GIB, 100)
    assert drift_of(state) == ()
    assert plan(state, after) is None
    again = granted(state, wishing(state, after, a_wish(memory="6Gi")))
    assert used(state) == (8 * GIB, 100), "what is booked is enough"
    assert granted(state, wishing(state, again, a_wish(memory="9Gi"))).allocation != again.allocation
    assert used(state) == (9 * GIB, 100)


def test_a_wish_that_cannot_be_read_is_refused_with_what_is_wrong() -> None:
    state = a_state()
    facts = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    for wish, said in (
        ("lots", "is no wish"),
        (a_wish("side", memory="1Gi"), "containers without a share (side)"),
    ):
        step = plan(state, wishing(state, facts, wish))
        assert isinstance(step, Refused)
        assert said in step.why


def test_in_every_order_of_events_the_ledger_is_what_the_pods_say() -> None:
    """Grown, then seen as it was before (a status that was written meanwhile), grown, restarted, gone."""
    state = a_state()
    before = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    after = granted(state, wishing(state, before, a_wish(memory="16Gi")))
    state.saw_pod(after, before, 1.0)
    assert (used(state), drift_of(state)) == ((8 * GIB, 300), ())
    state.saw_pod(before, after, 2.0)
    assert (used(state), drift_of(state)) == ((16 * GIB, 300), ())
    state.restart()
    state.saw_pod(None, after, 3.0)
    assert (used(state), drift_of(state)) == ((16 * GIB, 300), ())
    assert list(state.wishing) == [after.uid]
    state.saw_pod(after, None, 4.0)
    assert (used(state), list(state.wishing)) == ((0, 0), [])


def test_an_allocation_that_was_changed_alone_is_not_believed() -> None:
    """Who may write pods may not write it (the admission policy); where that is away, it means nothing."""
    state = a_state()
    before = run_pod(state, a_pod_of("a", share(8 * GIB, 300)))
    after = granted(state, wishing(state, before, a_wish(memory="16Gi")))
    state.saw_pod(after, before, 1.0)
    state.saw_pod(before, msgspec.structs.replace(before, allocation=after.allocation), 1.0)
    assert [notice.kind.value for notice in state.take_notices()] == ["AllocationNotBelieved"]


# the process


async def running(world: World, name: str, memory: int, compute: int) -> dict[str, Any]:
    pod = await world.pod(name, share(memory, compute))
    assert (await world.filter(pod, "n0"))["NodeNames"] == ["n0"]
    assert not (await world.bind(pod, "n0")).get("Error")
    return pod


async def wish(world: World, name: str, text: str) -> None:
    patch = {"metadata": {"annotations": {RESIZE: text}}}
    await world.api.patch(PODS, name, patch, dict, namespace="team")
    await world.pass_time(1)


async def shares_of(world: World, name: str) -> tuple[int, int]:
    """MiB and milli that the records of a pod grant its container."""
    annotations: Mapping[str, str] = (await world.now(name))["metadata"]["annotations"]
    (grant,) = json.loads(annotations[ALLOCATION])["containers"]["main"]
    asked = json.loads(annotations[REQUEST])["claims"][0]["share"]
    assert asked["memory"]["mib"] == grant["memory"][1], "both are written at once"
    return grant["memory"][1], grant["compute"][1]


def test_a_wish_is_granted_within_a_second_and_told() -> None:
    async def scenario(world: World) -> None:
        await running(world, "a", 8 * GIB, 300)
        await wish(world, "a", a_wish(memory="16Gi", compute="40%"))
        assert await shares_of(world, "a") == (16 * GIB, 400)
        assert [reason for _, reason, _ in world.events.notes] == ["Resized"]
        assert drift_of(world.state) == ()

    play(scenario, n0=1)


def test_a_growth_without_room_is_told_once_and_granted_once_there_is_some() -> None:
    async def scenario(world: World) -> None:
        await running(world, "a", 8 * GIB, 300)
        await running(world, "b", 12 * GIB, 300)
        await wish(world, "a", a_wish(memory="16Gi"))
        await world.pass_time(30)
        assert [reason for _, reason, _ in world.events.notes] == ["ResizeRefused"]
        assert await shares_of(world, "a") == (8 * GIB, 300)
        await world.api.delete(PODS, "b", namespace="team", grace_seconds=0)
        await world.pass_time(1)
        assert await shares_of(world, "a") == (16 * GIB, 300)

    play(scenario, n0=1)


@pytest.mark.parametrize("error", [ApiError(409, "Conflict", "no"), ConnectionLostError("gone")])
def test_a_write_that_fails_is_made_again(error: Exception) -> None:
    async def scenario(world: World) -> None:
        await running(world, "a", 8 * GIB, 300)
        real, failed = world.api.patch, []

        async def patch(kind: Any, name: str, body: Any, *args: Any, **facts: Any) -> Any:
            if isinstance(body, list) and not failed:
                failed.append(body)
                raise error
            return await real(kind, name, body, *args, **facts)

        world.api.patch = patch  # type: ignore[method-assign]
        await wish(world, "a", a_wish(memory="16Gi"))
        await world.pass_time(2)
        assert failed
        assert await shares_of(world, "a") == (16 * GIB, 300)
        assert (used(world.state), drift_of(world.state)) == ((16 * GIB, 300), ())

    play(scenario, n0=1)


def test_a_write_whose_answer_is_lost_is_not_granted_twice() -> None:
    async def scenario(world: World) -> None:
        await running(world, "a", 8 * GIB, 300)
        real, lost = world.api.patch, []

        async def patch(kind: Any, name: str, body: Any, *args: Any, **facts: Any) -> Any:
            found = await real(kind, name, body, *args, **facts)
            if isinstance(body, list) and not lost:
                lost.append(body)
                raise ConnectionLostError("the answer is lost")
            return found

        world.api.patch = patch  # type: ignore[method-assign]
        await wish(world, "a", a_wish(memory="16Gi"))
        await world.pass_time(2)
        assert lost
        assert await shares_of(world, "a") == (16 * GIB, 300)
        assert (used(world.state), drift_of(world.state)) == ((16 * GIB, 300), ())

    play(scenario, n0=1)
