"""Tickets as nodes offer them: no pod goes to a node whose kubelet would turn it away for them."""

from typing import Any

import msgspec
import pytest

from scheduler.test_process import World, play
from scheduler.world import ALLOCATABLE, GIB, a_pod, a_state, bind, bound, gpus, place, run_pod, share
from tessera.core.request import Container, ContainerKind
from tessera.core.ticket import KEYS, QUANTITIES
from tessera.policy.soft import Match, Operator, Selector
from tessera.runtime.kube.port import NODES
from tessera.scheduler.app import SILENCE_SECONDS
from tessera.scheduler.facts import PodFacts
from tessera.scheduler.holdings import Phase
from tessera.scheduler.offers import FULL, NO_TICKETS, NOTHING, TIGHT, USED_UP, Offers, demand_of, offered_by
from tessera.scheduler.refusals import NO_AGENT, NO_DEVICE, Refusals
from tessera.scheduler.state import Bindable, Nowhere, Outcome, State

INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def offering(amount: int, key: int = 0) -> tuple[int, ...]:
    """All of every key but one."""
    return (*FULL[:key], amount, *FULL[key + 1 :])


def told(state: State, facts: PodFacts, *names: str) -> dict[str, str]:
    verdict = state.filter(facts, names, 0.0)
    assert isinstance(verdict, Nowhere), verdict
    return Refusals().reasons(verdict, names, state.holdings.ledger, 0.0)


# what a node says, what a pod takes


@pytest.mark.parametrize(
    ("allocatable", "offered"),
    [
        (None, NOTHING),
        ({}, NOTHING),
        ({"cpu": "64", "nvidia.com/gpu": "8"}, NOTHING),
        ({**ALLOCATABLE, "cpu": "64"}, FULL),
        (dict.fromkeys(ALLOCATABLE, "0"), NOTHING),
        ({"tessera.dev/ticket-0": "2k"}, (2000, *NOTHING[1:])),
        ({"tessera.dev/ticket-f": "7"}, (*NOTHING[1:], 7)),
        ({"tessera.dev/ticket-0": "many", "tessera.dev/ticket-1": "0.5", "tessera.dev/ticket-2": "-3"}, NOTHING),
    ],
)
def test_a_node_offers_what_its_allocatable_says(
    allocatable: dict[str, str] | None, offered: tuple[int, ...]
) -> None:
    assert offered_by(allocatable) == offered


def test_equal_offers_are_one_object() -> None:
    assert offered_by(dict(ALLOCATABLE)) is FULL
    assert offered_by({"cpu": "1"}) is NOTHING


@pytest.mark.parametrize(
    ("tickets", "kinds", "demand"),
    [
        ((), {}, ()),
        ((("a", 0),), {}, ((0, 1),)),
        ((("a", 511),), {"a": INIT}, ((15, 32),)),
        # Two that run together take the sum: 4 + 6 of key 0, and 1 of key 1.
        ((("a", 3), ("b", 5), ("c", 32)), {"a": None, "b": None, "c": None}, ((0, 10), (1, 1))),
        # One after the other, the larger one: 9 against 6.
        ((("i", 8), ("a", 5)), {"i": INIT, "a": None}, ((0, 9),)),
        # An init container beside the sidecar before it takes 2 + 9; later the sidecar and the other take 2 + 6.
        ((("s", 1), ("i", 8), ("a", 5)), {"s": SIDECAR, "i": INIT, "a": None}, ((0, 11),)),
        # The other way round it was over before the sidecar: 9, or 2 + 6.
        ((("i", 8), ("s", 1), ("a", 5)), {"i": INIT, "s": SIDECAR, "a": None}, ((0, 9),)),
        # Containers that are not known may all run at once.
        ((("i", 8), ("a", 5)), {}, ((0, 15),)),
    ],
)
def test_a_pod_takes_what_it_has_at_its_peak(
    tickets: tuple[tuple[str, int], ...],
    kinds: dict[str, ContainerKind | None],
    demand: tuple[tuple[int, int], ...],
) -> None:
    containers = [Container(name, kind) if kind else Container(name) for name, kind in kinds.items()]
    assert demand_of(tickets, containers) == demand
    assert demand_of(tickets[::-1], containers) == demand


# counting


