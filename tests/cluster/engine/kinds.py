"""Installs our kinds (``GPUNode``, ``GPU``) on a control plane, from the chart's generated definitions."""

from pathlib import Path
from typing import Any, Final

import yaml

from cluster.engine.plane import ControlPlane
from cluster.engine.service import wait_until

CHART: Final = Path(__file__).resolve().parents[3] / "charts/tessera/crds"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions of the chart."""
    texts = [path.read_text() for path in sorted(CHART.glob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def install_kinds(plane: ControlPlane) -> None:
    """Create the definitions where they are not there, and return when the kinds are served."""
    wanted = definitions()
    for definition in wanted:
        plane.api.call("POST", DEFINITIONS, definition, accepts=(409,))
    for definition in wanted:
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        wait_until(lambda path=path: plane.api.answers(path), path, 60)  # type: ignore[misc]
