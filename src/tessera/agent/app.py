"""The agent's wiring: what runs, in which order it starts, what happens when a part of it dies.

The gate answers before anything else is up: it needs the disk alone. Ticket devices are advertised once the pods
of the node are known, so that the kubelet never asks somebody who cannot know.
"""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from grpclib.server import Server

from tessera.agent.allocate import Allocate, AllocateError, Allocator
from tessera.agent.answer import Answer
from tessera.agent.cdi import remove_spec
from tessera.agent.cgroups import OWN_TREE, CgroupTree
from tessera.agent.fence_alarm import FenceAlarm
from tessera.agent.fence_figures import declare_fences
from tessera.agent.fences import Fences, TierPolicy
from tessera.agent.fencing import FENCES_SECONDS, FenceKeeper
from tessera.agent.figures import Readings, declare_busy, declare_containers, declare_devices, gate_histogram
from tessera.agent.foreign import PodResources
from tessera.agent.gate import Gatekeeper, bundles_below, serve_gate
from tessera.agent.governor import DEFAULT_FREEZE, Governor, Memory, MemoryOf
from tessera.agent.grant import ContainerGrant
from tessera.agent.health import QUIET_SECONDS, FaultBook
from tessera.agent.layout import LIBRARY_NAME, PLUGIN_DIRECTORY, POD_RESOURCES, STATE, Layout
from tessera.agent.machine import Machine
from tessera.agent.node import NodeOptions, NodeState
from tessera.agent.payload import LibraryChecks, install_simulator
from tessera.agent.plugin import PluginServers, Readiness, ticket_plugins
from tessera.agent.pods import NodePods, on_node
from tessera.agent.publish import NODE_LABEL, NodeObject, Published, Publisher
from tessera.agent.reclaim import STOP, Reclaimer
from tessera.agent.resize import Resizer
from tessera.agent.rounds import (
    DEVICES_SECONDS,
    FAULTS_SECONDS,
    FOREIGN_SECONDS,
    HEAP_SECONDS,
    PATROL_SECONDS,
    SWEEP_SECONDS,
    FaultRound,
    Patrol,
    ProcessEyes,
    Sweeper,
    look_for_foreign,
    repeat,
)
from tessera.agent.running import Running
from tessera.agent.store import ShareStore
from tessera.agent.ticks import Ticker
from tessera.agent.unseen import UnseenMemory
from tessera.agent.upgrade import upgrade_of
from tessera.agent.verdict import Expected
from tessera.core.errors import TesseraError
from tessera.core.priority import Priority
from tessera.core.units import BYTES_PER_MIB
from tessera.runtime.governing import RECLAIM
from tessera.runtime.heap import give_back
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.kube.events import Recorder
from tessera.runtime.kube.informer import Informer
from tessera.runtime.kube.port import GPU_NODES, GPUS, NODES, PODS, ApiError, KubeClient, Select
from tessera.runtime.kube.slim import SlimClient
from tessera.runtime.log import logger
from tessera.runtime.metrics import Metrics
from tessera.runtime.serve import Bind, Health, health_answers, serve
from tessera.runtime.shell import Fate, Shell
from tessera.vendors.faults import FaultCode
from tessera.vendors.nvidia_xid import UNKNOWN, XIDS
from tessera.vendors.registry import VENDORS
from tessera.wire.kube.objects import KubePod

COMPONENT: Final = "agent"
FLUSH_SECONDS: Final = 1.0

