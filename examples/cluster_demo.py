"""The road of one pod, on a real Kubernetes: what each part saw and wrote, printed as it happens.

``make cluster-demo``: etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones. As root
there is a real node too (kubelet, containerd) with two simulated devices; otherwise the pods are only bound.
"""

import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from cluster.engine.kinds import install_kinds
from cluster.engine.node import missing_node_reason
from cluster.engine.nodes import add_nodes, some_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from cluster.scheduling import start_pair
from cluster.webhook_process import Webhook, install
from cluster.whole import Whole, whole_tessera
from tessera.wire.kube.names import ALLOCATION, REQUEST

HERE: Final = Path(__file__).parent / "cluster"
_WIDTH: Final = 110
_START: Final = time.monotonic()


def say(title: str, text: str = "") -> None:
    """One step of the road."""
    print(f"\n[{time.monotonic() - _START:5.1f} s] {title}", flush=True)
    if text.strip():
        print(textwrap.indent(text.strip("\n"), "    "), flush=True)


def wrapped(label: str, document: Any) -> str:
    """A JSON document under its label, on lines that fit a terminal."""
    text = json.dumps(document, separators=(", ", ": ")) if not isinstance(document, str) else document
    return textwrap.fill(f"{label} {text}", _WIDTH, subsequent_indent="  ", break_long_words=False)


def admitted(plane: ControlPlane, name: str) -> Mapping[str, Any]:
    """Apply a manifest and tell what admission made of it."""
    path = HERE / f"{name}.yaml"
    say(f"{name}: the manifest, unchanged", path.read_text())
    plane.kubectl("apply", "-f", str(path))
    pod = plane.api.get(f"/api/v1/namespaces/default/pods/{name}")
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    tickets = {key: value for key, value in limits.items() if "/ticket-" in key}
    say(
        f"{name}: what admission wrote",
        "\n".join(
            (
                wrapped(REQUEST, pod["metadata"]["annotations"][REQUEST]),
                f"schedulerName {pod['spec']['schedulerName']}",
                wrapped("ticket", tickets),
            )
        ),
    )
    return pod


def bound(plane: ControlPlane, name: str) -> str:
    """Wait for the binding and tell what came with it; the node."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    wait_until(lambda: plane.api.get(path)["spec"].get("nodeName"), f"{name} is bound", 60)
    pod = plane.api.get(path)
    say(
        f"{name}: bound to {pod['spec']['nodeName']}, in the same write as",
        wrapped(ALLOCATION, pod["metadata"]["annotations"][ALLOCATION]),
    )
    return str(pod["spec"]["nodeName"])


def events(plane: ControlPlane, name: str, mark: str) -> str:
    """What `kubectl describe pod` says of events, once it says ``mark``."""
    wait_until(lambda: mark in plane.kubectl("describe", "pod", name), f"an event of {name} says {mark}", 60)
    return plane.kubectl("describe", "pod", name).partition("Events:")[2]


def kubectl_tessera(plane: ControlPlane, *arguments: str) -> str:
    """What the plugin prints."""
    program = str(Path(sys.executable).with_name("kubectl-tessera"))
    command = [program, "--kubeconfig", str(plane.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def on_the_node(whole: Whole) -> None:
    """What happens where the pod runs."""
    plane, node = whole.plane, whole.node
    wait_until(lambda: "held_mib" in node.log_of("default", "quarter", "train"), "the tenant holds its memory", 90)
    say("quarter: in the container", node.log_of("default", "quarter", "train"))
    say(
        "quarter: what it sees of the device",
        whole.inside("default", "quarter", "train", "/usr/bin/tenant", "show"),
    )
    admitted(plane, "greedy")
    bound(plane, "greedy")
    wait_until(lambda: "refused" in node.log_of("default", "greedy", "train"), "greedy is refused", 90)
    say("greedy: in the container", node.log_of("default", "greedy", "train"))


def main() -> int:
    """Walk the road."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(Path(folder) / "plane"))
        install_kinds(plane)
        reason = missing_node_reason()
        say("a control plane is up", f"export KUBECONFIG={plane.kubeconfig}")
        whole = None
        if reason:
            say("no real node", f"{reason}; pods are bound to simulated nodes and do not run")
            add_nodes(plane, some_nodes(2, devices=2, model="A100-80G"))
            webhook = Webhook(plane, Path(folder))
            install(plane, webhook.url, policy=True)
            webhook.start()
            start_pair(plane)
        else:
            whole = stack.enter_context(whole_tessera(plane, Path(folder), simulate="2xA100-SXM4-80GB"))
            say("webhook, scheduler, agent and a real node are up")
        say("kubectl get gpus", plane.kubectl("get", "gpus") if whole else "")
        admitted(plane, "quarter")
        bound(plane, "quarter")
        if whole:
            on_the_node(whole)
        say("kubectl tessera devices", kubectl_tessera(plane, "devices"))
        admitted(plane, "too-large")
        say("too-large: kubectl describe", events(plane, "too-large", "NotPlaced"))
        say("kubectl tessera explain too-large", kubectl_tessera(plane, "explain", "too-large"))
        say("done; everything is stopped and removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
