"""What docs/simulate.md shows is so: its example runs as it stands, and it names every policy and every option."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from tessera.cli.main import cli
from tessera.cli.simulate import command
from tessera.policy.rank import POLICIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/simulate.md").read_text()
EXAMPLE = next(line for line in PAGE.splitlines() if line.startswith("tessera simulate --nodes examples/"))


def test_the_example_leaves_the_files_that_the_page_lists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run = CliRunner().invoke(cli, [*shlex.split(EXAMPLE)[1:], "-j", "1"])
    assert run.exit_code == 0, run.output
    for name in ("summary.json", "curve.csv", "report.html", "fgd/1/placements.csv", "binpack/10/cluster.csv"):
        assert (tmp_path / "study" / name).is_file()
    header = (tmp_path / "study/fgd/1/cluster.csv").read_text().partition("\n")[0]
    assert f"`{header}`" in PAGE
    assert "held" in (tmp_path / "study/report.html").read_text()


def test_every_policy_is_named():
    assert {name for name in POLICIES if f"`{name}`" not in PAGE} == set()


def test_every_option_is_named():
    options = {option for p in command.params for option in p.opts if option.startswith("--")}
    assert {o for o in options if not re.search(rf"{o}\b", PAGE)} <= {"--jobs", "--seed", "--help"}


def test_a_report_without_a_folder_is_refused_before_anything_runs():
    run = CliRunner().invoke(cli, [*shlex.split(EXAMPLE)[1:6], "--report"])
    assert (run.exit_code, "add --out DIR" in run.output) == (2, True)
