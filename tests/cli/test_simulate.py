"""`tessera simulate` from files to files: what it writes, how it goes on, what it says to bad input."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from builders import a_share
from tessera.core.request import Claim, Dialect, Request
from tessera.simulator.result import Summary
from tessera.wire.kube.request import encode_request

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples/simulate"
NODES, PODS = str(EXAMPLE / "nodes.csv"), str(EXAMPLE / "pods.csv")

SMALL_NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,8000,65536,1,T4\na,8000,65536,2,P100\n"
SMALL_PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p1,1000,1024,1,600,
p0,1000,1024,1,600,T4
p2,1000,1024,1,600,T4
p3,1000,1024,0,0,
p4,1000,1024,2,1000,
"""


@pytest.fixture
def small(write) -> tuple[str, ...]:
    """A cluster of three devices and five pods, of which two find no room."""
    return ("simulate", "--nodes", write("nodes.csv", SMALL_NODES), "--pods", write("pods.csv", SMALL_PODS))


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_placements_curve_cluster_and_summary_of_a_run_that_can_be_followed_by_hand(tessera, small, tmp_path):
    out = tmp_path / "out"
    result = tessera(*small, "--policy", "best-fit", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    # p1 goes to the node that is left with less: b, the T4; p0 fits b no more, and p2 neither.
    assert (out / "placements.csv").read_text() == (
        "arrival,pod,node,gpus\n0,p1,b,0\n1,p0,,\n2,p2,,\n3,p3,b,\n4,p4,a,0;1\n"
    )
    assert (out / "cluster.csv").read_text() == (
        "node,model,cpu_milli,cpu_used,memory_mib,memory_used,devices\n"
        "b,T4,8000,2000,65536,2048,600\n"
        "a,P100,8000,1000,65536,1024,1000;1000\n"
    )
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    (run,) = summary.runs
    assert (run.arrived, run.placed, run.rejected, run.placements) == (5, 3, 2, "placements.csv")
    # 600, 1200, 1800, 1800 and 3800 milli of 3000 have arrived: the first no was at 40 %, both before 100 %.
    assert (run.first_rejection, run.early, run.end) == (40.0, 2, 86.67)
    assert summary.cluster.devices == 3
    assert summary.trace.pods == 5
    last = list(csv.DictReader((out / "curve.csv").read_text().splitlines()))[-1]
    assert (last["arrived"], last["allocation"]) == ("127", "86.67")


def test_a_sequence_says_what_arrives_in_rows_of_the_names_in_order(tessera, small, tmp_path):
    # By name: pods p0 to p4, nodes a and b. Arriving: p2, p0, p2; b before a.
    sequence = tmp_path / "seq.npz"
    np.savez(sequence, seq7=np.array([2, 0, 2], dtype=np.uint16), nodes7=np.array([1, 0], dtype=np.uint16))
    out = tmp_path / "out"
    assert tessera(*small, "--sequence", str(sequence), "--seed", "7", "--out", str(out)).exit_code == 0
    assert (out / "placements.csv").read_text() == "arrival,pod,node,gpus\n0,p2,b,0\n1,p0,,\n2,p2,,\n"
    assert (out / "cluster.csv").read_text().splitlines()[1].startswith("b,")


def test_the_command_in_the_summary_repeats_the_simulation(tessera, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    args = ("--nodes", NODES, "--pods", PODS, "--arrivals", "1.1", "--seeds", "3,5", "--policy", "fgd,random")
    assert tessera("simulate", *args, "--out", str(one), "-j", "1").exit_code == 0
    command = json.loads((one / "summary.json").read_text())["settings"]["command"]
    assert command.startswith("tessera simulate ")
    assert tessera(*command.split()[1:], "--out", str(two), "-j", "1").exit_code == 0
    assert files(one) == files(two)


def test_two_processes_write_the_same_bytes_as_one(tessera, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    args = ("simulate", "--nodes", NODES, "--pods", PODS, "--arrivals", "1.2", "--seeds", "1-3", "--policy", "fgd")
    assert tessera(*args, "--out", str(one), "-j", "1").exit_code == 0
    assert tessera(*args, "--out", str(two), "-j", "2").exit_code == 0
    assert files(one) == files(two)
    assert sorted(name for name in files(one) if "placements" in name) == [
        f"fgd/{seed}/placements.csv" for seed in (1, 2, 3)
    ]


def test_an_interrupted_simulation_goes_on_and_ends_with_the_same_bytes(tessera, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    args = ("simulate", "--nodes", NODES, "--pods", PODS, "--seeds", "1-3", "--policy", "random", "-j", "1")
    assert tessera(*args, "--out", str(whole)).exit_code == 0

    from tessera.simulator import batch  # noqa: PLC0415 -- patched below

    save, saved = batch.save_run, []

    def save_two(*run):
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(save(*run))
        return saved[-1]

    monkeypatch.setattr(batch, "save_run", save_two)
    stopped = tessera(*args, "--out", str(broken))
    assert stopped.exit_code != 0
    assert "call it again with the same options" in stopped.stderr
    assert not (broken / "summary.json").exists()
    performed: list[int] = []
    monkeypatch.setattr(batch, "save_run", lambda *run: performed.append(run[2].run.seed) or save(*run))
    assert tessera(*args, "--out", str(broken)).exit_code == 0
    assert performed == [3]
    assert files(whole) == files(broken)


def test_a_run_of_another_simulation_is_not_taken_for_this_one(tessera, write, tmp_path):
    out, nodes = tmp_path / "out", write("nodes.csv", SMALL_NODES)
    for pods in (SMALL_PODS, SMALL_PODS.replace("600", "500")):
        path = write("pods.csv", pods)
        assert (
            tessera(
                "simulate", "--nodes", nodes, "--pods", path, "--policy", "best-fit", "--out", str(out)
            ).exit_code
            == 0
        )
    assert (out / "cluster.csv").read_text().splitlines()[1].endswith(",1000")


def test_departures_drains_and_losses_are_told_of(tessera, tmp_path):
    out = tmp_path / "out"
    args = ("--departures", "0.9", "--lifetimes", "trace", "--failures", "0.2", "--drain", "4", "--sample", "8")
    result = tessera(
        "simulate", "--nodes", NODES, "--pods", PODS, *args, "--policy", "fgd", "--out", str(out), "-j", "1"
    )
    assert result.exit_code == 0, result.stderr
    churn = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary).runs[0].churn
    assert churn is not None
    assert 60 < churn.allocation < 95
    assert churn.departed > 300
    assert churn.failures > 0
    assert "MOVES PER 100" in result.stdout


BAD_FILES = [
    ("pods.csv", SMALL_PODS.replace("gpu_spec", "gpu_model"), ["pods.csv:1", "gpu_model", "unknown column"]),
    (
        "pods.csv",
        SMALL_PODS.replace("600,T4", "nan,T4", 1),
        ["pods.csv:3", "p0", "gpu_milli", "'nan'", "e.g. 500 for half"],
    ),
    ("pods.csv", SMALL_PODS.replace("1000,1024,0", "-1,1024,0"), ["pods.csv:5", "p3", "cpu_milli", "'-1'"]),
    (
        "pods.csv",
        SMALL_PODS.replace("600,T4", "600,H100", 1),
        ["pods.csv:3", "p0", "gpu_spec", "'H100'", "no node has"],
    ),
    ("nodes.csv", SMALL_NODES.replace("T4", "T5"), ["nodes.csv:2", "model", "'T5'"]),
    ("nodes.csv", SMALL_NODES.replace("8000,65536,1", "8000,65536,inf"), ["nodes.csv:2", "gpu", "'inf'"]),
]


@pytest.mark.parametrize(
    ("name", "text", "said"), BAD_FILES, ids=[" ".join(said[1:3]) for _, _, said in BAD_FILES]
)
def test_what_is_wrong_in_a_file_is_told_with_file_line_column_and_remedy(tessera, write, name, text, said):
    paths = {"nodes.csv": write("nodes.csv", SMALL_NODES), "pods.csv": write("pods.csv", SMALL_PODS)}
    paths[name] = write(name, text)
    result = tessera("simulate", "--nodes", paths["nodes.csv"], "--pods", paths["pods.csv"])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert all(word in line for word in said), line


def test_a_sequence_of_another_trace_is_refused(tessera, small, tmp_path):
    sequence = tmp_path / "seq.npz"
    np.savez(sequence, seq1=np.array([0, 5]), nodes1=np.array([0, 1]))
    result = tessera(*small, "--sequence", str(sequence))
    assert result.exit_code == 2
    assert "seq1[1]: names a pod outside the trace, which has 5 (got '5')" in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not an archive of arrays"),
        (b"PK\x03\x04 nonsense", "is not an archive of arrays"),
        (None, "is not there"),
    ],
)
def test_a_sequence_that_cannot_be_read_is_told(tessera, small, tmp_path, content, said):
    path = tmp_path / "seq.npz"
    if content is not None:
        path.write_bytes(content)
    result = tessera(*small, "--sequence", str(path))
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_sequence_of_numbers_with_fractions_is_refused(tessera, small, tmp_path):
    np.savez(tmp_path / "seq.npz", seq1=np.array([0.0, np.nan]), nodes1=np.array([0, 1]))
    result = tessera(*small, "--sequence", str(tmp_path / "seq.npz"))
    assert result.exit_code == 2
    assert "seq1: is not a row of whole numbers (got 'float64')" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "fgd,fastest"], "'fastest' is no policy"),
        (["--seeds", "9-1"], "neither a number nor a range"),
        (["--arrivals", "nan"], "not a number above 0"),
        (["--arrivals", "-1"], "not a number above 0"),
        (["--failures", "0.1"], "add --departures"),
        (["--drain", "9"], "0<=x<=8"),
        (["--sequence", "x.npz", "--arrivals", "1"], "leave out --arrivals"),
    ],
)
def test_options_that_mean_nothing_are_refused(tessera, small, options, said):
    result = tessera(*small, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_output_folder_that_cannot_be_written_is_told(tessera, small, tmp_path):
    (tmp_path / "file").write_text("")
    result = tessera(*small, "--out", str(tmp_path / "file" / "below"))
    assert result.exit_code == 1
    assert "name another folder with --out" in result.stderr


def test_an_independent_replay_finds_nothing_wrong_and_would(tessera, tmp_path):
    out = tmp_path / "out"
    args = ("--nodes", NODES, "--pods", PODS, "--arrivals", "1.4", "--policy", "pwr+")
    assert tessera("simulate", *args, "--out", str(out), "-j", "1").exit_code == 0
    placements = out / "placements.csv"
    assert replayed(placements) == (0, "")
    lines = placements.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.endswith(",0"))
    wrong = [*lines, lines[first].replace(lines[first].split(",")[0], "999", 1)] * 1
    placements.write_text("\n".join([*wrong, *wrong[first : first + 1] * 4]) + "\n")
    assert "over-committed" in replayed(placements)[1]
    placements.write_text("\n".join([*lines[:first], lines[first].rsplit(",", 2)[0] + ",,"]) + "\n")
    assert "has room" in replayed(placements)[1]


