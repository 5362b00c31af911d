"""``tessera simulate``: a cluster and a stream of pods in, what each policy makes of them out. Decides nothing."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import msgspec

from tessera import __version__
from tessera.allocator.moves import MOST_MOVES
from tessera.cli.columns import columns
from tessera.cli.exits import Exit
from tessera.cli.plan import FleetType
from tessera.cli.simulate_input import Found, Named, read_files
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.kernel import compiled_looker
from tessera.simulator.batch import Batch, all_runs
from tessera.simulator.files import Done, save_summary
from tessera.simulator.report.write import drawer, write_pictures, write_report
from tessera.simulator.result import SCHEMA, Churn, PolicyEntry, Run, Settings, Spare, Summary
from tessera.simulator.spare import spare_nodes
from tessera.simulator.study import Study
from tessera.simulator.summary import cluster_entry, policy_entries, trace_entry

MOST_SEEDS: Final = 1000
NAMES_SHOWN: Final = 8
_EPILOG: Final = """\b
Examples:
  tessera simulate --nodes 4x8xA100-SXM4-80GB --pods jobs.yaml
  tessera simulate --nodes nodes.csv --pods pods.csv --arrivals 1.3 --seeds 1-10 --policy fgd,best-fit --out study
  tessera simulate --nodes nodes.csv --pods pods.csv --sequence seq.npz --seed 42 --out run
  tessera simulate --nodes fleet.yaml --pods pods.csv --departures 0.9 --drain 8

\b
Exit codes: 0 done, 2 invalid input, 130 interrupted (the same call with --out goes on from there).
"""


class Policies(click.ParamType[tuple[str, ...]]):
    """Names of policies, joined by commas."""

    name = "P[,P...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, each once."""
        names = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        for name in names:
            if name not in POLICIES:
                self.fail(f"{name!r} is no policy; choose from {', '.join(POLICIES)}", param, ctx)
        return names


class Seeds(click.ParamType[tuple[int, ...]]):
    """Numbers and ranges, joined by commas."""

    name = "N[-M][,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The seeds in order, each once."""
        found: list[int] = []
        for part in str(value).split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
                self.fail(f"{part!r} is neither a number nor a range such as 42-51", param, ctx)
            if int(last or first) - int(first) >= MOST_SEEDS:
                self.fail(f"{part!r} has more than {MOST_SEEDS:,} seeds", param, ctx)
            found += range(int(first), int(last or first) + 1)
        return tuple(dict.fromkeys(found))