_log: Final = logger("agent")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the flags say. ``description`` is a simulated machine's; ``tools_socket`` answers pod resources."""

    node: str
    metrics: Bind
    options: NodeOptions
    description: Path | None = None
    state: Path = STATE
    plugin_directory: Path = PLUGIN_DIRECTORY
    pod_resources: Path = POD_RESOURCES
    tools_socket: Path | None = None
    kill: bool = False
    reclaim: str = STOP
    """What happens to a share beyond its request when one within its own finds no memory."""
    freeze: Mapping[Priority, float] = field(default_factory=lambda: DEFAULT_FREEZE)
    """Seconds without a launch after which a share may be frozen, by priority."""
    forget_faults: bool = False
    faults: Sequence[FaultCode] = XIDS
    quiet: float = QUIET_SECONDS
    root: Path = Path("/")
    """Where the node's own root directory is seen."""
    context_mib: int = 0
    """What a first context is charged where a process cannot measure it."""
    tier: TierPolicy = TierPolicy.AUTO
    cgroup_root: Path | None = None
    """Where the node's cgroup v2 tree is seen, if not below ``root``."""


@dataclass(slots=True)
class Parts:
    """The agent's objects; made once by :func:`assemble`."""

    settings: Settings
    client: KubeClient
    layout: Layout
    store: ShareStore
    machine: Machine
    node: NodeState
    informer: Informer[KubePod, KubePod]
    pods: NodePods
    recorder: Recorder
    resizer: Resizer
    publisher: Publisher
    watch: Informer[Published, Published]
    host: Informer[NodeObject, NodeObject]
    keeper: FenceKeeper
    gatekeeper: Gatekeeper
    metrics: Metrics = field(default_factory=Metrics)


def assemble(settings: Settings, client: KubeClient, shell: Shell) -> Parts:
    """Every object that the agent is made of, not started."""
    clock, chance = shell.clock, random.Random()  # noqa: S311 - spreads writes, guards nothing
    settings.state.mkdir(parents=True, exist_ok=True)
    layout = Layout(settings.state.resolve())
    policy = RECLAIM if settings.reclaim == STOP else 0
    store = ShareStore(layout, policy, context_bytes=settings.context_mib * BYTES_PER_MIB)
    machine = Machine(settings.description, cache(lambda: install_simulator(layout)), settings.root)
    book = FaultBook(settings.faults, UNKNOWN, settings.quiet)
    tree = _tree(settings)
    fences = Fences(machine, tree, settings.tier)
    node = NodeState(machine, fences, layout, book, settings.options, clock)
    informer: Informer[KubePod, KubePod] = Informer(
        client, PODS, KubePod, on_node(settings.node), clock=clock, rng=chance
    )
    pods = NodePods(client, informer, settings.node)
    publisher = Publisher(client, settings.node, node.status, clock, chance)
    node.changed = publisher.changed
    watch: Informer[Published, Published] = Informer(
        client, GPU_NODES, Published, Select(fields=f"metadata.name={settings.node}"), clock=clock, rng=chance
    )
    watch.handlers.append(publisher.noticed)
    host: Informer[NodeObject, NodeObject] = Informer(
        client, NODES, NodeObject, Select(fields=f"metadata.name={settings.node}"), clock=clock, rng=chance
    )
    host.handlers.append(lambda _, new: _learn_node(node, new, shell))
    keeper = FenceKeeper(store, fences, tree)
    libraries = LibraryChecks(layout)
    gatekeeper = Gatekeeper(
        store,
        bundles_below(settings.root),
        lambda grant: _expected(grant, layout, node, libraries),
        pods.allocated,
        node.known_nodes,
        keeper.admit,
    )
    recorder = Recorder(client, COMPONENT, settings.node, clock=clock, chance=chance)
    resizer = Resizer(store, pods, recorder)
    resizer.changed.append(keeper.follow)
    informer.handlers.append(resizer.seen)
    return Parts(
        settings=settings,
        client=client,
        layout=layout,
        store=store,
        machine=machine,
        node=node,
        informer=informer,
        pods=pods,
        recorder=recorder,
        resizer=resizer,
        publisher=publisher,
        watch=watch,
        host=host,
        keeper=keeper,
        gatekeeper=gatekeeper,
    )


def _tree(settings: Settings) -> CgroupTree:
    if settings.cgroup_root is not None:
        return CgroupTree(settings.cgroup_root)
    return CgroupTree(settings.root / OWN_TREE.relative_to("/"), OWN_TREE)


