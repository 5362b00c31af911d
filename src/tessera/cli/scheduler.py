"""``tessera scheduler``: the extender beside a stock kube-scheduler, and that kube-scheduler's configuration."""

import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.runtime.kube.config import load_config
from tessera.runtime.log import LEVELS, configure
from tessera.runtime.serve import parse_bind
from tessera.runtime.shell import run
from tessera.scheduler.app import Options, scheduler
from tessera.scheduler.state import RESERVATION_SECONDS
from tessera.scheduler.stock import DEFAULT_LEASE, DEFAULT_URL, Settings, render
from tessera.wire.kube.names import SCHEDULER_NAME

_EPILOG = """\b
Examples:
  tessera scheduler --leader-elect=false --kubeconfig ~/.kube/config
  tessera scheduler config --profile tessera-scheduler > kube-scheduler.yaml
"""


@click.group(invoke_without_command=True, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path),
              help="Cluster and user [default: a pod's account, $KUBECONFIG, ~/.kube/config].")  # fmt: skip
@click.option("--bind", default="127.0.0.1:8888", show_default=True, help="Where kube-scheduler asks.")
@click.option("--metrics-bind", default="0.0.0.0:8080", show_default=True,
              help="Health, metrics and debug endpoints.")  # fmt: skip
@click.option("--namespace", default="tessera-system", show_default=True, help="Where our own objects are.")
@click.option("--leader-elect", type=bool, default=True, show_default=True,
              help="Act only while the kube-scheduler beside us holds its lease.")  # fmt: skip
@click.option("--lease", default=DEFAULT_LEASE, show_default=True, help="That lease, as NAMESPACE/NAME.")
@click.option("--holder", help="Its name for itself, up to the underscore [default: this host's name].")
@click.option("--policy", type=click.Choice(tuple(POLICIES)), default=DEFAULT_POLICY, show_default=True,
              help="Which node and which device are preferred.")  # fmt: skip
@click.option("--reservation", type=click.FloatRange(1, 3600), default=RESERVATION_SECONDS, show_default=True,
              help="Seconds for which a chosen place waits for its binding.")  # fmt: skip
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.pass_context
def command(  # noqa: PLR0913 - one argument an option
    ctx: click.Context,
    *,
    kubeconfig: Path | None,
    bind: str,
    metrics_bind: str,
    namespace: str,
    leader_elect: bool,
    lease: str,
    holder: str | None,
    policy: str,
    reservation: float,
    log_level: str,
) -> int | None:
    """Decide for a stock kube-scheduler which node and which devices a pod gets.

    kube-scheduler asks over HTTP, as its extender; `tessera scheduler config` prints the configuration that it
    needs. What is held is rebuilt from the bound pods whenever this process or its term begins.
    """
    if ctx.invoked_subcommand is not None:
        return None
    configure(log_level)
    options = Options(
        cluster=load_config(kubeconfig, os.environ),
        bind=parse_bind(bind, "--bind"),
        metrics_bind=parse_bind(metrics_bind, "--metrics-bind"),
        namespace=namespace,
        lease=lease if leader_elect else "",
        holder=holder or socket.gethostname(),
        policy=policy,
        reservation=reservation,
    )
    return run(partial(scheduler, options=options), name="scheduler", uvloop=True)


@command.command("config")
@click.option("--profile", "profiles", multiple=True, default=(SCHEDULER_NAME,), show_default=True,
              help="Scheduler name that it answers to; may be repeated, also default-scheduler.")  # fmt: skip
@click.option(
    "--extender", "url", default=DEFAULT_URL, show_default=True, help="Where `tessera scheduler` listens."
)
@click.option("--lease", default=DEFAULT_LEASE, show_default=True, help="NAMESPACE/NAME; empty for no election.")
@click.option("--qps", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Requests a second to the API server.")  # fmt: skip
def config(profiles: Sequence[str], url: str, lease: str, qps: int) -> None:
    """Print the KubeSchedulerConfiguration of the kube-scheduler beside us."""
    click.echo(render(Settings(profiles, url, lease, qps)), nl=False)