def test_nothing_is_barred_while_every_node_offers_enough() -> None:
    offers = Offers()
    offers.expect(["n0", "n1"])
    for name in ("n0", "n1"):
        offers.set(name, FULL)
    for _ in range(50):
        offers.take("n0", ((0, QUANTITIES),))
    assert not offers.bars(((0, QUANTITIES),))
    assert not offers._tight  # 2048 - 50 x 32 = 448 are left, more than eight containers ask
    for _ in range(7):
        offers.take("n0", ((0, QUANTITIES),))
    assert offers._tight == {"n0"}  # 224 are left
    assert offers.bars(((0, QUANTITIES),)) == {}
    assert offers.give("n0", ((0, QUANTITIES),))
    assert not offers._tight  # 256
    offers.take("n0", ((0, 1),))
    assert offers._tight
    offers.empty()
    assert not offers._tight


def test_a_key_is_short_exactly_where_less_is_left_than_is_asked() -> None:
    offers = Offers()
    offers.expect(["n0", "n1"])
    for name in ("n0", "n1"):
        offers.set(name, offering(10))
    offers.take("n0", ((0, 7), (1, 7)))
    assert offers.bars(((0, 3),)) == {}
    assert offers.bars(((0, 4),)) == {"n0": USED_UP[0]}
    assert offers.bars(((0, 11),)) == {"n0": USED_UP[0], "n1": USED_UP[0]}
    assert offers.bars(((1, 32),)) == {}
    assert offers.give("n0", ((0, 7), (1, 7)))
    assert offers.bars(((0, 10),)) == {}


def test_a_pod_that_asks_more_than_others_do_is_compared_with_every_node() -> None:
    offers = Offers()
    offers.expect(["n0", "n1"])
    offers.set("n0", offering(TIGHT + 5))
    offers.set("n1", offering(TIGHT + 6))
    assert not offers._tight
    assert offers.bars(((0, TIGHT + 6),)) == {"n0": USED_UP[0]}


def test_a_node_that_has_registered_only_some_keys_offers_none_of_the_others() -> None:
    offers = Offers()
    offers.expect(["n0"])
    offers.set("n0", offering(0, key=KEYS - 1))
    assert offers.bars(((0, 1),)) == {}
    assert offers.bars(((KEYS - 1, 1),)) == {"n0": NO_TICKETS}
    assert not offers.without


def test_pods_are_counted_also_where_nothing_is_offered_yet() -> None:
    offers = Offers()
    offers.expect(["n0"])
    offers.take("n0", ((0, 7),))
    assert offers.bars(((0, 1),)) == {"n0": NO_TICKETS}
    assert offers.set("n0", offering(7))
    assert offers.bars(((0, 1),)) == {"n0": USED_UP[0]}


def test_only_more_tickets_than_before_are_news() -> None:
    offers = Offers()
    assert offers.set("n0", offering(10))
    assert not offers.set("n0", offering(10))
    assert not offers.set("n0", offering(9))
    assert offers.set("n0", offering(10))
    assert not offers.set("n0", NOTHING)
    assert offers.set("n0", FULL)


# decisions


def test_a_node_whose_agent_offers_no_tickets_gets_no_pod() -> None:
    state = a_state({"n0": 4, "n1": 1})
    state.saw_node("n0", {}, NOTHING)
    assert place(state, a_pod("a", share())) == "n1"
    assert told(state, a_pod("b", share(24 * GIB)), "n0", "n1") == {
        "n0": NO_TICKETS,
        "n1": "GPU memory: asked 24,576 MiB, largest free 16,384 MiB",
    }
    assert told(state, a_pod("c", share(30 * GIB)), "n0") == {"n0": NO_TICKETS}


def test_a_node_that_is_not_known_offers_nothing() -> None:
    state = a_state({"n0": 1})
    state.saw_gpu_node("n1", gpus("n1", 1))
    state.rebuild()
    assert place(state, a_pod("a", share()), ["n1"]) is None
    state.saw_node("n1", {}, FULL)
    assert place(state, a_pod("a", share()), ["n1"]) == "n1"
    state.saw_node("n1", None)
    assert place(state, a_pod("b", share()), ["n1"]) is None


def test_where_no_device_is_known_tickets_make_no_difference() -> None:
    state = a_state({"n0": 1})
    state.saw_gpu_node("bare", gpus("bare", 0))
    state.rebuild()
    state.saw_node("n0", {}, NOTHING)
    assert told(state, a_pod("a", share()), "n0", "bare", "unknown") == {
        "n0": NO_TICKETS,
        "bare": NO_DEVICE,
        "unknown": NO_AGENT,
    }


