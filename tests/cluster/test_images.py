"""Images of every kind on a real node: each is limited, or told in ``kubectl describe`` within seconds.

glibc of six ages, each alone with the tenant, as a distroless image is; musl and static programs, which no preload
library reaches. What they are made of comes from Debian's and Ubuntu's archives; where those cannot be reached the
image is left out with that reason.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.agent_process import events_of, is_running, phase_of, status_of
from cluster.engine import libcs
from cluster.engine.images import Content, make_image
from cluster.engine.packages import PackageError
from cluster.engine.service import wait_until
from cluster.whole import Whole

GLIBC = {"xenial": "2.23", "bionic": "2.27", "bullseye": "2.31", "bookworm": "2.36", "trixie": "2.41", "sid": ""}
"""Suites, and the glibc that each has; whatever is newest in sid."""
NOBODY = 65_532
TOO_OLD = (
    "an image with glibc {} cannot be made: no archive in reach has it. The library itself needs nothing newer "
    "than 2.17 (make -C limiter symbols)"
)

_numbers = itertools.count()


@pytest.fixture
def namespace(whole: Whole) -> Iterator[str]:
    name = whole.plane.new_namespace(f"image-{next(_numbers)}")
    yield name
    whole.plane.drop_namespace(name)


def imported(whole: Whole, folder: Path, name: str, files: Callable[[], dict[str, Content]]) -> str:
    """An image of the files, on the node. Skips where the packages that it is made of cannot be had."""
    if os.uname().machine != "x86_64":
        pytest.skip("the images are made of packages for x86-64")
    for tool in ("gcc", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on PATH: the image's program is compiled")
    try:
        content = files()
    except PackageError as error:
        pytest.skip(f"what the image is made of cannot be had: {error}")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the image's program cannot be compiled: {error.stderr}")
    image = f"engine.test/{name}:1"
    whole.node.import_image(make_image(folder, image, content))
    return image


def container(name: str, image: str, *command: str, **more: Any) -> dict[str, Any]:
    limits = {"tessera.dev/gpu": "1", "tessera.dev/memory": "256Mi"}
    return {"name": name, "image": image, "command": list(command), "resources": {"limits": limits}, **more}


def create(whole: Whole, namespace: str, *containers: dict[str, Any], **spec: Any) -> None:
    body = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": list(containers), **spec}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": body}
    whole.plane.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)


def over(whole: Whole, namespace: str) -> str:
    """The phase in which the pod ended."""
    wait_until(lambda: phase_of(whole.plane, namespace, "p") in ("Succeeded", "Failed"), "the pod is over", 90)
    return phase_of(whole.plane, namespace, "p")


def assert_limited(whole: Whole, namespace: str, image: str, **security: Any) -> None:
    """Its tenant sees a device of 256 MiB by CUDA and by NVML, and is refused past it."""
    more = {"securityContext": security} if security else {}
    create(
        whole,
        namespace,
        container("main", image, "/usr/bin/tenant", "fill", "64", **more),
        initContainers=[container("show", image, "/usr/bin/tenant", "show", **more)],
    )
    phase = over(whole, namespace)
    shown = whole.node.log_of(namespace, "p", "show").splitlines()
    filled = whole.node.log_of(namespace, "p", "main").splitlines()
    assert phase == "Succeeded", (shown, filled, status_of(whole.plane, namespace, "p"))
    assert {"cuda_devices 1", "cuda_total_mib 256", "nvml_total_mib 256"} <= set(shown)
    assert filled == ["reached_mib 256", "refused 2 CUDA_ERROR_OUT_OF_MEMORY"]


@pytest.mark.parametrize("suite", GLIBC)
def test_row_51_an_image_of_any_glibc_is_limited(whole: Whole, namespace: str, suite: str, tmp_path: Path) -> None:
    image = imported(whole, tmp_path, f"glibc-{suite}", lambda: libcs.glibc_image_files(suite))
    assert libcs.glibc_version(suite).startswith(GLIBC[suite])
    assert_limited(whole, namespace, image)


@pytest.mark.parametrize("version", ["2.17", "2.19"])
def test_row_51_an_image_of_the_oldest_glibc_is_limited(version: str) -> None:
    pytest.skip(TOO_OLD.format(version))


def open_to_all(whole: Whole) -> None:
    """The simulated machine's files for every user, as a driver's device nodes are."""
    (description,) = (whole.agent.folder / "machines").glob("sim/*/machine.conf")
    description.parent.chmod(0o777)
    for path in description.parent.iterdir():
        path.chmod(0o666)


def test_row_51_a_distroless_image_of_nobody_is_limited(whole: Whole, namespace: str, tmp_path: Path) -> None:
    """No shell, no root, nothing writable, no capability."""
    open_to_all(whole)
    image = imported(whole, tmp_path, "distroless", lambda: libcs.glibc_image_files("bookworm"))
    assert_limited(
        whole,
        namespace,
        image,
        runAsUser=NOBODY,
        runAsGroup=NOBODY,
        runAsNonRoot=True,
        readOnlyRootFilesystem=True,
        allowPrivilegeEscalation=False,
        capabilities={"drop": ["ALL"]},
    )


@pytest.mark.parametrize(
    ("name", "files", "reason"),
    [
        ("musl", libcs.musl_image_files, "another libc than glibc"),
        ("static", libcs.static_image_files, "a static program"),
    ],
)
def test_rows_26_and_51_what_no_preload_library_reaches_is_told_in_describe(
    whole: Whole,
    namespace: str,
    name: str,
    files: Callable[[], dict[str, Content]],
    reason: str,
    tmp_path: Path,
) -> None:
    image = imported(whole, tmp_path, f"image-{name}", files)
    create(whole, namespace, container("main", image, "/bin/sh", "-c", "(echo alloc 32; sleep 600) | /bin/tenant"))
    wait_until(lambda: is_running(whole.plane, namespace, "p"), "it runs", 90)
    wait_until(lambda: whole.node.log_of(namespace, "p", "main"), "it has its memory", 30)
    assert whole.node.log_of(namespace, "p", "main") == "0\n"
    wait_until(lambda: events_of(whole.plane, namespace, "IsolationAbsent"), "an event", 15)
    described = whole.plane.kubectl("describe", "pod", "p", "-n", namespace)
    assert "IsolationAbsent" in described
    assert "without the limiter" in described
    assert reason in described
    series = f'namespace="{namespace}",pod="p",container="main",state="absent"'
    assert series in whole.agent.page("/metrics")[1]
