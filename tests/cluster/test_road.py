"""The road of a pod, all of it: manifests of HAMi and TensorFusion as they stand, admitted by our webhook, bound
by a real kube-scheduler, started by a real kubelet under the limiter, and seen alike from inside and from outside.
"""

import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cluster.engine import binaries
from cluster.engine.nodes import SimulatedNode, add_nodes, remove_nodes
from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until
from cluster.engine.sweep import pod_processes
from cluster.whole import Whole, wait_running
from tessera.wire.kube.inventory import DeviceFacts
from tessera.wire.kube.names import ALLOCATION

MANIFESTS = Path(os.environ.get("TESSERA_SHARED_DATA", Path(__file__).parents[3] / "shared/data")) / "manifests"
A100 = 81_920
"""MiB of each of the real node's four devices."""

# What the pods of a manifest must see of each of their devices, pod by pod, worked out from its text: gpumem is in
# MiB, gpumem-percentage of 81,920 MiB, no memory at all is all of it, and TensorFusion's vram-limit is 1 GiB.
RUNS = {
    "hami/nvidia/default_use.yaml": [[3000]],
    "hami/nvidia/default_use_legacy.yaml": [[A100, A100]],
    "hami/nvidia/example.yaml": [[3000]],
    "hami/nvidia/specify_card_type_not_use.yaml": [[A100, A100]],
    "hami/nvidia/specify_card_type_to_use.yaml": [[A100, A100]],
    "hami/nvidia/specify_scheduling_policy.yaml": [[A100]],
    "hami/nvidia/specify_uuid_not_use.yaml": [[A100, A100]],
    "hami/nvidia/use_as_normal.yaml": [[A100], [A100]],
    "hami/nvidia/use_exclusive_card.yaml": [[A100, A100]],
    "hami/nvidia/use_memory_fraction.yaml": [[40_960, 40_960]],
    "hami/nvidia/use_sharing_card.yaml": [[32_768], [49_152]],
    "hami/nvidia/vllm_cross_vgpu.yaml": [[24_576, 24_576]],
    "tensor-fusion/pytorch.yaml": [[1024]],
    "tensor-fusion/gang-scheduling-workloads.yaml": [[10_240]] * 10,
}
NAMESPACES = {
    "tensor-fusion/pytorch.yaml": "tensor-fusion",
    "tensor-fusion/gang-scheduling-workloads.yaml": "default",
}
"""Where a manifest says so itself."""

KILL_TENANTS = (
    "for place in /proc/[0-9]*; do "
    '[ "$(< $place/comm)" = tenant ] && kill -9 ${place#/proc/} && echo "killed ${place#/proc/}"; done'
)
"""For a shell in an image that has no other program that could."""

_numbers = itertools.count()


def manifest(name: str) -> Path:
    path = MANIFESTS / name
    if not path.is_file():
        pytest.skip(f"{path} is not there (set TESSERA_SHARED_DATA to the folder of the public manifests)")
    return path


@pytest.fixture
def namespace(whole: Whole) -> Iterator[str]:
    name = whole.plane.new_namespace(f"road-{next(_numbers)}")
    yield name
    whole.plane.drop_namespace(name)


def facts(text: str, name: str) -> list[int]:
    """Every value of a fact that the tenant printed."""
    return [int(value) for value in re.findall(rf"^{name} (\d+)$", text, re.MULTILINE)]


def on_host(whole: Whole, namespace: str, pod: str, what: str) -> list[int]:
    """MiB of each device that the agent tells of a pod: ``limit`` or ``used``."""
    _, text = whole.agent.page("/metrics")
    found = re.findall(rf"^tessera_container_memory_{what}_bytes{{(.*)}} (\S+)$", text, re.MULTILINE)
    mine = (f'namespace="{namespace}"', f'pod="{pod}"')
    return [int(float(value)) >> 20 for labels, value in found if set(mine) <= set(labels.split(","))]


