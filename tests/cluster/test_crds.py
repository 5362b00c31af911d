"""Our kinds on a real API server: accepted as structural, and what their schemas say is enforced."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.engine.plane import ApiFailure, ControlPlane

ROAD = "/apis/tessera.dev/v1alpha1"
DEVICE: dict[str, Any] = {"uuid": "GPU-1", "index": 0, "model": "A100", "memoryMib": 40960, "vendor": "nvidia"}


@pytest.fixture
def gpu_node(control_plane: ControlPlane) -> Iterator[str]:
    """A GPUNode without devices."""
    control_plane.api.post(f"{ROAD}/gpunodes", _object("GPUNode", "crd-node"))
    yield f"{ROAD}/gpunodes/crd-node"
    control_plane.api.delete(f"{ROAD}/gpunodes/crd-node")


@pytest.fixture
def gpu(control_plane: ControlPlane) -> Iterator[str]:
    """A GPU without facts."""
    control_plane.api.post(f"{ROAD}/gpus", _object("GPU", "crd-gpu"))
    yield f"{ROAD}/gpus/crd-gpu"
    control_plane.api.delete(f"{ROAD}/gpus/crd-gpu")


def _object(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "tessera.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}


def put_status(plane: ControlPlane, path: str, status: dict[str, Any]) -> dict[str, Any]:
    """Replace the status."""
    current = plane.api.get(path)
    answer: dict[str, Any] = plane.api.call("PUT", f"{path}/status", {**current, "status": status})
    return answer


def refusal(plane: ControlPlane, path: str, status: dict[str, Any]) -> str:
    """Why the server does not take a status."""
    with pytest.raises(ApiFailure) as failure:
        put_status(plane, path, status)
    assert failure.value.code == 422
    return str(failure.value)


def test_the_server_finds_our_schemas_structural(control_plane: ControlPlane) -> None:
    for name in ("gpunodes", "gpus"):
        crd = control_plane.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.tessera.dev")
        found = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert found["Established"] == "True"
        assert found.get("NonStructuralSchema", "False") == "False"
        assert "x-kubernetes-preserve-unknown-fields" not in str(crd["spec"])


def test_defaults_are_filled_in_and_unknown_fields_are_pruned(control_plane: ControlPlane, gpu_node: str) -> None:
    device = {**DEVICE, "numa": None, "bogus": 1}
    status = put_status(control_plane, gpu_node, {"devices": [device], "bogus": 1})["status"]
    assert status == {
        "devices": [{**DEVICE, "slots": 100, "healthy": True, "mode": "shared", "numa": None}],
        "gate": False,
    }


def test_what_breaks_the_schema_is_refused_by_field(control_plane: ControlPlane, gpu_node: str) -> None:
    for change, field in (
        ({"memoryMib": -1}, "status.devices[0].memoryMib"),
        ({"memoryMib": "40960"}, "status.devices[0].memoryMib"),
        ({"index": -1}, "status.devices[0].index"),
        ({"slots": 0}, "status.devices[0].slots"),
        ({"uuid": ""}, "status.devices[0].uuid"),
        ({"reason": "x" * 1025}, "status.devices[0].reason"),
    ):
        assert field in refusal(control_plane, gpu_node, {"devices": [{**DEVICE, **change}]})
    missing = {key: value for key, value in DEVICE.items() if key != "model"}
    assert "model: Required" in refusal(control_plane, gpu_node, {"devices": [missing]})
    assert "status.isolation" in refusal(control_plane, gpu_node, {"isolation": "none"})
    assert "Duplicate" in refusal(control_plane, gpu_node, {"devices": [DEVICE, {**DEVICE, "index": 1}]})
    crowd = [{**DEVICE, "uuid": f"GPU-{n}", "index": n} for n in range(257)]
    assert "at most 256" in refusal(control_plane, gpu_node, {"devices": crowd})


def test_a_gpu_object_stays_the_same_device(control_plane: ControlPlane, gpu: str) -> None:
    put_status(control_plane, gpu, {"node": "n1", "device": DEVICE})
    put_status(control_plane, gpu, {"node": "n2", "device": {**DEVICE, "index": 3, "healthy": False}})
    told = refusal(control_plane, gpu, {"node": "n2", "device": {**DEVICE, "uuid": "GPU-2"}})
    assert "a GPU object stays the same device" in told


def test_status_is_written_apart_from_the_rest(control_plane: ControlPlane, gpu: str) -> None:
    merged = control_plane.api.merge(gpu, {"metadata": {"labels": {"x": "y"}}, "status": {"node": "n9"}})
    assert merged["metadata"]["labels"] == {"x": "y"}
    assert merged.get("status", {}).get("node") is None


def test_kubectl_shows_and_explains_them(control_plane: ControlPlane, gpu_node: str, gpu: str) -> None:
    put_status(
        control_plane,
        gpu_node,
        {
            "devices": [DEVICE],
            "driver": "580.1",
            "message": "all well",
            "isolation": "hook",
            "gate": True,
        },
    )
    put_status(
        control_plane, gpu, {"node": "crd-node", "device": {**DEVICE, "healthy": False, "reason": "XID 79"}}
    )
    shown = control_plane.kubectl("get", "gn", "crd-node").splitlines()
    assert shown[0].split() == ["NAME", "MODEL", "ISOLATION", "GATE", "DRIVER", "MESSAGE", "AGE"]
    assert shown[1].split()[:5] == ["crd-node", "A100", "hook", "true", "580.1"]
    shown = control_plane.kubectl("get", "gpus", "crd-gpu").splitlines()
    assert shown[0].split() == ["NAME", "NODE", "INDEX", "MODEL", "MIB", "HEALTHY", "REASON", "AGE"]
    assert shown[1].split()[:8] == ["crd-gpu", "crd-node", "0", "A100", "40960", "false", "XID", "79"]
    assert "gpunode.tessera.dev/crd-node" in control_plane.kubectl("get", "tessera", "-o", "name")
    told = control_plane.kubectl("explain", "gpunodes.status.devices.memoryMib")
    assert "Memory in MiB." in told
