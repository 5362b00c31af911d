"""A real node: kubelet, containerd and runc as processes of this machine, beside a control plane.

Needs root. One at a time on a machine, since the kubelet's device-plugin folder is fixed: a lock makes others
wait. Containers run in namespaces and cgroups that the node made; :mod:`cluster.engine.sweep` takes them away.

Source of every setting that is not a default: run on hybrid cgroup v1 and found to be needed there.
"""

import fcntl
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cluster.engine import binaries, packages
from cluster.engine.api import Api
from cluster.engine.containerd import CONFIGS, PAUSE_IMAGE
from cluster.engine.images import busybox_files, make_image, pause_program
from cluster.engine.kubeconfig import write_kubeconfig
from cluster.engine.plane import ControlPlane
from cluster.engine.ports import LOOPBACK, free_port
from cluster.engine.service import STOP_SECONDS, Service, wait_until
from cluster.engine.sweep import NETWORK, pod_processes, remove_folder, sweep_containers

LOCK: Final = Path("/run/lock/tessera-real-node")
PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
BUSYBOX_IMAGE: Final = "engine.test/busybox:1"
READY_SECONDS: Final = 120.0
LOCK_SECONDS: Final = 900.0


def missing_node_reason() -> str:
    """Why no real node can run here; empty where one can."""
    if os.geteuid() != 0:
        return "a real node needs root: kubelet and runc make namespaces, mounts and cgroups"
    return binaries.missing_reason("kubelet") or packages.missing_package_reason()


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What differs between real nodes.

    ``name`` is ``localhost`` because the API server calls a kubelet by its name: with it ``kubectl logs`` and
    ``exec`` work without touching the machine's hosts file. ``kubelet`` is added to the KubeletConfiguration.
    ``registry`` is an address from which every image is pulled, whatever registry its name says.
    """

    name: str = "localhost"
    containerd: str = "2"
    labels: Mapping[str, str] = field(default_factory=dict)
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    registry: str = ""
    outlives: bool = False


class RealNode:
    """A node that runs pods; a context manager that stops it and removes everything it made."""

    def __init__(self, plane: ControlPlane, options: NodeOptions = NodeOptions()) -> None:
        self.plane = plane
        self.options = options
        self.name = options.name
        LOCK.parent.mkdir(parents=True, exist_ok=True)
        # A short path: a unix socket's may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-node-"))
        self.socket = self.folder / "containerd.sock"
        self.pod_logs = self.folder / "podlogs"
        self.cdi = Path("/var/run/cdi")
        self.pod_resources = self.folder / "kubelet/pod-resources/kubelet.sock"
        self._healthz = free_port()
        self._lock = LOCK.open("a+")
        self.containerd = self._containerd()
        self.kubelet = self._kubelet()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start containerd and the kubelet and return when the node is ready and takes pods."""
        self._take_machine()
        self._write_network()
        self._write_registry()
        self.containerd.start()
        self.import_image(make_image(self.folder, PAUSE_IMAGE, {"/pause": pause_program()}, ["/pause"]))
        self.import_image(make_image(self.folder, BUSYBOX_IMAGE, busybox_files(), ["/bin/sh", "-c"]))
        self.kubelet.start()
        self.await_ready()

    def await_ready(self) -> None:
        """Return when the API server has the node as ready."""
        wait_until(self._is_ready, f"node {self.name} is ready\n{self.kubelet.tail(5)}", READY_SECONDS)

    def stop(self) -> None:
        """Stop the programs and remove containers, mounts, namespaces, cgroups and files; safe to call twice."""
        self.kubelet.stop()
        self.containerd.stop()
        sweep_containers(self.folder)
        remove_folder(self.folder)
        with suppress(OSError):  # the API server may be gone already
            self.plane.api.delete(f"/api/v1/nodes/{self.name}")
        self._lock.close()

    def import_image(self, archive: Path) -> None:
        """Make an image of :func:`~cluster.engine.images.make_image` known to the runtime."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """What containerd's own client prints, in the namespace of Kubernetes."""
        program = packages.unpacked(f"containerd-{self.options.containerd}") / "usr/bin/ctr"
        return checked_output([str(program), "-a", str(self.socket), "-n", "k8s.io", *arguments])

    def log_of(self, namespace: str, pod: str, container: str = "main") -> str:
        """What a container wrote, all of its runs; from the files, as a log collector reads them."""
        files = sorted(
            self.pod_logs.glob(f"{namespace}_{pod}_*/{container}/*.log"), key=lambda path: int(path.stem)
        )
        lines = [line for file in files for line in file.read_text("utf-8", "replace").splitlines()]
        return "".join(_payload(line) for line in lines)

    def tails(self, lines: int = 15) -> str:
        """The end of both programs' logs."""
        programs = (self.containerd, self.kubelet)
        return "\n".join(f"--- {service.name}\n{service.tail(lines)}" for service in programs)

    # --- how it is set up -------------------------------------------------------------------------------------

    def _take_machine(self) -> None:
        """Wait until no other harness runs a node here, and remove what a killed one left.

        Raises :class:`TimeoutError` where a kubelet runs that is nobody's test: its plugins would be cut off. One
        that was killed with its harness gives up the lock and the socket at moments of its own.
        """
        wait_until(self._locks, f"another test's node ends ({LOCK} is held)", LOCK_SECONDS)
        kubelet = PLUGINS / "kubelet.sock"
        wait_until(
            lambda: not listens(kubelet),
            f"no kubelet is at {kubelet} (`make cluster-down` ends ours)",
            STOP_SECONDS,
        )
        self._lock.seek(0)
        if left := self._lock.read().strip():
            sweep_containers(Path(left))
            remove_folder(Path(left))
        if pod_processes():
            raise RuntimeError("containers of another kubelet run on this machine: no test touches those")
        self._lock.truncate(0)
        self._lock.write(str(self.folder))
        self._lock.flush()

    def _locks(self) -> bool:
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def _write_network(self) -> None:
        """The smallest network with which a node is ready: a pair of interfaces a pod, routed, no masquerading."""
        folder = self.folder / "cni"
        folder.mkdir()
        ipam = {"type": "host-local", "subnet": "10.88.9.0/24", "dataDir": str(self.folder / "cni-addresses")}
        plugin = {"type": "ptp", "ipMasq": False, "ipam": ipam}
        network = {"cniVersion": "1.0.0", "name": NETWORK, "plugins": [plugin]}
        (folder / "10-tessera.conflist").write_text(json.dumps(network))

    def _write_registry(self) -> None:
        """Where containerd pulls from, for every registry that it has no folder of."""
        folder = self.folder / "registries/_default"
        folder.mkdir(parents=True)
        if self.options.registry:
            host = f'[host."{self.options.registry}"]\n  capabilities = ["pull", "resolve"]\n'
            (folder / "hosts.toml").write_text(host)

    def _containerd(self) -> Service:
        package = packages.unpacked(f"containerd-{self.options.containerd}") / "usr/bin"
        config = self.folder / "containerd.toml"
        text = CONFIGS[self.options.containerd]
        places = {"@DIR@": str(self.folder), "@CNI@": str(packages.unpacked("cni") / "usr/lib/cni")}
        for mark, value in places.items():
            text = text.replace(mark, value)
        config.write_text(text)
        path = f"{package}:{packages.unpacked('runc') / 'usr/sbin'}:{os.environ['PATH']}"
        return Service(
            "containerd",
            [str(package / "containerd"), "--config", str(config)],
            self.plane.logs / f"containerd-{self.options.containerd}.log",
            self._runtime_answers,
            outlives=self.options.outlives,
            environment={"PATH": path},
        )

    def _runtime_answers(self) -> bool:
        try:
            return "io.containerd.grpc.v1" in self.ctr("plugins", "ls")
        except RuntimeError:
            return False

    def _kubelet(self) -> Service:
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps({**self._kubelet_configuration(), **self.options.kubelet}, indent=1))
        labels = ",".join(f"{key}={value}" for key, value in self.options.labels.items())
        command = [
            str(binaries.program("kubelet")),
            f"--config={config}",
            f"--kubeconfig={self._identity()}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-pki'}",
            f"--hostname-override={self.name}",
            *([f"--node-labels={labels}"] if labels else []),
        ]
        return Service(
            "kubelet",
            command,
            self.plane.logs / "kubelet.log",
            self._kubelet_answers,
            outlives=self.options.outlives,
        )

    def _identity(self) -> Path:
        user = self.plane.authority.client(f"node-{self.name}", f"system:node:{self.name}", ("system:nodes",))
        path = self.folder / "kubelet.kubeconfig"
        return write_kubeconfig(path, self.plane.server, self.plane.authority.certificate, user)

    def _kubelet_configuration(self) -> dict[str, Any]:
        nothing_is_evicted = dict.fromkeys(
            (
                "memory.available",
                "nodefs.available",
                "nodefs.inodesFree",
                "imagefs.available",
                "imagefs.inodesFree",
            ),
            "0%",
        )
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": LOOPBACK,
            "port": free_port(),
            "readOnlyPort": 0,
            "healthzBindAddress": LOOPBACK,
            "healthzPort": self._healthz,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": str(self.pod_logs),
            "resolvConf": "",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,  # a machine without CAP_SYS_RESOURCE refuses any lower one
            "enforceNodeAllocatable": [],
            "evictionHard": nothing_is_evicted,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "rotateCertificates": False,
            "nodeStatusUpdateFrequency": "1s",
            # A container that was refused or has died is tried again within seconds, not within tens of them.
            "syncFrequency": "2s",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "shutdownGracePeriod": "0s",
        }

    def _kubelet_answers(self) -> bool:
        with closing(Api(f"http://{LOOPBACK}:{self._healthz}", None, None)) as probe:
            return probe.answers("/healthz")

    def _is_ready(self) -> bool:
        path = f"/api/v1/nodes/{self.name}"
        if not self.plane.api.answers(path):
            return False
        conditions = self.plane.api.get(path)["status"].get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def listens(path: Path) -> bool:
    """Whether somebody accepts connections on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _payload(line: str) -> str:
    """A line of a container without the runtime's time stamp, stream and flag (``P``: goes on, ``F``: full)."""
    _, _, flag, text = line.split(" ", 3)
    return text if flag == "P" else text + "\n"


def checked_output(command: list[str]) -> str:
    """What a command prints. Raises :class:`RuntimeError` with its complaint."""
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)}: {run.stderr.strip()}")
    return run.stdout
