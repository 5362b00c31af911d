"""``tessera plan``: manifests and a fleet in, placements and reasons out. Decides nothing itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import click
import msgspec
import yaml
from click.shell_completion import CompletionItem

from tessera.allocator.plan import plan
from tessera.cli.exits import Exit, say_problems
from tessera.cli.render import plan_lines
from tessera.core.device import HOSTNAME_LABEL
from tessera.core.errors import Problem, Severity
from tessera.core.fleet import Fleet
from tessera.core.request import Pod
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.files import FLEET_FLAG, STDIN, THIS_MACHINE, Texts, load_fleet, read_texts
from tessera.vendors.models import MODELS
from tessera.wire import openb
from tessera.wire.fleetfile import FleetInput
from tessera.wire.manifests import Manifests, read_manifests
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

\b
Exit codes: 0 everything was placed, 1 something was rejected, 2 invalid input.
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
@click.option(FLEET_FLAG, required=True, metavar="FLEET", type=FleetType(), help="What to place on; see below.")
@click.option(
    "--policy", type=click.Choice(tuple(POLICIES)), default=DEFAULT_POLICY, show_default=True,
    help="How to choose among nodes and devices.",
)  # fmt: skip
@click.option(
    "-o", "--output", "style", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True,
    help="What to print.",
)  # fmt: skip
def command(paths: tuple[str, ...], more: tuple[str, ...], fleet: str, policy: str, style: str) -> int:
    """Place manifests on a fleet and explain every yes and every no.

    Reads pods and everything that makes pods (Deployment, StatefulSet, DaemonSet, Job, CronJob, ...) in any
    dialect: Tessera's own, HAMi's and TensorFusion's. Needs no cluster and changes nothing.
    """
    named = (*paths, *more)
    if not named:
        raise click.UsageError("name manifests with -f PATH (a file, a folder, or - for standard input)")
    if STDIN in named and fleet == STDIN:
        raise click.UsageError("manifests and the fleet cannot both come from standard input; name a file for one")
    made = _plan(named, fleet, policy)
    say_problems(made.problems)
    _show(made.document, style)
    return _exit(made.document)


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan and everything to say about its input on stderr."""

    document: Plan
    problems: tuple[Problem, ...]


def _plan(paths: Sequence[str], fleet: str, policy: str) -> _Made:
    """Read everything, and place it only where all of it is valid."""
    found = load_fleet(fleet)
    manifests = _read(read_texts(paths), found)
    broken = any(problem.severity is Severity.ERROR for problem in manifests.problems)
    pods = () if broken else tuple(planned.pod for planned in manifests.pods)
    notes = found.notes
    if pods and not has_labels(found):
        unselected = tuple(without_unknown_labels(pod) for pod in pods)
        notes = notes if unselected == pods else (*notes, _NO_LABELS)
        pods = unselected
    document = plan_of(
        policy,
        fleet_entry(fleet, found.nodes, notes),
        found.nodes,
        manifests=manifests,
        verdicts=plan(pods, Fleet(found.nodes), POLICIES[policy]),
    )
    return _Made(document, manifests.problems)


def has_labels(fleet: FleetInput) -> bool:
    """Whether the fleet says anything of labels beyond each node's own name."""
    return any(key != HOSTNAME_LABEL for node in fleet.nodes for key in node.labels)


def without_unknown_labels(pod: Pod) -> Pod:
    """The pod without what it wants of labels that the fleet does not know."""
    known = tuple(pair for pair in pod.node_selector if pair[0] == HOSTNAME_LABEL)
    return pod if known == pod.node_selector else replace(pod, node_selector=known)


def _read(read: Texts, fleet: FleetInput) -> Manifests:
    """All pods of all texts, manifests before traces, with every problem of the input, the fleet's first."""
    traces = [
        (source, text) for source, text in read.texts if source.endswith(".csv") or openb.looks_like_pods(text)
    ]
    texts = [pair for pair in read.texts if pair not in traces]
    labelled = has_labels(fleet)
    manifests = read_manifests(texts, [(node.name, node.labels if labelled else None) for node in fleet.nodes])
    listed = [openb.read_pods(source, text) for source, text in traces]
    pods = [*manifests.pods, *(planned for trace in listed for planned in trace.pods)]
    problems = [
        *fleet.problems,
        *read.problems,
        *manifests.problems,
        *(problem for trace in listed for problem in trace.problems),
    ]
    return replace(manifests, pods=tuple(pods), problems=tuple(problems))


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
