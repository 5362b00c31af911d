"""The scheduler process: what runs in it and how the parts are wired together."""

import asyncio
import contextlib
import datetime as dt
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.core.errors import TesseraError
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.clock import Clock
from tessera.runtime.kube.access import Access
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.election import LeaseWatch
from tessera.runtime.kube.events import Recorder
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.port import GPU_NODES, NODES, PODS, KubeClient
from tessera.runtime.log import logger
from tessera.runtime.metrics import Metrics
from tessera.runtime.serve import Bind, Health, health_app, serve
from tessera.runtime.shell import Fate, Shell
from tessera.scheduler.audit import Audit
from tessera.scheduler.debug import routes
from tessera.scheduler.extender import Extender
from tessera.scheduler.facts import Facts, PodFacts
from tessera.scheduler.growth import Room, room_of
from tessera.scheduler.mandate import Mandate
from tessera.scheduler.meters import Meters, expose_state
from tessera.scheduler.offers import Amounts, offered_by
from tessera.scheduler.resize import Resizer
from tessera.scheduler.state import RESERVATION_SECONDS, Notice, State
from tessera.scheduler.teller import Teller
from tessera.scheduler.waker import Waker
from tessera.wire.kube.inventory import GPUNodeStatus
from tessera.wire.kube.objects import KubeNode, KubePod, Meta

TERM_SECONDS: Final = 0.2
TICK_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 0.1
"""Between two looks at whether the inventory changed: 1,000 agents that start at once cost a few passes."""

SHARE_OF_REBUILDS: Final = 10
"""At most one part in so many of the time goes into rebuilding the fleet."""

SILENCE_SECONDS: Final = 150.0
"""Longer than two bookmarks: a watch that is silent for so long is not trusted."""

_log: Final = logger("scheduler")


@dataclass(frozen=True, slots=True)
class Options:
    """How the process was called. ``lease`` is empty where a single kube-scheduler runs without election."""

    cluster: ClusterConfig
    bind: Bind
    metrics_bind: Bind
    namespace: str
    lease: str
    holder: str
    policy: str = DEFAULT_POLICY
    reservation: float = RESERVATION_SECONDS


class GPUNodeObject(msgspec.Struct, frozen=True):
    """A GPUNode as it is watched."""

    metadata: Meta
    status: GPUNodeStatus = GPUNodeStatus()


class _Published(msgspec.Struct, frozen=True):
    name: str
    status: GPUNodeStatus


