"""A webhook process before a control plane: started, asked whether it is ready, and read."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from cluster.engine.plane import ControlPlane
from cluster.engine.ports import free_port
from cluster.engine.service import Service
from tessera.wire.kube.webhooks import Target, webhook_objects

CODE = "from tessera.cli.webhook import command; import sys; sys.exit(command(standalone_mode=False))"
SYSTEM = "tessera-system"


class Webhook:
    """One replica, as the administrator or as ``kubeconfig`` says; several are told apart by their name."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *flags: str,
        name: str = "webhook",
        kubeconfig: Path | None = None,
    ) -> None:
        self.plane = plane
        self.port = free_port()
        self.metrics_port = free_port()
        command = [
            sys.executable, "-c", CODE,
            "--kubeconfig", str(kubeconfig or plane.kubeconfig),
            "--bind", f"127.0.0.1:{self.port}",
            "--metrics-bind", f"127.0.0.1:{self.metrics_port}",
            "--host", "127.0.0.1",
            *flags,
        ]  # fmt: skip
        self.service = Service(name, command, folder / f"{name}.log", ready=self.is_ready)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return self.status("/readyz")[0] == 200

    def status(self, path: str) -> tuple[int, str]:
        """Code and text of a page on the metrics port; 0 where nobody listens."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.metrics_port}{path}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - our own port
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def start(self) -> "Webhook":
        self.plane.add_service(self.service).start()
        return self

    def lines(self) -> list[dict]:
        """What it logged."""
        return [json.loads(line) for line in self.service.log.read_text().splitlines() if line.startswith("{")]


def install(plane: ControlPlane, url: str, *, policy: bool = False) -> None:
    """Put the webhook of this address before the API server, which asks it from a moment later on."""
    if SYSTEM not in plane.kubectl("get", "namespaces", "-o", "name"):
        plane.new_namespace(SYSTEM)
    objects = webhook_objects(Target(url=url))
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects if policy else objects[:2]))
