"""How `kubectl tessera` is called, without a cluster: help, wrong calls, and what a watch prints."""

import pytest
from click.testing import CliRunner

from tessera.cli import kubectl
from tessera.cli.cluster_lines import changed
from tessera.core.errors import InputErrors


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No kubeconfig, and no pod's account."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize("args", [(), ("devices",), ("explain",), ("top",), ("resize",)])
def test_every_verb_has_help(args: tuple[str, ...]) -> None:
    for spelling in ("-h", "--help"):
        result = CliRunner().invoke(kubectl.command, [*args, spelling], prog_name=kubectl.PROGRAM)
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: kubectl tessera {' '.join(args)}".rstrip())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("top", "nodes"), "'nodes' is not one of 'pods', 'devices'"),
        (("explain",), "Missing argument 'POD'"),
        (("resize", "p"), "say what to change: --memory, --compute or both"),
        (("devices", "-o", "xml"), "'xml' is not one of"),
        (("watch",), "No such command 'watch'"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_with_it(args: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(kubectl.command, args)
    assert (result.exit_code, said in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "args",
    [
        ("devices", "-A"),
        ("top", "pod"),
        ("-n", "x", "top", "po"),
        ("explain", "p"),
        ("resize", "p", "--memory", "1Gi"),
    ],
)
def test_without_a_cluster_the_remedy_is_named(nowhere: None, args: tuple[str, ...]) -> None:
    result = CliRunner().invoke(kubectl.command, args)
    assert isinstance(result.exception, InputErrors)
    assert "no cluster is configured" in str(result.exception)
    assert "--kubeconfig" in str(result.exception)


def test_completion_is_silent_where_there_is_no_cluster(nowhere: None, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-tessera", "devices", "n"])
    kubectl.complete()
    assert capsys.readouterr().out.split() == [":4"]


def test_a_watch_prints_the_lines_that_changed() -> None:
    looks = iter([["HEAD", "a 1", "b 1"], ["HEAD", "a 1", "b 1"], ["HEAD", "b 1"], ["HEAD", "a 2", "b 1"]])
    first = next(looks)
    given = {"interval": 0, "watch": True, "style": "table"}
    # Nothing changed, then a row went away, which is no new line, and then there is one.
    assert kubectl._next(given, lambda: next(looks), first) == ["a 2"]
    assert changed(["x", "y"], ["y", "z", "x", "w"]) == ["z", "w"]


def test_a_watch_of_documents_prints_them_whole() -> None:
    looks = iter([["{", "1"], ["{", "2"]])
    given = {"interval": 0, "watch": True, "style": "json"}
    assert kubectl._next(given, lambda: next(looks), ["{", "1"]) == ["{", "2"]
