"""One run: the world, the load, the strikes, the judgement."""

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cluster.chaos.alarms import alarms, warnings
from cluster.chaos.caller import open_caller
from cluster.chaos.history import GPU_NODES, PODS, Change, Clock, Timeline
from cluster.chaos.judge import Judge, Violation, story
from cluster.chaos.kubelets import ENDED_AS_WANTED, Kubelets
from cluster.chaos.load import Load, Size
from cluster.chaos.manifests import WRONG_SHARE
from cluster.chaos.settle import Settled
from cluster.chaos.strikes import Strike, plan
from cluster.chaos.watchman import Watchman, contradictions
from cluster.chaos.world import PREFIX, World, a_world, resident_mib

READY_SECONDS: Final = 180.0
CALM_SECONDS: Final = 5.0
"""Load without strikes, before the first one and after the last one."""

EXCUSED_SECONDS: Final = 20.0
"""So long after a strike on agent, kubelet or runtime a pod may fail by the kubelet's own rules."""

OUR_WORD: Final = "tessera:"
NOBODY_ANSWERS: Final = "the node agent does not answer"
"""The only one of our refusals that a strike explains."""

NODE_PARTS: Final = ("agent", "kubelet", "containerd")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is. ``pace`` is in seconds between strikes."""

    seed: int
    kills: int
    nodes: int = 20
    pods: int = 120
    pace: float = 2.0
    real: bool = False


@dataclass(slots=True)
class Report:
    """What came of a run."""

    settings: Settings
    strikes: tuple[Strike, ...]
    violations: list[Violation] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        kills = Counter(strike.victim for strike in self.strikes if not strike.stall)
        stalls = Counter(strike.victim for strike in self.strikes if strike.stall)
        lines = [f"seed {self.settings.seed}: {kills.total()} kills, {stalls.total()} stalls"]
        lines += [f"  {name}: {kills[name]} kills, {stalls[name]} stalls" for name in sorted({*kills, *stalls})]
        lines += [f"  {name}: {value}" for name, value in self.figures.items()]
        lines += [f"  failed by the kubelet's rules after a strike: {text}" for text in self.excused]
        lines.append(f"  violations: {len(self.violations)}")
        for one in self.violations:
            lines.append(f"    {one.rule}: {one.subject} (revision {one.revision}): {one.text}")
        if self.violations:
            lines += self.stories
            flags = f"--nodes {self.settings.nodes} --pods {self.settings.pods} --pace {self.settings.pace}"
            command = f"--seed {self.settings.seed} --kills {self.settings.kills} {flags}"
            real = "" if self.settings.real else " --no-real-node"
            lines.append(f"  again: PYTHONPATH=tests python -m cluster.chaos {command}{real}")
        return "\n".join(lines)


class Background:
    """Load and kubelets, in a thread with a loop of its own; what breaks them is kept in ``failure``."""

    def __init__(self, world: World, seed: int, size: Size) -> None:
        self._world, self._seed, self._size = world, seed, size
        self._load_ends, self._kubelets_end = threading.Event(), threading.Event()
        self.load: Load | None = None
        self.answers: Counter[int] = Counter()
        self.failure: BaseException | None = None
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end_load(self) -> None:
        """Return when no more is asked of the cluster and its nodes are whole."""
        self._load_ends.set()
        self._idle.wait()

    def end(self) -> None:
        """End the kubelets too."""
        self._load_ends.set()
        self._kubelets_end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._both())
        except BaseException as error:  # noqa: BLE001 - of a thread: told where it is waited for
            self.failure = error
        finally:
            self._idle.set()

    async def _both(self) -> None:
        async with open_caller(self._world.plane) as caller:
            self.answers = caller.answers
            self.load = Load(caller, self._seed, self._size, self._world.inventories)
            kubelets = asyncio.create_task(Kubelets(caller, PREFIX).play())
            await self.load.run(self._load_ends)
            self._idle.set()
            while not self._kubelets_end.is_set() and not kubelets.done():
                await asyncio.sleep(0.2)
            kubelets.cancel()
            with suppress(asyncio.CancelledError):
                await kubelets


def carry_out(world: World, strikes: tuple[Strike, ...], say: Callable[[str], None]) -> None:
    """Strike and restore at the planned moments; what ends by itself in between is started again."""
    acts = sorted(
        [(strike.at, 0, strike) for strike in strikes] + [(strike.end, 1, strike) for strike in strikes],
        key=lambda act: act[:2],
    )
    begin = time.monotonic()
    for at, back, strike in acts:
        while time.monotonic() - begin < at:
            world.revive()
            time.sleep(max(0.0, min(0.2, at - (time.monotonic() - begin))))
        if back:
            world.restore(strike.victim, stall=strike.stall)
        else:
            say(str(strike))
            world.strike(strike.victim, stall=strike.stall)


def run(settings: Settings, folder: Path, say: Callable[[str], None]) -> Report:
    """A whole run."""
    with a_world(folder, settings.nodes, real=settings.real) as world:
        strikes = plan(settings.seed, settings.kills, sorted(world.victims), settings.pace)
        report = Report(settings, strikes)
        timeline = Timeline(world.etcd)
        watchman = Watchman(world.agent.state / "containers") if world.agent else None
        size = Size(world.nodes, settings.pods, world.image)
        background = Background(world, settings.seed, size)
        try:
            time.sleep(CALM_SECONDS)  # the load begins; nothing is waited for
            first = timeline.now()
            say(f"{len(strikes)} strikes in {strikes[-1].end:.0f} s")
            carry_out(world, strikes, say)
            up = _is_up(world, report)
            time.sleep(CALM_SECONDS)  # ditto
            last = timeline.now()
            say("the load ends")
            background.end_load()
            if up:
                _settle(world, report)
        finally:
            background.end()
            timeline.stop()
            if watchman:
                watchman.stop()
        report.figures |= {"seconds of load": round(last, 1)}
        _blame_load(report, background)
        judge_history(report, world, timeline.clock(), watchman, (first, last))
        _weigh(report, world)
        _hear(report, world)
    return report


def _is_up(world: World, report: Report) -> bool:
    try:
        world.await_ready(READY_SECONDS)
    except TimeoutError as late:
        report.violations.append(Violation("everything comes up again", "cluster", str(late)))
        return False
    return True


def _settle(world: World, report: Report) -> None:
    settled = Settled(world)
    settled.check()
    report.violations += settled.violations
    report.figures |= {f"took, {rule}": f"{seconds:.1f} s" for rule, seconds in settled.waits.items()}


def _blame_load(report: Report, background: Background) -> None:
    if background.failure is not None:
        report.violations.append(Violation("the load runs", "load", repr(background.failure)))
    load = background.load
    if load is not None:
        report.figures["decisions of the load"] = dict(load.counts)
        report.violations += [Violation("a right pod is admitted", t.split(":")[0], t) for t in load.refusals]
    report.figures["answers by status"] = dict(sorted(background.answers.items()))


def judge_history(
    report: Report, world: World, clock: Clock, watchman: Watchman | None, span: tuple[float, float]
) -> None:
    """Everything that etcd remembers, and what ran on the real node."""
    changes = world.etcd.history(GPU_NODES, PODS)
    with (world.plane.folder / "history.jsonl").open("w") as file:
        for change in changes:
            when = round(clock.at(change.revision), 1)
            file.write(json.dumps([change.revision, when, change.name, change.value]) + "\n")
    judge = Judge(clock)
    judge.feed(changes)
    report.violations += judge.violations
    judge_failures(report, judge, span[0])
    if watchman is not None:
        rules = {"nothing runs without the gate's yes": watchman.ungated}
        rules["a region is what was allocated"] = contradictions(watchman.seen, judge.tally.allocations)
        for rule, texts in rules.items():
            report.violations += [Violation(rule, "real node", text) for text in texts]
        report.figures["containers seen running behind the gate"] = len(watchman.gated)
    tally = judge.tally
    bound = sorted(at for at in tally.bound.values() if at <= span[1])
    gap, since = max(((later - sooner, sooner) for sooner, later in itertools.pairwise(bound)), default=(0.0, 0.0))
    report.figures |= {
        "pods created, bound, finished": f"{len(tally.created)}, {len(tally.bound)}, {len(tally.finished)}",
        "versions of objects judged": len(changes),
        "the longest time without a placement": f"{gap:.1f} s, {since - span[0]:.1f} s after the first strike",
    }
    _tell_stories(report, changes, clock)


def judge_failures(report: Report, judge: Judge, first: float) -> None:
    """A pod that failed otherwise than its life says failed because of us, unless the kubelet's rules took it
    after a strike on its node. What we refused in so many words is ours, and so is a wrong share.
    """
    windows = [
        (first + s.at - 1, first + s.end + EXCUSED_SECONDS) for s in report.strikes if s.victim in NODE_PARTS
    ]
    for pod, at in judge.tally.failed.values():
        if pod.reason == ENDED_AS_WANTED or pod.node.startswith(PREFIX):
            continue
        text = f"{pod.reason or 'no reason'} on {pod.node or 'no node'} at {at:.1f} s: {' '.join(pod.ends)}"
        ours = (OUR_WORD in text and NOBODY_ANSWERS not in text) or f"exit {WRONG_SHARE}" in pod.ends
        if not ours and any(begin <= at <= end for begin, end in windows):
            report.excused.append(f"{pod.key}: {text}")
        elif ours or not pod.leaving:  # one that is deleted before it starts is Failed on its way out
            report.violations.append(Violation("no pod fails because of us", pod.key, text))


def _tell_stories(report: Report, changes: list[Change], clock: Clock) -> None:
    told: set[str] = set()
    for one in report.violations:
        if one.subject not in told and len(told) < 8:
            told.add(one.subject)
            report.stories.append(f"  what happened to {one.subject}:")
            report.stories += story(one.subject, changes, clock, one.revision)


def _hear(report: Report, world: World) -> None:
    logs = {name: world.victims[name].log for name in world.ours}
    report.violations += [Violation("no error, no false alarm", t.split(":")[0], t) for t in alarms(logs)]
    report.figures["warnings of our processes"] = warnings(logs)


def _weigh(report: Report, world: World) -> None:
    report.figures["started again because they ended by themselves"] = dict(world.revived)
    report.figures["memory in MiB"] = {name: round(resident_mib(world.victims[name].pid)) for name in world.ours}
