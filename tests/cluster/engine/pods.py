"""Pods for tests of a real node."""

from cluster.engine.node import BUSYBOX_IMAGE
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until


def run_pod(
    plane: ControlPlane, namespace: str, name: str, image: str = BUSYBOX_IMAGE, **container: object
) -> None:
    """Create a pod of one container on the real node."""
    plane.api.post(
        f"/api/v1/namespaces/{namespace}/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": "localhost"},
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": image, **container}],
            },
        },
    )


def await_phase(plane: ControlPlane, namespace: str, name: str, phase: str) -> None:
    """Wait until the pod is in this phase."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    wait_until(lambda: plane.api.get(path)["status"]["phase"] == phase, f"{name} is {phase}", 120)