def test_a_node_with_room_says_which_tickets_it_lacks() -> None:
    state = a_state({"n0": 4})
    state.saw_node("n0", {}, offering(10))
    run_pod(state, a_pod("x", share(), ticket=7))
    assert told(state, a_pod("a", share(), ticket=2), "n0") == {"n0": USED_UP[0]}
    assert told(state, a_pod("b", share(30 * GIB), ticket=2), "n0") == {
        "n0": "GPU memory: asked 30,720 MiB, largest free 24,576 MiB"
    }
    assert place(state, a_pod("c", share(), ticket=1)) == "n0"


def test_reservations_take_tickets_and_give_them_back() -> None:
    state = a_state({"n0": 4})
    state.saw_node("n0", {}, offering(10))
    assert place(state, a_pod("a", share(), ticket=7)) == "n0"
    assert place(state, a_pod("b", share(), ticket=5)) is None
    state.freed = False
    state.expire(1000.0)
    assert state.freed
    assert place(state, a_pod("b", share(), ticket=5)) == "n0"


def test_a_pod_does_not_stand_in_its_own_way() -> None:
    state = a_state({"n0": 1})
    state.saw_node("n0", {}, offering(10))
    for _ in range(3):
        assert place(state, a_pod("a", share(), ticket=7)) == "n0"


def test_pods_of_others_take_tickets_until_they_end() -> None:
    state = a_state({"n0": 4})
    state.saw_node("n0", {}, offering(10))
    foreign = a_pod("x", node="n0", resources={"tessera.dev/ticket-0": "8"})
    state.saw_pod(None, foreign, 0.0)
    assert place(state, a_pod("a", share(), ticket=2)) is None
    state.freed = False
    state.saw_pod(foreign, None, 0.0)
    assert state.freed
    assert place(state, a_pod("a", share(), ticket=2)) == "n0"


def test_tickets_of_a_pod_whose_device_the_agent_has_marked_wake_too() -> None:
    """Nothing is set aside for it, so nothing else changes when it ends."""
    state, status = a_state({"n0": 2}), gpus("n0", 2)
    marked = msgspec.structs.replace(status.devices[0], foreign="team/x")
    state.saw_gpu_node("n0", msgspec.structs.replace(status, devices=(marked, status.devices[1])))
    state.rebuild()
    state.saw_node("n0", {}, offering(10))
    foreign = a_pod("x", node="n0", resources={"tessera.dev/ticket-0": "8"})
    state.saw_pod(None, foreign, 0.0)
    assert not state.holdings.aside("n0")
    assert place(state, a_pod("a", share(), ticket=2)) is None
    state.freed = False
    state.saw_pod(foreign, None, 0.0)
    assert state.freed


def test_a_running_pod_keeps_its_tickets_and_loses_its_number() -> None:
    state = a_state({"n0": 4})
    state.saw_node("n0", {}, offering(10))
    run_pod(state, a_pod("x", share(GIB), ticket=4))
    assert place(state, a_pod("a", share(GIB), ticket=4)) == "n0"  # 5 + 5
    assert place(state, a_pod("b", share(GIB), ticket=0)) is None


def test_tickets_that_come_back_wake_the_pods_that_wait() -> None:
    state = a_state({"n0": 1})
    state.saw_node("n0", {}, NOTHING)
    assert place(state, a_pod("a", share())) is None
    state.freed = False
    state.saw_node("n0", {"zone": "a"}, NOTHING)
    assert not state.freed
    state.saw_node("n0", {"zone": "a"}, FULL)
    assert state.freed


def test_a_reservation_is_not_bound_where_the_tickets_went_meanwhile() -> None:
    state = a_state({"n0": 1})
    facts = a_pod("a", share())
    state.saw_pod(None, facts, 0.0)
    assert place(state, facts) == "n0"
    state.saw_node("n0", {}, NOTHING)
    assert state.begin_bind(facts.uid, facts.key, "n0", 0.0) == f"node n0: {NO_TICKETS}"
    assert state.holdings.get(facts.uid) is None


def test_a_reservation_is_not_bound_where_others_took_the_tickets_meanwhile() -> None:
    state = a_state({"n0": 4})
    state.saw_node("n0", {}, offering(10))
    facts = a_pod("a", share(), ticket=7)
    assert place(state, facts) == "n0"
    foreign = a_pod("x", node="n0", resources={"tessera.dev/ticket-0": "3"})
    state.saw_pod(None, foreign, 0.0)
    assert state.begin_bind(facts.uid, facts.key, "n0", 0.0) == f"node n0: {USED_UP[0]}"