def replayed(placements: Path) -> tuple[int, str]:
    """Exit code and faults of tools/replay.py."""
    run = subprocess.run(
        [sys.executable, "tools/replay.py", NODES, PODS, str(placements)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, "\n".join(run.stdout.splitlines()[:-1])


def test_a_clusters_log_says_what_it_was_asked_for_and_what_could_be_given_back(tessera, write, tmp_path):
    # Three halves of a device on three nodes of one: two nodes hold them, one can go.
    half = encode_request(Request((Claim(("main",), 1, a_share(8192, 500)),)), Dialect.NATIVE)
    lines = [
        {"logger": "scheduler", "message": "bound", "pod": f"t/p{i}", "uid": f"u{i}", "request": half}
        for i in range(3)
    ]
    log = write("scheduler.log", "\n".join(map(json.dumps, lines)))
    out = tmp_path / "out"
    args = ("--from-cluster-log", log, "--nodes", "3x1xT4", "--policy", "spread", "--give-back", "--out", str(out))
    result = tessera("simulate", *args, "-j", "1")
    assert result.exit_code == 0, result.stderr
    assert "everything that was held is held on 2 of 3 nodes; to give back: node-2" in result.stdout
    (spare,) = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary).spares
    assert (spare.kept, spare.spare) == (2, ("node-2",))


def test_pods_have_to_come_from_somewhere(tessera):
    result = tessera("simulate", "--nodes", "1x1xT4")
    assert result.exit_code == 2
    assert "--from-cluster-log" in result.stderr
