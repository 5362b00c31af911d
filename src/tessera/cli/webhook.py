"""``tessera webhook``: the admission webhook of a cluster, and the objects that put it before the API server."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import load_config
from tessera.runtime.log import LEVELS, configure
from tessera.runtime.serve import parse_bind
from tessera.runtime.shell import Shell, run
from tessera.runtime.tls import Lifetimes
from tessera.webhook.app import LINGER_SECONDS, Settings, start
from tessera.webhook.certificate import USUAL, Place
from tessera.wire.kube.names import SCHEDULER_NAME
from tessera.wire.kube.verdict import Options, Privileged
from tessera.wire.kube.webhooks import CONFIGURATION, Target, webhook_objects

_EPILOG: Final = """\b
Examples:
  tessera webhook
  tessera webhook --kubeconfig ~/.kube/config --host 10.0.0.7 --bind :9443
  tessera webhook config
"""


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that the process and its configuration must agree on."""
    options = (
        click.option("--namespace", default="tessera-system", show_default=True, help="Where Tessera runs."),
        click.option("--service", default="tessera-webhook", show_default=True,
                     help="The Service through which the API server calls."),
        click.option("--configuration", default=CONFIGURATION, show_default=True,
                     help="Name of the webhook configurations."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group(epilog=_EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kubeconfig", type=click.Path(path_type=Path),
              help="How to reach the API server [default: in-cluster, $KUBECONFIG, ~/.kube/config].")  # fmt: skip
@click.option("--bind", default="0.0.0.0:8443", show_default=True, help="Where to serve reviews (TLS).")
@click.option("--metrics-bind", default="0.0.0.0:8080", show_default=True,
              help="Where to serve /healthz, /readyz and /metrics.")  # fmt: skip
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@_shared
@click.option("--secret", default="tessera-webhook-tls", show_default=True,
              help="The Secret that holds the certificate.")  # fmt: skip
@click.option("--host", "hosts", multiple=True,
              help="A further name or address by which the API server calls (with a URL).")  # fmt: skip
@click.option("--scheduler-name", default=SCHEDULER_NAME, show_default=True,
              help="The scheduler that pods get; default-scheduler where Tessera runs as that.")  # fmt: skip
@click.option("--privileged", type=click.Choice([p.value for p in Privileged]), default=Privileged.REFUSE.value,
              show_default=True, help="What to do about a privileged container that asks for a part of a device."
              )  # fmt: skip
@click.option("--authority-lifetime", type=float, default=USUAL.authority, show_default=True,
              help="Seconds for which an authority is valid.")  # fmt: skip
@click.option("--certificate-lifetime", type=float, default=USUAL.leaf, show_default=True,
              help="Seconds for which a certificate is valid; replaced after two thirds.")  # fmt: skip
@click.option("--authority-notice", type=float, default=USUAL.settle, show_default=True,
              help="Seconds for which a new authority is trusted before it signs.")  # fmt: skip
@click.option("--linger", type=float, default=LINGER_SECONDS, show_default=True,
              help="Seconds to go on answering after SIGTERM.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int | None:
    """Admit pods: read what they ask for in any dialect, refuse what is wrong, and make the rest Tessera's.

    Keeps its own certificate in a Secret, and the API server's trust in it up to date.
    """
    if ctx.invoked_subcommand is None:
        configure(given["log_level"])
        return _serve(given)
    return None


def _serve(given: dict[str, Any]) -> int:
    settings = _settings(given)

    async def app(shell: Shell) -> None:
        await start(shell, ApiClient(load_config(given["kubeconfig"], os.environ)), settings)

    return run(app, name="webhook", uvloop=True)


def _settings(given: dict[str, Any]) -> Settings:
    """Raises :class:`click.UsageError` for lifetimes that contradict each other."""
    service, namespace = given["service"], given["namespace"]
    try:
        lifetimes = Lifetimes(
            given["authority_lifetime"], given["certificate_lifetime"], given["authority_notice"]
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return Settings(
        bind=parse_bind(given["bind"], "--bind"),
        metrics_bind=parse_bind(given["metrics_bind"], "--metrics-bind"),
        place=Place(namespace, given["secret"], given["configuration"]),
        names=(f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", *given["hosts"]),
        options=Options(given["scheduler_name"], Privileged(given["privileged"])),
        lifetimes=lifetimes,
        linger=given["linger"],
    )


@command.command("config")
@_shared
@click.option("--url", default="", help="Call this address instead of the Service, such as https://10.0.0.7:9443.")
@click.option("--exclude-namespace", "excluded", multiple=True, default=("kube-system",), show_default=True,
              help="A namespace whose pods are left alone; Tessera's own always is.")  # fmt: skip
def config(namespace: str, service: str, configuration: str, url: str, excluded: tuple[str, ...]) -> None:
    """Print the webhook configurations and the policy that protects Tessera's records, for `kubectl apply -f -`.

    They carry no certificate: the webhook adds the authorities that it trusts, and keeps them up to date.
    """
    target = Target(namespace, service, url=url, name=configuration, excluded=excluded)
    click.echo(yaml.safe_dump_all(webhook_objects(target), sort_keys=False, width=110), nl=False)
