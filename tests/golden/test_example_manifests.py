"""HAMi's and TensorFusion's own example manifests, read as written and as the API server rewrites them."""

import os
from pathlib import Path

import pytest
import yaml

from golden.expected import FOLDERS, Expected
from tessera.wire.manifests import read_manifests
from wire.objects import served

_BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
DATA = Path(os.environ.get("TESSERA_SHARED_DATA") or _BESIDE) / "manifests"

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"example manifests are not in {DATA}; set TESSERA_SHARED_DATA to their folder"
)

CASES = [
    pytest.param(folder, name, id=f"{folder}/{name}")
    for folder, (pods, skipped) in FOLDERS.items()
    for name in sorted(pods.keys() | skipped.keys())
]


def as_written(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def as_served(path: Path) -> str:
    return yaml.safe_dump_all(map(served, yaml.safe_load_all(as_written(path))))


def outcome(planned) -> Expected:
    pod, request = planned.pod, planned.pod.request
    facts = (request.claims, request.constraints, request.preference) if request else ()
    return Expected(
        pod.name, pod.dialect, *facts, node=(pod.cpu_milli, pod.memory_mib), warnings=len(planned.warnings)
    )


@pytest.mark.parametrize("text_of", [as_written, as_served])
@pytest.mark.parametrize(("folder", "name"), CASES)
def test_an_example_asks_for_what_its_own_system_gives_it(folder, name, text_of):
    pods, skipped = FOLDERS[folder]
    found = read_manifests([(name, text_of(DATA / folder / name))])
    assert found.problems == ()
    assert [outcome(planned) for planned in found.pods] == pods.get(name, [])
    assert [(s.kind, s.name) for s in found.skipped] == skipped.get(name, [])


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_every_example_has_an_expectation(folder):
    pods, skipped = FOLDERS[folder]
    assert {path.name for path in (DATA / folder).glob("*.yaml")} == pods.keys() | skipped.keys()


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_whole_folder_is_read_at_once(folder):
    paths = sorted((DATA / folder).glob("*.yaml"))
    found = read_manifests([(path.name, as_written(path)) for path in paths])
    assert found.problems == ()
    assert len(found.pods) == sum(len(pods) for pods in FOLDERS[folder][0].values())
    assert len({planned.pod.uid for planned in found.pods}) == len(found.pods)


def test_examples_of_other_vendors_are_read_without_a_device_and_say_so():
    paths = [path for path in sorted((DATA / "hami").rglob("*.yaml")) if path.parent.name != "nvidia"]
    found = read_manifests([(str(path), as_written(path)) for path in paths])
    assert found.problems == ()
    assert found.pods
    for planned in found.pods:
        assert planned.pod.request is None
        assert any("does not hand out" in problem.message for problem in planned.warnings), planned.source