def test_what_may_be_bound_keeps_its_tickets_over_a_restart() -> None:
    state = a_state({"n0": 4})
    state.saw_node("n0", {}, offering(10))
    lost, only = a_pod("lost", share(GIB), ticket=7), a_pod("only", share(GIB), ticket=0)
    for facts in (lost, only):
        assert place(state, facts) == "n0"
    bindable = state.begin_bind(lost.uid, lost.key, "n0", 0.0)
    assert isinstance(bindable, Bindable)
    state.end_bind(bindable, Outcome.DOUBTFUL, 0.0)
    state.restart()
    assert set(state.holdings.open()) == {lost.uid}
    assert told(state, a_pod("b", share(GIB), ticket=2), "n0") == {"n0": USED_UP[0]}
    assert place(state, a_pod("c", share(GIB), ticket=1)) == "n0"


def test_a_repair_forgets_who_is_not_reserved_any_more() -> None:
    """In tickets and in what preferences count."""
    state = a_state({"n0": 1})
    state.saw_node("n0", {}, offering(10))
    facts = a_pod("a", share(), ticket=7, labels={"app": "web"})
    assert place(state, facts) == "n0"  # never seen: its reservation is not made again
    state.repair(0.0)
    assert state.holdings.get(facts.uid) is None
    assert place(state, a_pod("b", share(), ticket=9)) == "n0"
    web = Selector(frozenset({"team"}), (Match("app", Operator.IN, ("web",)),))
    assert not state.population.counts(web)


def test_a_pod_that_is_placed_anew_is_not_drawn_by_itself() -> None:
    state = a_state({"n0": 1})
    facts = a_pod("a", share(), labels={"app": "web"})
    web = Selector(frozenset({"team"}), (Match("app", Operator.IN, ("web",)),))
    assert place(state, facts) == "n0"
    assert state.population.counts(web) == {"n0": 1}
    state.saw_node("n0", {}, NOTHING)
    assert place(state, facts) is None
    assert state.population.counts(web) == {}


def test_a_bound_pod_stays_where_tickets_went() -> None:
    state = a_state({"n0": 1})
    facts = a_pod("a", share())
    after = run_pod(state, facts)
    state.saw_node("n0", {}, NOTHING)
    state.rebuild()
    held = state.holdings.get(after.uid)
    assert held is not None
    assert held.phase is Phase.BOUND


def test_a_pod_that_another_leader_bound_elsewhere_takes_tickets_there_alone() -> None:
    state = a_state({"n0": 1, "n1": 1})
    for node in ("n0", "n1"):
        state.saw_node(node, {}, offering(10))
    facts = a_pod("a", share(), ticket=7)
    state.saw_pod(None, facts, 0.0)
    assert place(state, facts, ["n0"]) == "n0"
    other = a_state({"n1": 1})
    other.saw_pod(None, facts, 0.0)
    assert place(other, facts, ["n1"]) == "n1"
    state.saw_pod(facts, bound(facts, "n1", bind(other, facts, "n1").allocation or ""), 0.0)
    assert place(state, a_pod("b", share(), ticket=9), ["n0"]) == "n0"
    assert place(state, a_pod("c", share(), ticket=2), ["n1"]) is None


# the process


async def offer(world: World, name: str, allocatable: dict[str, str]) -> None:
    """What a kubelet writes when its device plugins come and go."""
    status: dict[str, Any] = {"status": {"allocatable": dict.fromkeys(ALLOCATABLE) | allocatable}}
    await world.api.patch(NODES, name, status, dict, subresource="status")


def test_a_pod_waits_for_an_agent_and_is_woken_when_it_is_there() -> None:
    async def scenario(world: World) -> None:
        await offer(world, "n0", {})
        await world.pass_time(3)
        pod = await world.pod("a", share())
        refused = await world.filter(pod, "n0")
        assert refused["FailedAndUnresolvableNodes"] == {"n0": NO_TICKETS}
        assert b"tessera_gpu_nodes_without_tickets 1\n" in world.metrics.render()
        await world.pass_time(3)
        before = len(world.api.calls)
        await offer(world, "n0", ALLOCATABLE)
        await world.pass_time(3)
        woken = [call.kind.plural for call in world.api.calls[before:] if call.verb == "patch"]
        assert woken == ["nodes", "csistoragecapacities"]
        assert await world.filter(pod, "n0") == {"NodeNames": ["n0"]}
        assert b"tessera_gpu_nodes_without_tickets 0\n" in world.metrics.render()

    play(scenario, n0=1)


def test_nothing_is_placed_while_nodes_are_silent() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("a", share())
        world.parts.nodes._contact = world.clock.monotonic() - SILENCE_SECONDS - 1
        assert (await world.filter(pod, "n0"))["Error"] == "tessera is not ready: no word of nodes for 151 s"

    play(scenario, n0=1)