def _learn_node(node: NodeState, found: NodeObject | None, shell: Shell) -> None:
    """What the node's own object says of its container runtime and of its driver."""
    if found is not None:
        node.learn_runtime(found.status.node_info.container_runtime_version)
        node.learn_upgrade(upgrade_of(found.metadata.labels))
        _end_if_stale(node, shell)


def _expected(
    grant: ContainerGrant, layout: Layout, node: NodeState, libraries: LibraryChecks
) -> tuple[Expected, str]:
    library = layout.libraries / grant.library / LIBRARY_NAME
    expected = Expected(
        grant=grant,
        region=str(layout.region(grant.uid, grant.container)),
        library=str(library),
        preload=str(library.with_name("ld.so.preload")),
        nodes=node.nodes_of(device.uuid for device in grant.devices),
    )
    return expected, libraries.fault(grant.library)


async def agent(shell: Shell, settings: Settings, config: ClusterConfig) -> None:
    """Start the agent; returns once it runs."""
    client = SlimClient(config)
    shell.on_end("client", client.close)
    parts = assemble(settings, client, shell)
    await start(parts, shell)
    # What is there now stays: a full collection would look at all of it, and the gate waits meanwhile.
    gc.collect()
    gc.freeze()


async def start(parts: Parts, shell: Shell) -> None:
    """Start everything, in the order of need."""
    settings, node, clock = parts.settings, parts.node, shell.clock
    node.recall_faults(forget=settings.forget_faults)
    node.look()
    shell.on_end("machine", _closing(parts.machine.close))
    gate = await serve_gate(settings.options.gate_socket, parts.gatekeeper.judge)
    shell.on_end("gate", _closing(gate.close))
    shell.supervise("pods", parts.informer.run, Fate.RESTART)
    shell.supervise("events", parts.recorder.run, Fate.RESTART)
    shell.on_end("last events", lambda: _flushed(parts.recorder))
    shell.supervise("devices", lambda: repeat(lambda: _look(node, shell), DEVICES_SECONDS, clock), Fate.RESTART)
    shell.supervise("node", parts.host.run, Fate.RESTART)
    shell.supervise("publish", parts.publisher.run, Fate.RESTART)
    shell.supervise("published", parts.watch.run, Fate.RESTART)
    outcomes, servers, readiness = _plugins(parts, shell)
    shell.on_end("plugins", servers.close)  # after the task that would serve them anew has ended
    shell.supervise("plugins", lambda: _serve_plugins(parts, servers, readiness), Fate.RESTART)
    patrol, faults = _rounds(parts, shell)
    ticker = _watch(parts, shell, patrol)
    if settings.tools_socket is not None:
        await _serve_tools(parts, settings.tools_socket, shell)
    readings = Readings(parts.store, parts.pods, clock)
    declare_containers(parts.metrics, readings, patrol.isolation)
    declare_busy(parts.metrics, readings, ticker.busy_seconds)
    declare_fences(parts.metrics, readings, parts.keeper, patrol.isolation)
    _declare(parts, outcomes, servers, patrol, faults)
    answers = health_answers(_health(parts, servers, shell), parts.metrics)
    side = await serve(answers, settings.metrics, name="metrics")
    shell.on_end("metrics", side.close)


async def _flushed(recorder: Recorder) -> None:
    """What was seen last is told, where the API server takes it at once."""
    with suppress(TimeoutError):
        await asyncio.wait_for(recorder.flush(), FLUSH_SECONDS)


