"""A control plane of real programs on 127.0.0.1: etcd, API server, controller manager, scheduler.

TLS everywhere but etcd, RBAC with the Node authorizer, NodeRestriction, webhooks and aggregation, as a cluster in
production has them. Every program is a :class:`~cluster.engine.service.Service` that a test may kill and restart.
"""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cluster.engine import binaries, commands
from cluster.engine.api import Api, ApiFailure
from cluster.engine.certificates import Authority, KeyPair, new_signing_key
from cluster.engine.kubeconfig import write_kubeconfig
from cluster.engine.ports import LOOPBACK, free_port
from cluster.engine.service import Service, wait_until

ACCOUNT_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """What differs between control planes. Flags are added to ours, and win.

    ``node_lifecycle`` lets the controller manager taint nodes whose lease is old: simulated nodes then need
    :class:`~cluster.engine.nodes.LeaseKeeper`. ``outlives`` keeps the programs running after this process.
    """

    controller_manager: bool = True
    scheduler: bool = True
    scheduler_config: Mapping[str, Any] | None = None
    node_lifecycle: bool = False
    apiserver_flags: tuple[str, ...] = ()
    controller_manager_flags: tuple[str, ...] = ()
    outlives: bool = False


class ControlPlane:
    """A running control plane; a context manager that stops it.

    ``services`` has every program by name, ``kubeconfig`` is the administrator's, ``api`` talks to the API server
    as the administrator, in plain JSON.
    """

    def __init__(self, folder: Path, options: Options = Options()) -> None:
        self.folder = folder
        self.options = options
        self.services: dict[str, Service] = {}
        self.pki = folder / "pki"
        self.logs = folder / "log"
        for path in (self.pki, self.logs):
            path.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(self.pki, "ca")
        self.token_key, self.token_public = new_signing_key(self.pki, "sa")
        self.etcd_port, self.peer_port, self.port = free_port(), free_port(), free_port()
        self.server = f"https://{LOOPBACK}:{self.port}"
        self.admin = self.authority.client("admin", "admin", ("system:masters",))
        self.kubeconfig = write_kubeconfig(
            folder / "kubeconfig", self.server, self.authority.certificate, self.admin
        )
        self.api = Api(self.server, self.authority.certificate, self.admin)

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

    # --- programs ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every program that the options ask for, and return when all are ready."""
        etcd = self._service(
            "etcd", commands.etcd(self), lambda: self._serves(self.etcd_port, "/readyz", tls=False)
        )
        etcd.start()
        self._service("kube-apiserver", commands.apiserver(self), lambda: self.api.answers("/readyz")).start()
        if self.options.controller_manager:
            self.start_controller_manager(wait=False)
        if self.options.scheduler:
            self.start_scheduler(config=self.options.scheduler_config, wait=False)
        for service in self.services.values():
            service.await_ready()
        self._await_account("default")

    def start_controller_manager(self, *, wait: bool = True) -> Service:
        """The controller manager."""
        port = free_port()
        command = commands.controller_manager(self, port)
        return self._service(
            "kube-controller-manager", command, lambda: self._serves(port, "/healthz", tls=True)
        ).start(wait=wait)

    def start_scheduler(
        self,
        name: str = "kube-scheduler",
        *,
        config: Mapping[str, Any] | None = None,
        hostname: str = "",
        kubeconfig: Path | None = None,
        wait: bool = True,
    ) -> Service:
        """One more kube-scheduler, known as ``name`` here.

        ``config`` is a KubeSchedulerConfiguration; what it does not say of client and leader election is filled
        in (this plane, no election). ``hostname`` gives it a host name of its own, hence a lease identity.
        """
        port = free_port()
        command = commands.scheduler(self, name, port, config or {}, kubeconfig)
        return self._service(
            name, command, lambda: self._serves(port, "/healthz", tls=True), hostname=hostname
        ).start(wait=wait)

    def add_service(self, service: Service) -> Service:
        """Let this plane stop a program that a test started."""
        self.services[service.name] = service
        return service

    def kill(self, name: str) -> None:
        """End a program without a warning (``kill -9``)."""
        self.services[name].kill()

    def restart(self, name: str) -> None:
        """``kill -9`` where it still runs, start again, wait until it is ready."""
        self.services[name].restart()

    def stop(self) -> None:
        """Stop every program, the last one started first; safe to call twice."""
        for service in reversed(self.services.values()):
            service.stop()
        self.api.close()

    def tails(self, lines: int = 15) -> str:
        """The end of every program's log."""
        return "\n".join(f"--- {name}\n{service.tail(lines)}" for name, service in self.services.items())

    def _service(self, name: str, command: Sequence[str], ready: Any, hostname: str = "") -> Service:
        return self.add_service(
            Service(name, command, self.logs / f"{name}.log", ready, hostname, self.options.outlives)
        )

    def _serves(self, port: int, path: str, *, tls: bool) -> bool:
        with closing(Api(f"{'https' if tls else 'http'}://{LOOPBACK}:{port}", None, None)) as probe:
            return probe.answers(path)

    # --- identities -------------------------------------------------------------------------------------------

    def client_certificate(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A client certificate of a user in groups."""
        return self.authority.client(f"client-{user.replace(':', '_').replace('/', '_')}", user, groups)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig by client certificate; what the user may do is RBAC's matter."""
        return self._kubeconfig(user, self.client_certificate(user, groups))

    def kubeconfig_for_account(self, namespace: str, account: str) -> Path:
        """A kubeconfig by a service account's token, valid for an hour."""
        return self._kubeconfig(f"{namespace}.{account}", self.token_for(namespace, account))

    def token_for(self, namespace: str, account: str, audiences: Sequence[str] = ()) -> str:
        """A service account's token, valid for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"expirationSeconds": 3600, **({"audiences": list(audiences)} if audiences else {})}
        answer = self.api.post(
            path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        )
        return str(answer["status"]["token"])

    def _kubeconfig(self, name: str, user: KeyPair | str) -> Path:
        path = self.folder / f"{name.replace(':', '_').replace('/', '_')}.kubeconfig"
        return write_kubeconfig(path, self.server, self.authority.certificate, user)

    # --- objects ----------------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What kubectl prints, as the administrator. Raises :class:`AssertionError` with its complaint."""
        run = subprocess.run(
            [binaries.program("kubectl"), "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if check and run.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {run.stderr.strip() or run.stdout.strip()}")
        return run.stdout

    def new_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """A namespace in which pods can be created at once."""
        meta: dict[str, Any] = {"name": name, "labels": dict(labels or {})}
        self.api.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self._await_account(name)
        return name

    def drop_namespace(self, name: str) -> None:
        """Delete a namespace; its pods go at once, since simulated nodes have nobody who would end them."""
        self.api.delete(f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        with suppress(ApiFailure):
            self.api.delete(f"/api/v1/namespaces/{name}")

    def _await_account(self, namespace: str) -> None:
        """Wait for the default service account; without a controller manager nobody else makes it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        if not self.options.controller_manager:
            body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            self.api.call("POST", path, body, accepts=(201, 409))
        wait_until(lambda: self.api.answers(f"{path}/default"), f"{path}/default", ACCOUNT_SECONDS)
