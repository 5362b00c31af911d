"""Command lines of the control plane's programs.

Source: flags of etcd 3.7 and Kubernetes 1.37; each was run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cluster.engine import binaries
from cluster.engine.certificates import Authority, KeyPair
from cluster.engine.kubeconfig import write_kubeconfig
from cluster.engine.ports import LOOPBACK

if TYPE_CHECKING:
    from cluster.engine.plane import ControlPlane

SERVED_NAMES: Final = (
    LOOPBACK,
    "10.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def flags(**given: object) -> list[str]:
    """``--some-name=value`` of each ``some_name=value``."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


def etcd(plane: "ControlPlane") -> list[str]:
    """Etcd without fsync: a test's machine may lose its data when it loses power.

    A member that is alone elects itself after one to two election timeouts, of a second unless told otherwise.
    """
    client, peer = f"http://{LOOPBACK}:{plane.etcd_port}", f"http://{LOOPBACK}:{plane.peer_port}"
    return [
        str(binaries.program("etcd")),
        "--unsafe-no-fsync",
        *flags(
            name="default",
            data_dir=plane.folder / "etcd",
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
            heartbeat_interval=10,
            election_timeout=100,
            logger="zap",
            log_level="warn",
        ),
    ]


def apiserver(plane: "ControlPlane") -> list[str]:
    """The API server with everything on that a cluster in production has on."""
    front = Authority(plane.pki, "front-proxy-ca")
    proxy = front.client("front-proxy", "front-proxy-client")
    kubelet = plane.authority.client("kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",))
    serving = plane.authority.server("apiserver", SERVED_NAMES)
    return [
        str(binaries.program("kube-apiserver")),
        *flags(
            etcd_servers=f"http://{LOOPBACK}:{plane.etcd_port}",
            bind_address=LOOPBACK,
            advertise_address=LOOPBACK,
            secure_port=plane.port,
            endpoint_reconciler_type="none",
            tls_cert_file=serving.certificate,
            tls_private_key_file=serving.key,
            client_ca_file=plane.authority.certificate,
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            allow_privileged="true",
            profiling="false",
        ),
        *_account_flags(plane),
        *_aggregation_flags(front, proxy),
        *_kubelet_flags(kubelet),
        # Admission taints every new node until the node-lifecycle controller lifts that; here nobody would.
        *([] if plane.options.node_lifecycle else flags(disable_admission_plugins="TaintNodesByCondition")),
        *plane.options.apiserver_flags,
    ]


def _account_flags(plane: "ControlPlane") -> list[str]:
    return flags(
        service_account_issuer=plane.server,
        service_account_key_file=plane.token_public,
        service_account_signing_key_file=plane.token_key,
        service_cluster_ip_range="10.0.0.0/16",
    )


def _aggregation_flags(front: Authority, proxy: KeyPair) -> list[str]:
    return flags(
        requestheader_client_ca_file=front.certificate,
        requestheader_allowed_names="front-proxy-client",
        requestheader_username_headers="X-Remote-User",
        requestheader_group_headers="X-Remote-Group",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        proxy_client_cert_file=proxy.certificate,
        proxy_client_key_file=proxy.key,
    )


def _kubelet_flags(client: KeyPair) -> list[str]:
    """A real node's name resolves to 127.0.0.1, its address may not be loopback: so it is called by name."""
    return flags(
        kubelet_client_certificate=client.certificate,
        kubelet_client_key=client.key,
        kubelet_preferred_address_types="Hostname",
    )


def _identity(plane: "ControlPlane", name: str, user: str) -> Path:
    pair = plane.authority.client(name, user)
    return write_kubeconfig(plane.folder / f"{name}.kubeconfig", plane.server, plane.authority.certificate, pair)


def controller_manager(plane: "ControlPlane", port: int) -> list[str]:
    """The controller manager; without the node-lifecycle controller unless the options ask for it."""
    config = _identity(plane, "controller-manager", "system:kube-controller-manager")
    controllers = "*" if plane.options.node_lifecycle else "*,-node-lifecycle-controller"
    return [
        str(binaries.program("kube-controller-manager")),
        *_serving(port, config),
        *flags(
            kubeconfig=config,
            controllers=controllers,
            leader_elect="false",
            use_service_account_credentials="true",
            service_account_private_key_file=plane.token_key,
            root_ca_file=plane.authority.certificate,
            cluster_signing_cert_file=plane.authority.certificate,
            cluster_signing_key_file=plane.authority.key,
            kube_api_qps=1000,
            kube_api_burst=2000,
        ),
        *plane.options.controller_manager_flags,
    ]


def scheduler(
    plane: "ControlPlane", name: str, port: int, config: Mapping[str, Any], kubeconfig: Path | None
) -> list[str]:
    """A kube-scheduler. Its default of 50 calls a second would make a toy of it: its client's limits are high."""
    identity = kubeconfig or _identity(plane, name, "system:kube-scheduler")
    client = {"kubeconfig": str(identity), "qps": 5000, "burst": 10000, **config.get("clientConnection", {})}
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **config,
        "clientConnection": client,
    }
    path = plane.folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=1))
    return [str(binaries.program("kube-scheduler")), *_serving(port, identity), *flags(config=path)]


def _serving(port: int, config: Path) -> list[str]:
    return flags(
        bind_address=LOOPBACK,
        secure_port=port,
        authentication_kubeconfig=config,
        authorization_kubeconfig=config,
    )