def check_pod(whole: Whole, pod: dict[str, Any], expected: list[int]) -> None:
    """Inside, outside and the record say the same, and what goes past the share is refused."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    container = pod["spec"]["containers"][0]["name"]
    assert ALLOCATION in pod["metadata"]["annotations"]
    shown = whole.inside(namespace, name, container, "/usr/bin/tenant", "show")
    assert facts(shown, "cuda_total_mib") == expected, shown
    # NVML counts what the machine has; devices that are not the container's have nothing for it.
    assert [total for total in facts(shown, "nvml_total_mib") if total] == expected, shown
    assert on_host(whole, namespace, name, "limit") == expected
    filled = whole.inside(namespace, name, container, "/usr/bin/tenant", "fill", "128")
    assert facts(filled, "reached_mib") == [expected[0] // 128 * 128], filled
    assert "refused 2 CUDA_ERROR_OUT_OF_MEMORY" in filled


@pytest.mark.parametrize("name", RUNS)
def test_a_manifest_runs_unchanged_under_its_limits(whole: Whole, namespace: str, name: str) -> None:
    plane, path = whole.plane, manifest(name)
    if "PersistentVolumeClaim" in path.read_text("utf-8"):
        _offer_volume(plane)
    where = NAMESPACES.get(name, namespace)
    apply = ["-f", str(path)] if name in NAMESPACES else ["-n", where, "-f", str(path)]
    plane.kubectl("apply", *apply)
    try:
        wait_until(lambda: len(_pods(plane, where)) == len(RUNS[name]), f"{len(RUNS[name])} pods are there", 60)
        pods = wait_running(plane, where, seconds=120)
        for pod, expected in zip(sorted(pods, key=lambda p: p["metadata"]["name"]), RUNS[name], strict=True):
            check_pod(whole, pod, expected)
    finally:
        plane.kubectl("delete", "--grace-period=1", "--wait=false", *apply, check=False)
        wait_until(lambda: _gone(plane, where), f"the pods of {where} are gone", 90)


def _pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    return list(plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"])


def _gone(plane: ControlPlane, namespace: str) -> bool:
    """Whether a namespace has no pods. Those of its workloads have 30 seconds to end: here they end at once."""
    left = _pods(plane, namespace)
    if left and all("deletionTimestamp" in pod["metadata"] for pod in left):
        for process in pod_processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    return not left


def _offer_volume(plane: ControlPlane) -> None:
    """A volume for whoever claims one."""
    spec = {
        "capacity": {"storage": "60Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/tmp"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    plane.api.post(
        "/api/v1/persistentvolumes",
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "road"}, "spec": spec},
    )


def test_a_manifest_that_names_devices_gets_one_of_them(whole: Whole, namespace: str) -> None:
    """specify_uuid_to_use.yaml names two devices; one is on a node without a kubelet, and gets the pod."""
    wanted = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d"
    device = DeviceFacts(uuid=wanted, index=0, model="A100", memory_mib=40_960, vendor="NVIDIA")
    whole.plane.kubectl("apply", "-n", namespace, "-f", str(manifest("hami/nvidia/specify_uuid_to_use.yaml")))
    wait_until(lambda: "uuid" in _described(whole.plane, namespace, "gpu-pod").lower(), "it is told why not", 60)
    add_nodes(whole.plane, [SimulatedNode("far", facts=(device,))])
    path = f"/api/v1/namespaces/{namespace}/pods/gpu-pod"
    try:
        wait_until(lambda: whole.plane.api.get(path)["spec"].get("nodeName") == "far", "it is bound there", 60)
        assert wanted in whole.plane.api.get(path)["metadata"]["annotations"][ALLOCATION]
    finally:
        remove_nodes(whole.plane, ["far"])


def _described(plane: ControlPlane, namespace: str, pod: str) -> str:
    return plane.kubectl("describe", "pod", "-n", namespace, pod)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hami/nvidia/dynamic_mig_example.yaml", "mode"),  # no device of the cluster is in MIG mode
        ("hami/nvidia/mig_example.yaml", "nvidia.com/mig-3g.20gb"),  # the NVIDIA plugin's own resource: left to it
    ],
)
def test_a_manifest_that_cannot_run_here_waits_with_its_reason(
    whole: Whole, namespace: str, name: str, reason: str
) -> None:
    whole.plane.kubectl("apply", "-n", namespace, "-f", str(manifest(name)))
    wait_until(lambda: reason in _described(whole.plane, namespace, "gpu-pod"), f"its reason names {reason}", 60)
    assert "nodeName" not in whole.plane.api.get(f"/api/v1/namespaces/{namespace}/pods/gpu-pod")["spec"]


def test_what_a_container_uses_is_what_the_host_sees(whole: Whole, namespace: str) -> None:
    whole.plane.kubectl("apply", "-n", namespace, "-f", str(manifest("hami/nvidia/default_use.yaml")))
    wait_running(whole.plane, namespace)
    command = [
        binaries.program("kubectl"), "--kubeconfig", whole.plane.kubeconfig, "exec", "-n", namespace,
        "gpu-pod", "--", "/usr/bin/tenant", "hold", "1000", "3600",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holding:
        assert holding.stdout is not None
        said = holding.stdout.readline()
        seen = on_host(whole, namespace, "gpu-pod", "used")
        holding.kill()
    assert (said, seen) == ("held_mib 1000\n", [1000])
    killed = whole.inside(namespace, "gpu-pod", "ubuntu-container", "/bin/bash", "-c", KILL_TENANTS)
    assert re.fullmatch(r"killed \d+\n", killed), killed
    deadline = time.monotonic() + 60
    while on_host(whole, namespace, "gpu-pod", "used") != [0] and time.monotonic() < deadline:
        whole.inside(namespace, "gpu-pod", "ubuntu-container", "/usr/bin/tenant", "show")
    assert on_host(whole, namespace, "gpu-pod", "used") == [0]