def _closing(close: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def ending() -> None:
        close()

    return ending


def _look(node: NodeState, shell: Shell) -> None:
    node.look()
    _end_if_stale(node, shell)


def _end_if_stale(node: NodeState, shell: Shell) -> None:
    """A library speaks with the driver that it came with: only a new process sees the next one."""
    if node.is_stale:
        _log.error("driver was replaced", then="the process ends, so that the next one sees the new driver")
        shell.stop(1)


Outcomes = dict[str, int]


def _plugins(parts: Parts, shell: Shell) -> tuple[Outcomes, PluginServers, Readiness]:
    allocator = Allocator(parts.settings.node, parts.pods, parts.store, parts.node.offer, shell.clock)
    outcomes: Outcomes = {"allocated": 0, "refused": 0}
    readiness = Readiness(ready=parts.node.is_ready)
    before = parts.node.changed

    def changed() -> None:
        readiness.set(ready=parts.node.is_ready)
        before()

    parts.node.changed = changed
    plugins = ticket_plugins(_counting(allocator.allocate, outcomes), readiness)
    return outcomes, PluginServers(parts.settings.plugin_directory, plugins, shell.clock), readiness


def _counting(allocate: Allocate, outcomes: Outcomes) -> Allocate:
    async def counted(resource: str, quantity: int) -> Answer:
        try:
            answer = await allocate(resource, quantity)
        except AllocateError:
            outcomes["refused"] += 1
            raise
        outcomes["allocated"] += 1
        return answer

    return counted


async def _serve_plugins(parts: Parts, servers: PluginServers, readiness: Readiness) -> None:
    await parts.informer.synced.wait()
    readiness.set(ready=parts.node.is_ready)
    await servers.run()


def _rounds(parts: Parts, shell: Shell) -> tuple[Patrol, FaultRound]:
    settings, node, clock = parts.settings, parts.node, shell.clock
    patrol = Patrol(parts.machine, parts.store, parts.pods, parts.recorder, node, kill=settings.kill)
    faults = FaultRound(node, parts.store, parts.pods, parts.recorder)
    sweeper = Sweeper(parts.store, parts.layout, parts.pods, node, parts.keeper)
    patrol.is_fenced = parts.keeper.is_fenced
    parts.keeper.told = FenceAlarm(parts.pods, parts.recorder, patrol.end if settings.kill else None).tell

    async def foreign() -> None:
        while True:
            await look_for_foreign(settings.pod_resources, node)
            await clock.sleep(FOREIGN_SECONDS)

    async def sweep() -> None:
        await parts.informer.synced.wait()
        for digest in sweeper.sweep_libraries():
            _log.info("removed limiter", digest=digest)
        while True:
            try:
                await sweeper.look()
            except TesseraError as error:
                _log.warning("not swept", error=str(error))
            await clock.sleep(SWEEP_SECONDS)

    shell.supervise("faults", lambda: repeat(faults.look, FAULTS_SECONDS, clock), Fate.RESTART)
    shell.supervise("fences", lambda: repeat(parts.keeper.look, FENCES_SECONDS, clock), Fate.RESTART)
    shell.supervise("foreign", foreign, Fate.RESTART)
    shell.supervise("sweep", sweep, Fate.RESTART)
    shell.supervise("heap", lambda: repeat(give_back, HEAP_SECONDS, clock), Fate.RESTART)
    return patrol, faults


def _watch(parts: Parts, shell: Shell, patrol: Patrol) -> Ticker:
    """The patrol, and what acts on whom it found."""
    clock = shell.clock
    running = Running(parts.store.shares, patrol.container_id, ProcessEyes())
    reclaimer = Reclaimer(running, parts.machine.processes, parts.pods, parts.recorder, parts.settings.reclaim)
    governor = Governor(_memory_of(parts), reclaimer.meet, parts.settings.freeze)
    ticker = Ticker(parts.machine, running, governor)
    parts.metrics.matrix(
        "shortages_total",
        "Times that a share within its request found its device full of others' excess, by what was done.",
        ("outcome",),
        lambda: [((outcome,), count) for outcome, count in reclaimer.counts.items()],
        counter=True,
    )
    unseen = UnseenMemory(running, parts.machine.processes)

    def look() -> None:
        parts.resizer.look()
        patrol.look()
        running.learn(patrol.using)
        ticker.learn()
        unseen.look()

    shell.supervise("patrol", lambda: repeat(look, PATROL_SECONDS, clock), Fate.RESTART)
    shell.supervise("ticks", lambda: ticker.run(clock), Fate.RESTART)
    shell.on_end("regions", _closing(running.close))
    return ticker


def _memory_of(parts: Parts) -> MemoryOf:
    def memory(uuid: str) -> Memory | None:
        found = next((device for device in parts.node.devices() if device.uuid == uuid), None)
        used = parts.machine.reading(uuid).used_bytes
        return None if found is None else Memory(found.memory_mib * BYTES_PER_MIB, used)

    return memory


async def _serve_tools(parts: Parts, socket: Path, shell: Shell) -> None:
    """The kubelet's pod resources with devices in place of tickets, for monitoring tools."""

    def shares() -> Mapping[tuple[str, str, str], Sequence[str]]:
        return {
            (s.grant.namespace, s.grant.pod, s.grant.container): [d.uuid for d in s.grant.devices]
            for s in parts.store.shares()
        }

    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server = Server([PodResources(parts.settings.pod_resources, shares, VENDORS[0].hami.count)])
    await server.start(path=str(socket))
    shell.on_end("tools", _closing(server.close))


def _declare(parts: Parts, outcomes: Outcomes, servers: PluginServers, patrol: Patrol, faults: FaultRound) -> None:
    """The metrics beside those that the parts made themselves."""
    metrics, gatekeeper = parts.metrics, parts.gatekeeper
    declare_devices(metrics, parts.node, parts.machine)
    gatekeeper.seconds = gate_histogram(metrics)
    metrics.matrix(
        "allocations_total",
        "Containers that asked for their share, by outcome.",
        ("outcome",),
        lambda: [((outcome,), count) for outcome, count in outcomes.items()],
        counter=True,
    )
    metrics.matrix(
        "gate_answers_total",
        "Containers that asked the gate, by answer.",
        ("answer",),
        lambda: [((answer,), count) for answer, count in gatekeeper.answers.items()],
        counter=True,
    )
    metrics.matrix(
        "isolation_absent",
        "Processes and containers now that no limit holds for, by how.",
        ("breach",),
        lambda: [((breach.value,), count) for breach, count in patrol.counts.items()],
    )
    metrics.matrix(
        "device_faults_total",
        "Faults that devices reported.",
        ("device", "code"),
        lambda: [(labels, count) for labels, count in faults.counts.items()],
        counter=True,
    )
    metrics.gauge("killed_processes", "Processes that were ended because no limit held.", lambda: patrol.killed)
    metrics.gauge("plugin_registrations", "How often the kubelet was told of us.", lambda: servers.registrations)


def _health(parts: Parts, servers: PluginServers, shell: Shell) -> Health:
    health = Health()
    informer, publisher = parts.informer, parts.publisher
    health.ready["shell"] = shell.ending
    health.ready["pods"] = lambda: None if informer.synced.is_set() else f"not listed yet: {informer.error}"
    health.ready["kubelet"] = lambda: None if servers.registered else "not registered with the kubelet"
    health.ready["published"] = lambda: None if publisher.published is not None else "inventory is not published"
    health.ready["shares"] = lambda: None if parts.node.refusal is None else str(parts.node.refusal)
    return health


async def uninstall(client: KubeClient, node: str, cdi_directory: Path) -> None:
    """Take away what the agent leaves outside of its state directory: the CDI spec and the node's objects.

    Raises :class:`ApiError` or :class:`ConnectionLostError`.
    """
    remove_spec(cdi_directory)
    gpus = await client.list(GPUS, NodeObject, Select(labels=f"{NODE_LABEL}={node}"))
    for kind, name in (*((GPUS, gpu.metadata.name) for gpu in gpus.items), (GPU_NODES, node)):
        try:
            await client.delete(kind, name)
        except ApiError as error:
            if error.code != 404:
                raise
