"""``tessera agent``: the process of a node that has devices."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from tessera.agent.app import Settings, agent, uninstall
from tessera.agent.fences import TierPolicy
from tessera.agent.health import overridden
from tessera.agent.layout import CDI_DIRECTORY, GATE_NAME, GATE_SOCKET, PLUGIN_DIRECTORY, POD_RESOURCES, STATE
from tessera.agent.node import ALWAYS, AUTO, NEVER, NodeOptions
from tessera.agent.reclaim import REFUSE, STOP
from tessera.core.priority import WORDS, Priority, priority_of
from tessera.local.machine import simulated_machine
from tessera.runtime.kube.config import ClusterConfig, load_config
from tessera.runtime.kube.slim import SlimClient
from tessera.runtime.log import LEVELS, configure
from tessera.runtime.native import LIMITER, NATIVE
from tessera.runtime.serve import parse_bind
from tessera.runtime.shell import run
from tessera.vendors.faults import FaultCode
from tessera.vendors.nvidia_xid import UNKNOWN, XIDS

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


_EPILOG: Final = """\b
Examples:
  tessera agent --host-root /proc/1/root
  tessera agent --simulate 2xA100-SXM4-80GB --kubeconfig ~/.kube/config
  tessera agent --uninstall
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kubeconfig", type=_PATH, help="In a pod its own account, else $KUBECONFIG, else ~/.kube/config.")
@click.option(
    "--node", envvar="NODE_NAME", metavar="NAME", help="Name of this node.  [default: $NODE_NAME, else the host's]"
)
@click.option(
    "--simulate", metavar="MACHINE", help="Devices that are not there: 2xA100-SXM4-80GB, or a description file."
)
@click.option("--state-dir", type=_PATH, default=STATE, show_default=True, help="Where shares are kept.")
@click.option("--host-root", type=_PATH, default="/", show_default=True, help="Where the node's root is seen.")
@click.option("--cdi-dir", type=_PATH, default=CDI_DIRECTORY, show_default=True, help="Where the CDI spec goes.")
@click.option(
    "--cdi",
    type=click.Choice([AUTO, ALWAYS, NEVER]),
    default=AUTO,
    show_default=True,
    help="Whether the container runtime injects CDI devices; auto asks the node's status.",
)
@click.option(
    "--without-cdi",
    type=click.Choice(["refuse", "allow"]),
    default="refuse",
    show_default=True,
    help="What happens on a runtime without CDI: no gate can check there what starts.",
)
@click.option(
    "--tier",
    type=click.Choice(list(TierPolicy)),
    default=TierPolicy.AUTO,
    show_default=True,
    help="What holds memory: the limiter, and the driver where it can (auto) or nothing is handed out (driver); "
    "the limiter alone (hook).",
)
@click.option(
    "--cgroup-root",
    type=_PATH,
    help="Where the node's cgroup v2 tree is seen.  [default: sys/fs/cgroup below --host-root]",
)
@click.option(
    "--context-mib",
    type=click.IntRange(0, 4096),
    default=0,
    show_default=True,
    metavar="MIB",
    help="What a first context is charged where the driver does not list a container's processes to itself.",
)
@click.option("--gate-socket", type=_PATH, default=GATE_SOCKET, show_default=True, help="Where the gate asks.")
@click.option(
    "--plugin-dir", type=_PATH, default=PLUGIN_DIRECTORY, show_default=True, help="The kubelet's plugins."
)
@click.option(
    "--pod-resources",
    type=_PATH,
    default=POD_RESOURCES,
    show_default=True,
    help="The kubelet's socket that tells who holds devices of other plugins.",
)
@click.option(
    "--tools-socket", type=_PATH, help="Answer the pod-resources API here, with devices in place of tickets."
)
@click.option(
    "--escapes",
    type=click.Choice(["warn", "kill"]),
    default="warn",
    show_default=True,
    help="What happens to a process of a share that no limit holds for.",
)
@click.option(
    "--reclaim",
    type=click.Choice([STOP, REFUSE]),
    default=STOP,
    show_default=True,
    help="When a share within its request finds no memory: end one that has more than its own, or refuse it.",
)
@click.option(
    "--freeze",
    default="low=60",
    show_default=True,
    metavar="PRIORITY=SECONDS,...",
    help="Shares that have to ask to go on after so long without a launch, if others go before them.",
)
@click.option("--xid-policy", type=_FILE, help='Changes to the table of fault codes: {"94": {"class": "fatal"}}.')
@click.option("--clear-faults", is_flag=True, help="Forget fatal faults: the devices were reset.")
@click.option(
    "--metrics-bind",
    default="0.0.0.0:8080",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="/metrics, /healthz and /readyz.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option("--uninstall", "leave", is_flag=True, help="Remove the CDI spec and this node's objects, and end.")
def command(  # noqa: PLR0913  # long: one line an option, twice
    *,
    kubeconfig: Path | None,
    node: str | None,
    simulate: str | None,
    state_dir: Path,
    host_root: Path,
    cdi_dir: Path,
    cdi: str,
    without_cdi: str,
    tier: TierPolicy,
    cgroup_root: Path | None,
    context_mib: int,
    gate_socket: Path,
    plugin_dir: Path,
    pod_resources: Path,
    tools_socket: Path | None,
    escapes: str,
    reclaim: str,
    freeze: str,
    xid_policy: Path | None,
    clear_faults: bool,
    metrics_bind: str,
    log_level: str,
    leave: bool,
) -> int:
    """Run the agent of this node: devices, shares, the gate.

    It needs root, the kubelet's plugin directory and the host's PID namespace.
    """
    configure(log_level)
    config = load_config(kubeconfig, os.environ)
    name = node or os.uname().nodename
    if leave:
        asyncio.run(_uninstall(config, name, cdi_dir))
        return 0
    settings = Settings(
        node=name,
        metrics=parse_bind(metrics_bind, "--metrics-bind"),
        options=NodeOptions(
            cdi=cdi,
            without_cdi=without_cdi == "allow",
            cdi_directory=cdi_dir,
            gate_socket=gate_socket,
            library=LIMITER,
            gate=NATIVE / GATE_NAME,
        ),
        description=_description(simulate, name),
        state=state_dir,
        plugin_directory=plugin_dir,
        pod_resources=pod_resources,
        tools_socket=tools_socket,
        kill=escapes == "kill",
        reclaim=reclaim,
        freeze=freezes(freeze),
        forget_faults=clear_faults,
        faults=_faults(xid_policy),
        root=host_root,
        tier=tier,
        cgroup_root=cgroup_root,
        context_mib=context_mib,
    )
    return run(partial(agent, settings=settings, config=config), name="agent")


def _description(simulate: str | None, node: str) -> Path | None:
    """The description of the node's simulated machine; ``None`` for a real one."""
    if simulate is None:
        return None
    path = Path(simulate)
    return path.resolve() if path.is_file() else simulated_machine(simulate, node).description


def freezes(text: str) -> dict[Priority, float]:
    """Seconds by priority: ``low=60,medium=120``; empty for never."""
    found: dict[Priority, float] = {}
    for part in filter(None, text.split(",")):
        word, _, seconds = part.partition("=")
        priority = priority_of(word.strip())
        if priority is None or not seconds.strip().isdecimal() or int(seconds) < 1:
            message = f"{part!r} is no time of a priority; write low=60,medium=300, with {', '.join(WORDS)}"
            raise click.BadParameter(message, param_hint="--freeze")
        found[priority] = float(seconds)
    return found


def _faults(policy: Path | None) -> Sequence[FaultCode]:
    if policy is None:
        return XIDS
    return overridden(XIDS, UNKNOWN, policy.read_bytes(), str(policy))


async def _uninstall(config: ClusterConfig, node: str, cdi_directory: Path) -> None:
    client = SlimClient(config)
    try:
        await uninstall(client, node, cdi_directory)
    finally:
        await client.close()
