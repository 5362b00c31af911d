"""Where the engine's programs come from, and what happens to tests where they are missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.engine import binaries

ROOT = Path(__file__).parents[2]
A_TEST = "tests/cluster/test_control_plane.py::test_stopping_leaves_no_process"


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No program is anywhere."""
    monkeypatch.setenv("TESSERA_ENGINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def put(folder: Path, *names: str) -> None:
    """Programs that are there, in name."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(mode=0o755)


def test_given_programs_win_and_what_they_lack_comes_from_the_build(nowhere, monkeypatch):
    put(nowhere / "given", "etcd", "kube-apiserver", "kubectl")
    put(binaries.built_folder(), *binaries.NAMES)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(nowhere / "given"))
    assert binaries.program("etcd") == nowhere / "given/etcd"
    assert binaries.program("helm") == binaries.built_folder() / "helm"
    assert not binaries.missing_reason(*binaries.NAMES)


def test_who_gives_the_three_programs_of_envtest_builds_nothing(nowhere, monkeypatch):
    put(nowhere / "given", "etcd", "kube-apiserver", "kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(nowhere / "given"))
    monkeypatch.setenv("PATH", str(nowhere))
    assert binaries.build() == nowhere / "given"
    reason = binaries.missing_reason("etcd", "helm", "kubelet")
    assert reason.startswith("helm, kubelet: not in KUBEBUILDER_ASSETS=")


def test_a_folder_without_programs_is_an_error_that_names_them(nowhere, monkeypatch):
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(nowhere))
    with pytest.raises(
        binaries.EngineMissingError, match="etcd, kube-apiserver, kubectl: not in KUBEBUILDER_ASSETS"
    ):
        binaries.build()


def test_without_go_the_build_says_what_to_install(nowhere, monkeypatch):
    monkeypatch.setenv("PATH", str(nowhere))
    with pytest.raises(
        binaries.EngineMissingError, match=r"go is not on PATH .* install Go .* KUBEBUILDER_ASSETS"
    ):
        binaries.build()


def test_other_sources_are_another_build(nowhere, monkeypatch):
    sources = nowhere / "sources"
    sources.mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (sources / name).write_bytes((binaries.SOURCES / name).read_bytes())
    before = binaries.source_hash()
    monkeypatch.setattr(binaries, "SOURCES", sources)
    assert binaries.source_hash() == before
    (sources / "main.go").write_text("package main\n")
    assert binaries.source_hash() != before


def test_the_programs_are_told_their_versions():
    flags = binaries.version_flags().split()
    version = binaries.pinned_version("k8s.io/kubernetes")
    assert f"k8s.io/component-base/version.gitVersion=v{version}" in flags
    assert f"k8s.io/component-base/version.gitMinor={version.split('.')[1]}" in flags


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_without_programs_a_test_is_skipped_with_the_reason_but_fails_in_ci(nowhere, ci, outcome):
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rsE", A_TEST],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert outcome in run.stdout
    assert "the engine is not built in" in run.stdout
