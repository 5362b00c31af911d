"""``tessera plan``: manifests and a fleet in, placements and reasons out. Decides nothing itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import yaml
from click.shell_completion import CompletionItem

from tessera.allocator.plan import plan
from tessera.cli.cluster_options import cluster_options
from tessera.cli.exits import Exit, say_problems
from tessera.cli.render import plan_lines
from tessera.cli.world import World, has_labels, read
from tessera.core.device import HOSTNAME_LABEL
from tessera.core.errors import Problem, Severity
from tessera.core.fleet import Fleet
from tessera.core.request import Pod
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.files import FLEET_FLAG, STDIN, THIS_MACHINE, load_fleet, read_texts
from tessera.runtime.kernel import compiled_looker
from tessera.vendors.models import MODELS
from tessera.wire.planfile import Plan, fleet_entry, plan_of

_NO_LABELS: Final = "the fleet gives no labels, so node selectors are not looked at"
FORMATS: Final = ("table", "wide", "json", "yaml")

_EPILOG: Final = """\b
FLEET is one of:
  fleet.yaml             a fleet file (docs/fleet-file.md)
  4x8xA100-SXM4-80GB     4 nodes with 8 devices each; 8xT4 is one node with 8
  2x8xH100+4x4xT4        several groups; MODEL:24Gi gives a model's memory
  nodes.csv              the node list of the public openb trace
  this-machine           what the driver of this machine reports

\b
Examples:
  tessera plan -f deploy.yaml --fleet 8xT4
  tessera plan -f manifests/ --fleet fleet.yaml --policy spread
  tessera plan -f jobs/*.yaml --fleet 2x8xH100 -o wide
  helm template ./chart | tessera plan -f - --fleet fleet.yaml -o json
  tessera plan -f deploy.yaml --cluster
  tessera plan --cluster --context staging

\b
Exit codes: 0 everything was placed, 1 something was rejected, or the cluster cannot be read, 2 invalid input.
"""


class FleetType(click.ParamType[str]):
    """The value of --fleet, which completes to files, and to models behind ``8x``."""

    name = "fleet"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Completions of a fleet that is being typed."""
        *_, group = incomplete.replace("+", ",").split(",")
        head = incomplete[: len(incomplete) - len(group)]
        counts, x, model = group.rpartition("x")
        if x and counts.replace("x", "").isdigit():
            return [CompletionItem(f"{head}{counts}x{name}") for name in _short_models() if name.startswith(model)]
        if incomplete and THIS_MACHINE.startswith(incomplete):
            return [CompletionItem(THIS_MACHINE, help="the devices of this machine")]
        return [CompletionItem(incomplete, type="file")]


def _short_models() -> Iterator[str]:
    """Names of the known models that a shell takes without quotes."""
    for model in MODELS:
        yield from (name for name in (model.name, *model.aliases) if " " not in name)


@click.command(epilog=_EPILOG)
@click.option(
    "-f", "--filename", "paths", multiple=True, metavar="PATH", type=click.Path(allow_dash=True),
    help="Manifests: a file, a folder (with all below it) or - for standard input. Repeatable.",
)  # fmt: skip
@click.argument("more", nargs=-1, metavar="[PATH]...", type=click.Path(allow_dash=True))
@click.option(FLEET_FLAG, metavar="FLEET", type=FleetType(), help="What to place on; see below.")
@click.option(
    "--cluster", is_flag=True,
    help="Place on a live cluster, beside what is held there now; without manifests, its waiting pods.",
)  # fmt: skip
@cluster_options
@click.option(
    "--policy", type=click.Choice(tuple(POLICIES)), default=DEFAULT_POLICY, show_default=True,
    help="How to choose among nodes and devices.",
)  # fmt: skip
@click.option(
    "-o", "--output", "style", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True,
    help="What to print.",
)  # fmt: skip
def command(paths: tuple[str, ...], more: tuple[str, ...], policy: str, style: str, **on: Any) -> int:
    """Place manifests on a fleet and explain every yes and every no.

    Reads pods and everything that makes pods (Deployment, StatefulSet, DaemonSet, Job, CronJob, ...) in any
    dialect: Tessera's own, HAMi's and TensorFusion's. Changes nothing, on a cluster neither.
    """
    named = (*paths, *more)
    world = _world(named, **on)
    made = _plan(world, policy)
    say_problems(made.problems)
    _show(made.document, style)
    return _exit(made.document)


def _world(
    named: Sequence[str], *, fleet: str | None, cluster: bool, kubeconfig: Path | None, context: str
) -> World:
    """What the options name. Raises :class:`click.UsageError` where they contradict each other."""
    if cluster:
        if fleet:
            raise click.UsageError(f"{FLEET_FLAG} and --cluster are two things to place on; leave one out")
        # The client takes a quarter of a second to import: only plans of a cluster pay for it.
        from tessera.cli.plan_cluster import live_world  # noqa: PLC0415

        return live_world(read_texts(named) if named else None, kubeconfig, context)
    if kubeconfig or context:
        raise click.UsageError("--kubeconfig and --context are for --cluster; add it")
    if not named:
        raise click.UsageError("name manifests with -f PATH (a file, a folder, or - for standard input)")
    if not fleet:
        raise click.UsageError(f"Missing option '{FLEET_FLAG}': say what to place on with it, or with --cluster")
    if STDIN in named and fleet == STDIN:
        raise click.UsageError("manifests and the fleet cannot both come from standard input; name a file for one")
    found = load_fleet(fleet)
    return World(fleet, found, read(read_texts(named), found))


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan and everything to say about its input on stderr."""

    document: Plan
    problems: tuple[Problem, ...]


def _plan(world: World, policy: str) -> _Made:
    """Place everything, but only where all of the input is valid."""
    found, manifests = world.fleet, world.manifests
    broken = any(problem.severity is Severity.ERROR for problem in manifests.problems)
    pods = () if broken else tuple(planned.pod for planned in manifests.pods)
    notes = found.notes
    if pods and not has_labels(found):
        unselected = tuple(without_unknown_labels(pod) for pod in pods)
        notes = notes if unselected == pods else (*notes, _NO_LABELS)
        pods = unselected
    document = plan_of(
        policy,
        fleet_entry(world.source, found.nodes, notes),
        found.nodes,
        manifests=manifests,
        verdicts=plan(pods, Fleet(found.nodes), POLICIES[policy], world.held, compiled_looker()),
        held=world.held,
    )
    return _Made(document, manifests.problems)


def without_unknown_labels(pod: Pod) -> Pod:
    """The pod without what it wants of labels that the fleet does not know."""
    known = tuple(pair for pair in pod.node_selector if pair[0] == HOSTNAME_LABEL)
    return pod if known == pod.node_selector else replace(pod, node_selector=known)


def _show(plan: Plan, style: str) -> None:
    match style:
        case "json":
            click.echo(msgspec.json.format(msgspec.json.encode(plan), indent=2))
        case "yaml":
            dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
            click.echo(yaml.dump(msgspec.to_builtins(plan), Dumper=dumper, sort_keys=False, width=120), nl=False)
        case _ if not plan.errors:
            click.echo("\n".join(plan_lines(plan, wide=style == "wide")))


def _exit(plan: Plan) -> Exit:
    if plan.errors:
        return Exit.INVALID
    return Exit.NO if plan.summary.rejected else Exit.OK