class _Seen(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a Node. ``offered`` is nearly always one of two objects, so 5,000 of them weigh nothing."""

    name: str
    labels: dict[str, str]
    offered: Amounts
    room: Room


def _seen(node: KubeNode) -> _Seen:
    amounts = node.status.allocatable
    return _Seen(node.metadata.name, node.metadata.labels or {}, offered_by(amounts), room_of(amounts))


class Scheduler:
    """The parts of the process, and the loops that keep them going."""

    def __init__(
        self,
        client: KubeClient,
        mandate: Mandate,
        state: State,
        meters: Meters,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.client, self.mandate, self.state, self.meters = client, mandate, state, meters
        self.clock, self.rng = clock, rng
        self.facts = Facts()
        self.gpu_nodes = Informer[GPUNodeObject, _Published](
            client,
            GPU_NODES,
            GPUNodeObject,
            clock=clock,
            rng=rng,
            project=lambda obj: _Published(obj.metadata.name, obj.status),
        )
        self.nodes = Informer[KubeNode, _Seen](
            client,
            NODES,
            KubeNode,
            clock=clock,
            rng=rng,
            project=_seen,
        )
        self.pods: Informer[KubePod, PodFacts] | None = None
        self._following: asyncio.Task[None] | None = None
        self.gpu_nodes.handlers.append(self._saw_gpu_node)
        self.nodes.handlers.append(self._saw_node)
        mandate.faults.append(self._silence)

    # what is seen

    def _saw_gpu_node(self, old: _Published | None, new: _Published | None) -> None:
        if new is not None:
            self.state.saw_gpu_node(new.name, new.status)
        elif old is not None:
            self.state.saw_gpu_node(old.name, None)

    def _saw_node(self, old: _Seen | None, new: _Seen | None) -> None:
        if new is not None:
            self.state.saw_node(new.name, new.labels, new.offered, new.room)
        elif old is not None:
            self.state.saw_node(old.name, None)

    def _saw_pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        self.state.saw_pod(old, new, self.clock.monotonic())
        if new is not None and old is not None and new.request and new.node and not old.node:
            self.meters.scheduled.inc()
            age = age_of(new.created, self.clock.wall())
            if age is not None:
                self.meters.e2e.observe(age)

    def _keep(self, pod: KubePod) -> PodFacts | None:
        """Nothing of pods that have ended: they hold nothing, and a cluster has many of them."""
        return None if pod.finished else self.facts.of(pod)

    def _silence(self) -> str | None:
        pods = self.pods
        if pods is None or not pods.synced.is_set():
            return "not ready: pods are not listed yet"
        for what, age in (("pods", pods.age()), ("nodes", self.nodes.age())):
            if age > SILENCE_SECONDS:
                return f"not ready: no word of {what} for {age:.0f} s"
        return None

    # loops

    async def follow_terms(self) -> None:
        """Read all pods anew at the start of every term of ours, before anything is placed in it."""
        await self.gpu_nodes.synced.wait()
        await self.nodes.synced.wait()
        self.state.rebuild()
        try:
            while True:
                term = self.mandate.term
                if term is not None and not self.mandate.is_current:
                    await self._begin(term)
                if self._following is not None and self._following.done():
                    await self._following  # raises what ended it
                await self.clock.sleep(TERM_SECONDS)
        finally:
            await self._stop_following()

    async def _begin(self, term: Hashable) -> None:
        began = self.clock.monotonic()
        await self._stop_following()
        self.state.restart()
        pods = Informer[KubePod, PodFacts](
            self.client, PODS, KubePod, clock=self.clock, rng=self.rng, project=self._keep
        )
        pods.handlers.append(self._saw_pod)
        self.pods, self._following = pods, asyncio.ensure_future(pods.run())
        synced = asyncio.ensure_future(pods.synced.wait())
        while not synced.done() and self.mandate.term == term and not self._following.done():
            await asyncio.wait(
                [synced, self._following], timeout=TERM_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        synced.cancel()
        if pods.synced.is_set() and self.mandate.rebuilt(term):
            seconds = round(self.clock.monotonic() - began, 3)
            _log.info(
                "ready", term=str(term), pods=len(pods.store), holding=len(self.state.holdings), seconds=seconds
            )

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError, TesseraError):
                await self._following
            self._following = None

    async def rebuild_fleet(self) -> None:
        """Put the fleet together anew when agents have published something."""
        while True:
            await self.clock.sleep(SETTLE_SECONDS)
            if self.state.stale and self.gpu_nodes.synced.is_set():
                began = self.clock.monotonic()
                self.state.rebuild()
                self.meters.rebuilds.inc()
                seconds = self.clock.monotonic() - began
                _log.info("fleet", nodes=len(self.state.fleet.nodes), devices=len(self.state.fleet.devices))
                await self.clock.sleep(seconds * SHARE_OF_REBUILDS)


class Chores:
    """What is done beside deciding, about twice a second."""

    def __init__(self, scheduler: Scheduler, teller: Teller, waker: Waker, resizer: Resizer, audit: Audit) -> None:
        self._scheduler, self._teller, self._waker, self._audit = scheduler, teller, waker, audit
        self._resizer = resizer
        self._meters = scheduler.meters

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._scheduler.clock.sleep(TICK_SECONDS)
            self._expire()
            notices = self._scheduler.state.take_notices()
            if self._scheduler.mandate.is_current:  # who does not lead sees the same, and says nothing
                self._tell(notices)
                self._check()
                self._meters.wakes.inc(await self._waker.turn())
                self._meters.resized.inc(await self._resizer.turn())

    def _expire(self) -> None:
        for held in self._scheduler.state.expire(self._scheduler.clock.monotonic()):
            self._meters.expired.inc()
            _log.info("reservation over", pod=held.placement.pod_key, node=held.node, phase=held.phase.value)

    def _tell(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            self._meters.notices[notice.kind.value].inc()
            _log.warning(notice.kind.value, pod=notice.facts.key, node=notice.facts.node, what=notice.text)
        self._teller.notices(notices)
        self._teller.tell()

    def _check(self) -> None:
        problems = self._audit.step()
        if problems:
            _log.error("the ledger is not what the pods say; rebuilt", problems=list(problems[:10]))
            self._meters.repairs.inc()
            self._scheduler.state.repair(self._scheduler.clock.monotonic())


async def scheduler(shell: Shell, options: Options) -> None:
    """Start everything."""
    rng = random.SystemRandom()
    client = ApiClient(options.cluster)
    shell.on_end("client", client.close)
    lease = LeaseWatch(client, options.lease, clock=shell.clock) if options.lease else None
    mandate = Mandate(lease, options.holder)
    state = State(POLICIES[options.policy], reservation=options.reservation)
    metrics, health = Metrics(), Health()
    meters = Meters(metrics)
    parts = Scheduler(client, mandate, state, meters, shell.clock, rng)
    recorder = Recorder(client, "scheduler", options.holder, clock=shell.clock)
    teller, audit = Teller(state, recorder, shell.clock), Audit(state)
    expose_state(metrics, state)
    metrics.gauge(
        "ledger_drift", "Differences between the ledger and the pods in the last check.", lambda: audit.drift
    )
    health.ready["shell"] = shell.ending
    health.ready["mandate"] = mandate.obstacle
    extender = Extender(state, parts.facts, mandate, client, shell.clock, meters, teller)
    resizer = Resizer(state, client, recorder, shell.clock)
    chores = Chores(parts, teller, Waker(state, client, options.namespace, shell.clock), resizer, audit)
    debug = routes(state, extender.refusals, Access(client, clock=shell.clock), shell.clock)
    side = await serve(health_app(health, metrics, *debug), options.metrics_bind, name="metrics")
    shell.on_end("metrics", side.close)
    shell.supervise("gpunodes", parts.gpu_nodes.run)
    shell.supervise("nodes", parts.nodes.run)
    if lease is not None:
        shell.supervise("lease", lease.run)
    shell.supervise("events", recorder.run, Fate.RESTART)
    shell.supervise("fleet", parts.rebuild_fleet)
    shell.supervise("pods", parts.follow_terms)
    shell.supervise("chores", chores.run)
    main = await serve(extender.answer, options.bind, name="extender")
    shell.on_end("extender", main.close)


def age_of(created: str, now: float) -> float | None:
    """Seconds from a time stamp of the API server to ``now`` (since 1970); ``None`` where it is none."""
    try:
        return max(0.0, now - dt.datetime.fromisoformat(created).timestamp())
    except ValueError:
        return None
