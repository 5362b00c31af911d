"""The chart as helm sees it: rendered for a version of Kubernetes, with values."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.engine import binaries

CHART: Final = Path(__file__).resolve().parents[2] / "charts/tessera"
VERSION: Final = "v1.37.2"
NAMESPACE: Final = "tessera-system"

Object = dict[str, Any]
Render = Callable[..., list[Object]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


def require(*names: str) -> None:
    """Skip with the reason where programs are missing; in continuous integration that is a failure."""
    if reason := binaries.missing_reason(*names):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Runs helm with an empty home of its own, so that nothing of the person who tests comes in."""
    require("helm")
    home = tmp_path_factory.mktemp("helm")
    kept = {name: str(home / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(binaries.program("helm")), *arguments]
        given = {"PATH": os.environ["PATH"], "HOME": str(home), **kept, **environment}
        return subprocess.run(
            command, input=stdin, env=given, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The objects of ``helm template`` with these values. Fails the test with helm's message where it refuses."""

    def objects(
        values: Mapping[str, Any] | None = None, *, version: str = VERSION, namespace: str = NAMESPACE
    ) -> list[Object]:
        given = (
            "template",
            "tessera",
            str(CHART),
            "--namespace",
            namespace,
            "--kube-version",
            version,
            "--values",
            "-",
        )
        done = helm(*given, stdin=yaml.safe_dump(dict(values or {})))
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return objects


@pytest.fixture(scope="session")
def chart(render: Render) -> list[Object]:
    """The objects of the chart as it comes."""
    return render()


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def workloads(objects: list[Object]) -> list[Object]:
    """Everything that makes pods."""
    return [one for one in objects if one["kind"] in ("Deployment", "DaemonSet")]


def containers(workload: Object) -> list[Object]:
    """Its containers."""
    found: list[Object] = workload["spec"]["template"]["spec"]["containers"]
    return found


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels."""
    return selector.items() <= labels.items()
