"""Our processes beside a control plane of the harness, and what they cost."""

import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from cluster.engine.plane import ControlPlane
from cluster.engine.ports import LOOPBACK, free_port
from cluster.engine.service import Service
from tessera.scheduler.stock import Settings, configuration
from tessera.wire.kube.names import SCHEDULER_NAME

TESSERA: Final = str(Path(sys.executable).with_name("tessera"))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, all of its threads; exact, where the usual counters sample."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def rss_mib(pid: int) -> float:
    """Memory that a process holds now."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def start_extender(plane: ControlPlane, *flags: str) -> tuple[Service, str]:
    """Our extender, ready to place, and its address."""
    port, metrics = free_port(), free_port()
    command = [
        TESSERA, "scheduler", "--kubeconfig", str(plane.kubeconfig), "--bind", f"{LOOPBACK}:{port}",
        "--metrics-bind", f"{LOOPBACK}:{metrics}", "--leader-elect=false", *flags,
    ]  # fmt: skip
    ready = f"http://{LOOPBACK}:{metrics}/readyz"
    service = plane.add_service(
        Service("tessera-scheduler", command, plane.logs / "tessera-scheduler.log", lambda: answers(ready))
    )
    service.start()
    return service, f"http://{LOOPBACK}:{port}"


def start_scheduler(plane: ControlPlane, *flags: str) -> Service:
    """Our extender and its stock kube-scheduler, ready to place."""
    service, url = start_extender(plane, *flags)
    config = configuration(Settings((SCHEDULER_NAME,), url, ""))
    plane.start_scheduler("tessera-kube-scheduler", config=config, kubeconfig=plane.kubeconfig)
    return service