class Positive(click.ParamType[float]):
    """A number above 0 (and no NaN)."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


@click.command(epilog=_EPILOG)
@click.option("--nodes", "--fleet", "nodes", metavar="FLEET", type=FleetType(), required=True,
              help="The cluster: as for `tessera plan --fleet`.")  # fmt: skip
@click.option("-f", "--pods", "pods", multiple=True, metavar="PATH", type=click.Path(),
              help="The pods: openb pod lists, manifests in any dialect, folders. Repeatable.")  # fmt: skip
@click.option("--from-cluster-log", "log", metavar="LOG", type=click.Path(allow_dash=True),
              help="The pods that the log of a `tessera scheduler` tells of, in its order.")  # fmt: skip
@click.option("--sequence", metavar="FILE.npz", type=click.Path(path_type=Path),
              help="A recorded order of arrivals and nodes for each seed.")  # fmt: skip
@click.option(
    "--seed", "--seeds", "seeds", type=Seeds(), default="1", show_default=True, help="Runs of each policy."
)
@click.option("--arrivals", type=Positive(),
              help="Repeat or leave out random pods until they ask for so many times the cluster.")  # fmt: skip
@click.option("--departures", "load", metavar="LOAD", type=Positive(),
              help="Pods come and leave again; LOAD is the part of the cluster that they ask for.")  # fmt: skip
@click.option("--lifetimes", type=click.Choice(("exponential", "trace")), default="exponential", show_default=True,
              help="How long pods stay, with --departures.")  # fmt: skip
@click.option("--policy", "policies", type=Policies(), default=DEFAULT_POLICY, show_default=True,
              help="How to choose; several are compared.")  # fmt: skip
@click.option("--sample", metavar="N", type=click.IntRange(min=1),
              help="Look at so many nodes for one pod, as kube-scheduler does in large clusters.")  # fmt: skip
@click.option(
    "--failures", metavar="RATE", type=Positive(), help="Nodes that are lost per node and day, with --departures."
)
@click.option("--drain", metavar="K", type=click.IntRange(0, MOST_MOVES), default=0,
              help="Move up to K pods to make room for one that needs whole devices.")  # fmt: skip
@click.option("--give-back", is_flag=True, help="Say how many nodes could be given back, and which.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Where the files go.")
@click.option("--report", is_flag=True, help="Write a page with pictures, report.html, into --out.")
@click.option("--pictures", is_flag=True, help="Write the report's pictures as SVG and PNG, too.")
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), help="Processes at once; as many as there are processors."
)
def command(nodes: str, pods: tuple[str, ...], sequence: Path | None, seeds: tuple[int, ...], **how: Any) -> int:
    """Replay a cluster and a stream of pods under one policy or several, on a virtual clock.

    Places with the code that places in production. Equal input gives equal files, in any number of processes; a
    call that was interrupted goes on where it was, if it is called again.
    """
    out, jobs, give_back = how.pop("out"), how.pop("jobs"), how.pop("give_back")
    tell = _teller(out, report=how.pop("report"), pictures=how.pop("pictures"))
    named = Named(nodes, pods, how.pop("log"), sequence)
    _check(named, give_back=give_back, **how)
    found = read_files(named, seeds)
    study = Study(found.fleet.nodes, found.trace, seeds=seeds, sequence=found.sequence, **how)
    if sequence is not None:
        study = study.by_name()
    settings = _settings(study, named, give_back=give_back)
    with _folder(out) as folder:
        done = _performed(Batch(study, folder, found.digest), jobs or _processors(), kept=out is not None)
        spares = [spare_nodes(study.parts(r.seed, compiled_looker()), r) for r in study.runs() if give_back]
        summary = msgspec.structs.replace(_summary(study, settings, found, done), spares=tuple(spares))
        save_summary(folder, summary, done)
        tell(folder)
    click.echo("\n".join(_lines(summary)))
    return Exit.OK


def _teller(out: Path | None, *, report: bool, pictures: bool) -> Callable[[Path], None]:
    """What writes the report; made first, so that nothing is simulated in vain where it cannot.

    Raises:
        click.UsageError: there is no folder for it.
        UnavailableError: pictures are wanted and the machine cannot draw them.
    """
    if (report or pictures) and out is None:
        raise click.UsageError("--report and --pictures need a folder; add --out DIR")
    draw = drawer() if pictures else None

    def tell(folder: Path) -> None:
        if report:
            write_report(folder)
        if draw is not None:
            write_pictures(folder, draw)

    return tell


def _check(
    named: Named,
    *,
    give_back: bool,
    load: float | None,
    arrivals: float | None,
    failures: float | None,
    **_: Any,
) -> None:
    """Raises :class:`click.UsageError` where options contradict each other."""
    if not named.pods and not named.log:
        raise click.UsageError(
            "Missing option '--pods': name files of pods with it, or a log with --from-cluster-log"
        )
    if named.sequence is not None and (load is not None or arrivals is not None):
        raise click.UsageError("--sequence says what arrives; leave out --arrivals and --departures")
    if give_back and load is not None:
        raise click.UsageError("--give-back asks what is held at the end; leave out --departures")
    if failures is not None and load is None:
        raise click.UsageError("--failures needs a clock that runs; add --departures")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """The folder for the files; without one they are made and thrown away."""
    if out is not None:
        yield out
        return
    with TemporaryDirectory(prefix="tessera-simulate-") as made:
        yield Path(made)


def _performed(batch: Batch, jobs: int, *, kept: bool) -> tuple[Done, ...]:
    """All runs, with a bar on a terminal."""
    runs = len(batch.study.policies) * len(batch.study.seeds)
    label, hidden = f"{runs} run{'s' * (runs != 1)}", not sys.stderr.isatty()
    total = sum(len(batch.study.stream(seed).pods) for seed in batch.study.seeds) * len(batch.study.policies)
    try:
        with click.progressbar(length=total, label=label, file=sys.stderr, hidden=hidden) as bar:
            return all_runs(batch, jobs, bar.update)
    except KeyboardInterrupt:
        if kept:
            click.echo("interrupted: call it again with the same options to go on from here", err=True)
        raise


def _settings(study: Study, named: Named, *, give_back: bool) -> Settings:
    settings = Settings(
        command="",
        nodes=named.nodes,
        pods=" ".join([*named.pods, *([named.log] if named.log else [])]),
        policies=study.policies,
        seeds=study.seeds,
        sequence=None if named.sequence is None else str(named.sequence),
        arrivals=study.arrivals,
        load=study.load,
        lifetimes=None if study.load is None else study.lifetimes,
        sample=study.sample,
        failures=study.failures,
        drain=study.drain or None,
        give_back=give_back,
    )
    return _with_command(settings, named)


def _with_command(settings: Settings, named: Named) -> Settings:
    """The settings with the command line that repeats them."""
    words = ["tessera", "simulate", "--nodes", settings.nodes]
    for path in named.pods:
        words += ["--pods", path]
    options = {
        "--from-cluster-log": named.log,
        "--sequence": settings.sequence,
        "--seeds": ",".join(map(str, settings.seeds)),
        "--arrivals": settings.arrivals,
        "--departures": settings.load,
        "--lifetimes": settings.lifetimes,
        "--policy": ",".join(settings.policies),
        "--sample": settings.sample,
        "--failures": settings.failures,
        "--drain": settings.drain,
    }
    for flag, value in options.items():
        words += [] if value is None else [flag, str(value)]
    words += ["--give-back"] if settings.give_back else []
    return msgspec.structs.replace(settings, command=shlex.join(words))


def _summary(study: Study, settings: Settings, found: Found, done: Sequence[Done]) -> Summary:
    runs = tuple(one.run for one in done)
    return Summary(
        schema=SCHEMA,
        version=__version__,
        settings=settings,
        cluster=cluster_entry(study.nodes),
        trace=trace_entry(found.trace),
        policies=policy_entries(runs),
        runs=runs,
        notes=found.notes,
    )


_HEADER: Final = (
    "POLICY",
    "HELD AT 90 %",
    "AT 100 %",
    "AT THE END",
    "FIRST NO AT",
    "REJECTED",
    "BEFORE 100 %",
    "MULTI-DEVICE",
)


def _spare_lines(spare: Spare, nodes: int) -> Iterator[str]:
    what = (
        f"{spare.policy}, seed {spare.seed}: everything that was held is held on {spare.kept:,} of {nodes:,} nodes"
    )
    shown, more = spare.spare[:NAMES_SHOWN], len(spare.spare) - NAMES_SHOWN
    yield (
        what
        + (f"; to give back: {', '.join(shown)}" if shown else "")
        + (f" and {more:,} more" if more > 0 else "")
    )


_CHURN_HEADER: Final = (
    "POLICY", "SEED", "HELD OVER TIME", "REJECTED: DEMAND", "MULTI-DEVICE", "MOVES PER 100", "LOST", "HOMELESS",
)  # fmt: skip


def _lines(summary: Summary) -> Iterator[str]:
    """The policies side by side: means over the seeds."""
    cluster, trace = summary.cluster, summary.trace
    yield f"{cluster.nodes:,} nodes, {cluster.devices:,} devices; {trace.pods:,} pods of {trace.shapes:,} kinds"
    for note in summary.notes:
        yield f"note: {note}"
    yield ""
    churned = [_churn_cells(run, run.churn) for run in summary.runs if run.churn is not None]
    if churned:
        yield from columns(_CHURN_HEADER, churned, right=range(1, len(_CHURN_HEADER)))
    else:
        yield from columns(_HEADER, [_cells(entry) for entry in summary.policies], right=range(1, len(_HEADER)))
    if summary.spares:
        yield ""
    for spare in summary.spares:
        yield from _spare_lines(spare, cluster.nodes)


def _cells(entry: PolicyEntry) -> tuple[str, ...]:
    held = [entry.allocation.get(at) for at in ("90", "100")]
    return (
        entry.policy,
        *(f"{one.mean:.2f} %" if one else "-" for one in held),
        f"{entry.end.mean:.2f} %",
        f"{entry.first_rejection.mean:.2f} %" if entry.first_rejection else "never",
        f"{entry.rejected.mean:,.0f}",
        f"{entry.early.mean:,.0f}",
        f"{entry.many_accepted.mean:.1f} %" if entry.many_accepted else "-",
    )


def _churn_cells(run: Run, churn: Churn) -> tuple[str, ...]:
    return (
        run.policy, str(run.seed), f"{churn.allocation:.2f} %", f"{churn.rejected_demand:.2f} %",
        f"{churn.rejected_many:.2f} %", f"{churn.moves_per_100:.3f}", f"{churn.lost:,}", f"{churn.homeless:,}",
    )  # fmt: skip
