"""Mandate, waker, teller, binder and the configuration: each on its own."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from scheduler.world import GIB, a_pod, a_state, exclusively, place, run_pod, share
from tessera.core.ticket import RESOURCES
from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.events import EventKind, Subject
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import ApiError, ConnectionLostError, UnreachableError
from tessera.scheduler import teller as teller_module
from tessera.scheduler.audit import Audit
from tessera.scheduler.binder import bind
from tessera.scheduler.mandate import Mandate
from tessera.scheduler.offers import NO_TICKETS
from tessera.scheduler.refusals import Refusals
from tessera.scheduler.state import Nowhere, Outcome, State
from tessera.scheduler.stock import Settings, configuration, render
from tessera.scheduler.teller import AGAIN_SECONDS, FIRST_SECONDS, STRAY_SECONDS, Teller, freest
from tessera.scheduler.waker import CAPACITIES, NAME, PAUSE_SECONDS, Waker
from tessera.wire.kube.extender import BindArgs

# mandate


@dataclass
class ALease:
    """Who holds it, in which term."""

    holder: str = "a_1"
    count: int = 1
    live: bool = True

    @property
    def term(self) -> object | None:
        return (self.holder, self.count) if self.live else None

    def obstacle(self, prefix: str) -> str | None:
        if not self.live:
            return "nobody holds it"
        return None if self.holder.rpartition("_")[0] == prefix else f"{self.holder} holds it"


def test_nobody_decides_before_what_is_known_is_of_this_term() -> None:
    mandate = Mandate(ALease(), "a")
    assert mandate.obstacle() == "not ready: pods are being read anew for this term"
    assert mandate.rebuilt(mandate.term)
    assert mandate.obstacle() is None


def test_row_70_a_term_that_comes_again_is_another_term() -> None:
    lease = ALease()
    mandate = Mandate(lease, "a")
    mandate.rebuilt(mandate.term)
    lease.holder, lease.count = "b_1", 2
    assert mandate.obstacle() == "not the leader: b_1 holds it"
    lease.holder, lease.count = "a_1", 3
    assert mandate.obstacle() == "not ready: pods are being read anew for this term"


def test_what_was_read_for_a_term_that_is_over_is_not_of_this_one() -> None:
    lease = ALease()
    mandate = Mandate(lease, "a")
    term = mandate.term
    lease.count = 2
    assert not mandate.rebuilt(term)
    assert mandate.obstacle()


def test_without_an_election_there_is_one_term() -> None:
    mandate = Mandate(None, "a")
    assert mandate.obstacle()
    assert mandate.rebuilt(mandate.term)
    mandate.faults.append(lambda: "not ready: for another reason")
    assert mandate.obstacle() == "not ready: for another reason"


# waker


def waking(state: State) -> tuple[Waker, MemoryCluster, ManualClock]:
    clock = ManualClock()
    cluster = MemoryCluster(wall=clock.wall)
    return Waker(state, cluster, "tessera-system", clock), cluster, clock


def refused_and_freed() -> State:
    state = a_state({"n0": 1})
    running = run_pod(state, a_pod("x", exclusively()))
    place(state, a_pod("waits", share()))
    state.freed = False
    state.saw_pod(running, None, 0.0)
    return state


def test_room_wakes_the_pods_that_wait_with_one_write() -> None:
    async def scenario() -> None:
        waker, cluster, _ = waking(refused_and_freed())
        assert await waker.turn()
        assert not await waker.turn()
        found = await cluster.get(CAPACITIES, NAME, dict, namespace="tessera-system")
        assert found["storageClassName"] == NAME
        assert len(cluster.calls) == 2

    asyncio.run(scenario())


def test_nothing_is_written_while_no_pod_waits() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        state.freed = True
        waker, cluster, _ = waking(state)
        assert not await waker.turn()
        assert not cluster.calls
        assert not state.freed

    asyncio.run(scenario())


def test_row_86_waking_is_bounded_however_much_is_freed() -> None:
    async def scenario() -> None:
        state = refused_and_freed()
        waker, cluster, clock = waking(state)
        for _ in range(100):
            state.freed = True
            await waker.turn()
            await clock.advance(0.1)
        assert len(cluster.calls) <= 10 / PAUSE_SECONDS + 1
        assert waker.wakes == len(cluster.calls)

    asyncio.run(scenario())


def test_a_wake_that_failed_is_tried_again_later_and_later() -> None:
    async def scenario() -> None:
        state = refused_and_freed()
        waker, cluster, clock = waking(state)
        cluster.fail(Fault("patch", CAPACITIES, error=ApiError(403, "Forbidden", "no"), times=3))
        turns = []
        for second in range(40):
            if await waker.turn():
                turns.append(second)
            await clock.advance(1)
        assert turns == [28]  # after 4, 8 and 16 seconds

    asyncio.run(scenario())


# teller


@dataclass
class Events:
    """What was recorded."""

    notes: list[tuple[str, str, str]] = field(default_factory=list)

    def record(self, subject: Subject, type_: EventKind, reason: str, note: str, action: str = "") -> None:
        self.notes.append((subject.name, reason, note))


def telling(state: State) -> tuple[Teller, Events, ManualClock]:
    events, clock = Events(), ManualClock()
    return Teller(state, events, clock), events, clock


def refuse(state: State, teller: Teller, pod: Any) -> None:
    names = list(state.fleet.node_names)
    verdict = state.filter(pod, names, 0.0)
    assert isinstance(verdict, Nowhere)
    teller.refused(verdict.ask, Refusals().reasons(verdict, names, state.holdings.ledger, 0.0))


def test_a_pod_that_waits_is_told_why_and_what_would_help_once() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1, "n1": 1})
        run_pod(state, a_pod("x", share(20 * GIB)), ["n1"])
        teller, events, clock = telling(state)
        for _ in range(3):
            refuse(state, teller, a_pod("a", share(30 * GIB)))
        teller.tell()
        assert not events.notes
        await clock.advance(FIRST_SECONDS + 1)
        teller.tell()
        teller.tell()
        assert events.notes == [
            (
                "a",
                "NotPlaced",
                "none of 2 candidate nodes can take it: "
                "GPU memory: asked 30,720 MiB, largest free 24,576 MiB (2). "
                "What would place it now: lower memory to 24,576 MiB.",
            )
        ]
        await clock.advance(AGAIN_SECONDS)
        teller.tell()
        assert len(events.notes) == 2

    asyncio.run(scenario())


def test_a_pod_is_told_the_reasons_of_its_last_try() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        teller, events, clock = telling(state)
        refuse(state, teller, a_pod("a", share(30 * GIB)))
        run_pod(state, a_pod("x", exclusively()))
        verdict = state.filter(a_pod("a", share(30 * GIB)), ["n0"], 0.0)
        assert isinstance(verdict, Nowhere)
        teller.refused(verdict.ask, {"n0": "the last reason"})
        await clock.advance(FIRST_SECONDS)
        teller.tell()
        assert "cannot take it: the last reason." in events.notes[0][2]

    asyncio.run(scenario())


def test_a_pod_that_was_placed_meanwhile_is_told_nothing() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        running = run_pod(state, a_pod("x", exclusively()))
        teller, events, clock = telling(state)
        refuse(state, teller, a_pod("a", share()))
        state.saw_pod(running, None, 0.0)
        assert place(state, a_pod("a", share())) == "n0"
        await clock.advance(60)
        teller.tell()
        assert not events.notes

    asyncio.run(scenario())


def test_suggestions_are_found_for_one_request_at_a_time_and_remembered() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        teller, events, clock = telling(state)
        for number in range(6):
            refuse(state, teller, a_pod(f"p{number}", share((30 + number % 2) * GIB)))
        await clock.advance(FIRST_SECONDS + 1)
        teller.tell()
        assert sorted(name for name, _, _ in events.notes) == ["p0", "p2", "p4"]
        teller.tell()
        assert len(events.notes) == 6

    asyncio.run(scenario())


def test_more_pods_may_wait_than_are_remembered_and_each_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(teller_module, "REMEMBERED", 2)
        state = a_state({"n0": 1})
        teller, events, clock = telling(state)

        async def a_round(*names: str) -> list[str]:
            for name in names:
                refuse(state, teller, a_pod(name, share(30 * GIB)))
            await clock.advance(FIRST_SECONDS)
            teller.tell()
            said = [name for name, _, _ in events.notes]
            events.notes.clear()
            return said

        assert await a_round("a", "b", "c") == ["a", "b"]  # there was no room for c before these were told
        assert await a_round("c") == ["c"]
        assert await a_round("a", "b", "c") == [], "each was told within the last minutes, remembered or not"
        await clock.advance(AGAIN_SECONDS)
        assert sorted({*await a_round("a", "b", "c"), *await a_round("a", "b", "c")}) == ["a", "b", "c"]

    asyncio.run(scenario())


def test_no_change_is_suggested_to_a_pod_that_waits_for_tickets() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        state.saw_node("n0", {})
        teller, events, clock = telling(state)
        refuse(state, teller, a_pod("a", share(1 * GIB)))
        await clock.advance(FIRST_SECONDS)
        teller.tell()
        assert [note for _, _, note in events.notes] == [
            f"the only candidate node cannot take it: {NO_TICKETS}. "
            "The request is not the reason: it is placed once a node can take it."
        ]

    asyncio.run(scenario())


def test_a_pod_without_a_request_is_told_after_a_while_and_once() -> None:
    async def scenario() -> None:
        state = a_state({"n0": 1})
        teller, events, clock = telling(state)
        state.saw_pod(None, a_pod("s", resources={"nvidia.com/gpu": "1"}), clock.monotonic())
        teller.tell()
        assert not events.notes
        await clock.advance(STRAY_SECONDS)
        teller.tell()
        teller.tell()
        (told,) = events.notes
        assert told[:2] == ("s", "NotAdmitted")
        assert "delete and create it again" in told[2]

    asyncio.run(scenario())


def test_suggestions_look_at_the_freest_nodes() -> None:
    state = a_state({"n0": 1, "n1": 2, "n2": 1})
    run_pod(state, a_pod("x", share(20 * GIB)), ["n0"])
    small = freest(state.view(), ["n0", "n1", "n2", "unknown"], most=2)
    assert small.fleet.node_names == ("n1", "n2")


# audit


def test_the_audit_counts_what_it_found_in_a_whole_round() -> None:
    state = a_state({f"n{i}": 1 for i in range(5)})
    audit = Audit(state)
    state.view().usage.slots[3] += 1
    found = [problem for _ in range(4) for problem in audit.step(2)]
    assert len(found) == 1
    assert "n3-0" in found[0]
    audit.step(10)
    assert (audit.drift, audit.rounds) == (1, 3)
    state.view().usage.slots[3] -= 1
    audit.step(10)
    assert audit.drift == 0


def test_a_node_that_leaves_in_the_middle_of_a_round_is_passed_over() -> None:
    state = a_state({"n0": 1, "n1": 1})
    audit = Audit(state)
    audit.step(1)
    state.saw_gpu_node("n1", None)
    state.rebuild()
    assert not audit.step(2)


# binder


class Answering:
    """An API server that gives one answer."""

    def __init__(self, answer: tuple[int, bytes] | Exception) -> None:
        self.answer, self.calls = answer, list[str]()

    async def post_raw(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.calls.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        ((201, b"{}"), Outcome.DONE, ""),
        (
            (409, b'{"message":"pod a is already assigned to node x"}'),
            Outcome.FAILED,
            "409: pod a is already assigned",
        ),
        ((404, b'{"message":"pods a not found"}'), Outcome.FAILED, "404: pods a not found"),
        ((403, b"{}"), Outcome.FAILED, "403"),
        ((429, b"too many"), Outcome.FAILED, "429: too many"),
        ((500, b'{"message":"etcdserver: request timed out"}'), Outcome.DOUBTFUL, "500: etcdserver"),
        ((504, b""), Outcome.DOUBTFUL, "504"),
        (ConnectionLostError("reset"), Outcome.DOUBTFUL, "reset"),
        (UnreachableError("refused"), Outcome.FAILED, "refused"),
        (ApiError(401, "Unauthorized", "who are you"), Outcome.FAILED, "who are you"),
    ],
)
def test_every_answer_to_a_binding_means_one_thing(answer: Any, outcome: Outcome, words: str) -> None:
    client = Answering(answer)
    found, why = asyncio.run(bind(client, BindArgs("a", "team", "u", "n0"), "text"))
    assert (found, words in why) == (outcome, True)
    assert client.calls == ["/api/v1/namespaces/team/pods/a/binding"]


# configuration


def test_every_resource_that_a_pod_may_ask_for_is_managed() -> None:
    (extender,) = configuration()["extenders"]
    managed = {row["name"]: row["ignoredByScheduler"] for row in extender["managedResources"]}
    assert managed.keys() > {*RESOURCES, "nvidia.com/gpu", "nvidia.com/gpumem", "tessera.dev/memory"}


def test_no_resource_is_left_to_kube_scheduler_which_would_not_look_again_when_it_comes() -> None:
    (extender,) = configuration()["extenders"]
    assert all(row["ignoredByScheduler"] for row in extender["managedResources"])


def test_the_configuration_follows_its_settings() -> None:
    found = yaml.safe_load(render(Settings(("tessera-scheduler", "default-scheduler"), "http://x:1", "ns/lease")))
    assert [profile["schedulerName"] for profile in found["profiles"]] == [
        "tessera-scheduler",
        "default-scheduler",
    ]
    assert found["leaderElection"] == {"leaderElect": True, "resourceNamespace": "ns", "resourceName": "lease"}
    assert found["extenders"][0]["urlPrefix"] == "http://x:1"
    assert yaml.safe_load(render(Settings(lease="")))["leaderElection"] == {"leaderElect": False}
