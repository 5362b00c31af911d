"""``kubectl tessera``: devices, accounts and use of a cluster; ``tessera kubectl`` is the same.

Everything but ``resize`` only reads; that writes a wish on a pod.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import click
import msgspec
import yaml
from click.shell_completion import CompletionItem, ShellComplete

from tessera.cli.cluster_lines import account_lines, changed, device_lines, top_lines
from tessera.cli.cluster_options import cluster_options
from tessera.cli.connection import ask, config_of
from tessera.cli.exits import Exit, exit_code
from tessera.cluster.account import Account, account_of
from tessera.cluster.devices import Devices, devices_of
from tessera.cluster.observe import observe
from tessera.cluster.resize import Answer, wish
from tessera.cluster.subject import node_names, pod_names, pod_subject, seen_pod, selected_nodes
from tessera.cluster.top import Top, top_devices, top_pods
from tessera.cluster.usage import used_now
from tessera.core.errors import TesseraError
from tessera.runtime.clock import SystemClock
from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig

PROGRAM: Final = "kubectl tessera"
STYLES: Final = ("table", "wide", "json", "yaml")
NO_FILES: Final = ":4"
"""What kubectl reads as "do not complete file names". Source: cobra, ShellCompDirectiveNoFileComp."""

_WHAT: Final = {"pod": "pods", "po": "pods", "device": "devices", "gpu": "devices", "gpus": "devices"}
"""What people type instead, as with `kubectl top pod`."""

Document = Account | Devices | Top

_EPILOG: Final = """\b
Examples:
  kubectl tessera devices
  kubectl tessera devices node-1 -o wide
  kubectl tessera explain my-pod -n research
  kubectl tessera top pods -A
  kubectl tessera top devices --once -o json
  kubectl tessera resize my-pod --memory 12Gi --compute 30%
  tessera kubectl devices      where kubectl, or the plugin on its PATH, is missing

\b
Exit codes: 0 done, 1 the cluster or a right is missing, 2 invalid input or no such object.
"""


class What(click.Choice[str]):
    """Pods or devices, in the singular too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The plural of what was typed."""
        return super().convert(_WHAT.get(value, value), param, ctx)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that stand before the verb or behind it, as kubectl's do."""
    namespace = click.option("-n", "--namespace", default="", metavar="NAME", help="The pods' namespace.")
    return cluster_options(namespace(command))


