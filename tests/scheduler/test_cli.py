"""``tessera scheduler`` on the command line."""

import json
from pathlib import Path

import yaml
from click.testing import CliRunner

from tessera.cli.main import cli


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["scheduler", *arguments])
    return result.exit_code, result.output


def test_the_configuration_is_printed_for_the_profiles_that_are_named() -> None:
    code, text = run("config", "--profile", "tessera-scheduler", "--profile", "default-scheduler", "--lease", "")
    found = yaml.safe_load(text)
    assert code == 0
    assert [profile["schedulerName"] for profile in found["profiles"]] == [
        "tessera-scheduler",
        "default-scheduler",
    ]
    assert found["leaderElection"] == {"leaderElect": False}
    assert found["extenders"][0]["bindVerb"] == "bind"


def test_the_default_profile_is_ours_alone() -> None:
    _, text = run("config")
    assert [profile["schedulerName"] for profile in yaml.safe_load(text)["profiles"]] == ["tessera-scheduler"]


def test_a_kubeconfig_that_is_not_there_is_wrong_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["scheduler", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 2


def test_a_bind_address_that_is_none_is_wrong_input(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    result = CliRunner().invoke(cli, ["scheduler", "--kubeconfig", str(config), "--bind", "nowhere"])
    assert result.exit_code == 2