def _style(*, watch: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        if watch:
            command = click.option(
                "-w", "--watch", is_flag=True, help="Look again and again; print what changed."
            )(command)
        command = click.option("--interval", type=click.FloatRange(1, 3600), default=5.0, show_default=True,
                               metavar="SECONDS", help="Time between two looks.")(command)  # fmt: skip
        return click.option("-o", "--output", "style", type=click.Choice(STYLES), default=STYLES[0],
                            show_default=True, help="What to print.")(command)  # fmt: skip

    return add


@click.group(name=PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@_options
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Look at a cluster's devices: who holds and uses them, and why a pod is where it is or waits.

    Needs the right to list pods, nodes and gpunodes; `top` also to get pods/proxy in Tessera's own namespace, and
    `resize`, which alone changes something, to patch pods.
    """
    ctx.obj = given


def _config(ctx: click.Context, given: Mapping[str, Any]) -> tuple[ClusterConfig, str]:
    """The cluster, and the namespace that was named or is the context's own."""
    before: Mapping[str, Any] = ctx.obj or {}
    chosen = {name: given.get(name) or before.get(name) for name in ("kubeconfig", "context", "namespace")}
    config = config_of(chosen["kubeconfig"], chosen["context"] or "")
    return config, chosen["namespace"] or config.namespace


def _completed(question: Callable[[ApiClient, str], Awaitable[list[str]]]) -> Callable[..., list[CompletionItem]]:
    """Completion by names that the cluster has; none where it cannot be asked."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            config, namespace = _config(ctx, ctx.params)
            names = ask(config, lambda client: question(client, namespace))
        except TesseraError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


@command.command("devices")
@click.argument("node", required=False, shell_complete=_completed(lambda client, _: node_names(client)))
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only nodes with these labels.")
@click.option("-A", "--all-namespaces", is_flag=True, hidden=True, expose_value=False)
@_style(watch=True)
@_options
@click.pass_context
def devices(ctx: click.Context, /, **given: Any) -> int:
    """List the cluster's devices, or those of NODE: what is allocated, what is free, who holds it.

    COMPUTE is the part that is allocated. Under the table stands what is not as it should be.
    """
    config, _ = _config(ctx, given)

    async def question(client: ApiClient) -> Devices:
        names = await selected_nodes(client, given["node"], given["selector"])
        return devices_of(await observe(client), names)

    wide = given["style"] == "wide"
    return _show(given, lambda: ask(config, question), lambda found: device_lines(found, wide=wide))


@command.command("explain")
@click.argument("pod", shell_complete=_completed(pod_names))
@_style(watch=True)
@_options
@click.pass_context
def explain(ctx: click.Context, /, **given: Any) -> int:
    """Explain POD: what it asked, where it is with which devices, or why it waits and what would help."""
    config, default = _config(ctx, given)
    namespace, name = pod_subject(given["pod"], default)

    async def question(client: ApiClient) -> Account:
        pod, facts = await seen_pod(client, namespace, name)
        return account_of(await observe(client), pod, facts)

    wide = given["style"] == "wide"
    return _show(given, lambda: ask(config, question), lambda account: account_lines(account, wide=wide))


@command.command("top")
@click.argument("what", type=What(("pods", "devices")), default="pods")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Pods of all namespaces.")
@click.option("--tessera-namespace", default="tessera-system", show_default=True, help="Where the agents run.")
@click.option("--once", is_flag=True, help="Print one look and end; also what happens where there is no terminal.")
@_style(watch=False)
@_options
@click.pass_context
def top(ctx: click.Context, /, **given: Any) -> int:
    """Show what pods, or devices, use of what they may. What no agent tells is `-`, never 0.

    The agents are asked through the API server. On a terminal the view is drawn again until Ctrl-C.
    """
    config, namespace = _config(ctx, given)
    of_devices = given["what"] == "devices"

    async def question(client: ApiClient) -> Top:
        used = await used_now(client, given["tessera_namespace"])
        look = await observe(client)
        if of_devices:
            return top_devices(look, used)
        return top_pods(look, used, "" if given["everywhere"] else namespace)

    live = not given["once"] and given["style"] in ("table", "wide") and sys.stdout.isatty()
    given = {**given, "live": live}
    return _show(given, lambda: ask(config, question), lambda found: top_lines(found, devices=of_devices))


@command.command("resize")
@click.argument("pod", shell_complete=_completed(pod_names))
@click.option("-c", "--container", metavar="NAME", help="Which container, where several have a share.")
@click.option("--memory", metavar="AMOUNT", help="Memory of each of its devices: 8Gi, 8192Mi, 25%.")
@click.option("--compute", metavar="PERCENT", help="Compute of each of its devices: 30%.")
@_options
@click.pass_context
def resize(ctx: click.Context, /, **given: Any) -> int:
    """Wish another share for a container of POD while it runs; what is not said stays as it is.

    The scheduler grants it where the devices have room, and the node puts it in force. Exit code 1: not yet.
    """
    if given["memory"] is None and given["compute"] is None:
        raise click.UsageError("say what to change: --memory, --compute or both")
    config, default = _config(ctx, given)
    namespace, name = pod_subject(given["pod"], default, "resize")
    said = {key: given[key] for key in ("container", "memory", "compute")}
    answer = ask(config, lambda client: wish(client, SystemClock(), namespace, name, **said))
    click.echo(answer_line(answer))
    return Exit.OK if answer.granted else Exit.NO


def answer_line(answer: Answer) -> str:
    """What became of a wish, on one line."""
    who = f"container {answer.container} of pod {answer.pod}"
    if answer.granted:
        return f"{who}: granted; its node puts it in force, or tells the pod why not"
    if answer.note:
        return f"{who}: not granted: {answer.note}"
    return f"{who}: wished for, and not answered yet: does tessera-scheduler run?"


# printing


def _show(given: Mapping[str, Any], look: Callable[[], Any], lines: Callable[[Any], Iterator[str]]) -> int:
    """Print one look, or one after another."""
    text = partial(_lines, given["style"], lines)
    now = text(look())
    while True:
        if given.get("live"):
            click.clear()
        click.echo("\n".join(now))
        if not (given.get("live") or given.get("watch")):
            return Exit.OK
        now = _next(given, lambda: text(look()), now)


def _next(given: Mapping[str, Any], look: Callable[[], list[str]], shown: list[str]) -> list[str]:
    """What to print next: everything for a live view and a document, the lines that changed for a watch."""
    before = shown
    while True:
        time.sleep(given["interval"])
        after = look()
        if given.get("live"):
            return after
        if after != before:
            fresh = after if given["style"] in ("json", "yaml") else changed(before, after)
            if fresh:
                return fresh
        before = after


def _lines(style: str, lines: Callable[[Any], Iterator[str]], document: Document) -> list[str]:
    if style == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode().splitlines()
    if style == "yaml":
        dumped: str = yaml.safe_dump(msgspec.to_builtins(document), sort_keys=False, width=120)
        return dumped.splitlines()
    return list(lines(document))


def main() -> None:
    """Entry point of ``kubectl-tessera``, which kubectl runs as ``kubectl tessera``."""
    sys.exit(exit_code(partial(command.main, prog_name=PROGRAM, standalone_mode=False)))


def complete() -> None:
    """Entry point of ``kubectl_complete-tessera``, which kubectl asks for completions of its plugin.

    Source: kubernetes/kubectl pkg/cmd/plugin_completion.go: one completion a line, then a directive.
    """
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(command, {}, PROGRAM, "").get_completions(words, incomplete)
    click.echo("\n".join([*(item.value for item in found if item.type == "plain"), NO_FILES]))
