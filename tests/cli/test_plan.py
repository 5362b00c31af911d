"""`tessera plan` from files to table, document and exit code, on fleets small enough to place by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tessera.wire.planfile import Plan

ROOT = Path(__file__).parent.parent.parent


def pod(name: str, limits: str, metadata: str = "") -> str:
    return (
        "apiVersion: v1\nkind: Pod\n"
        f"metadata: {{name: {name}{metadata and ', ' + metadata}}}\n"
        f"spec: {{containers: [{{name: main, image: x, resources: {{limits: {{{limits}}}}}}}]}}\n"
    )


HALF = "nvidia.com/gpu: 1, nvidia.com/gpumem: 8000, nvidia.com/gpucores: 50"
WHOLE = "tessera.dev/gpu: 1"
BIG = "tessera.dev/gpu: 1, tessera.dev/memory: 20Gi, tessera.dev/compute: 10"
WEB = "cpu: 1"


def document(tessera, *args: str, code: int = 0, stdin: str = "") -> dict[str, Any]:
    result = tessera("plan", *args, "-o", "json", stdin=stdin)
    assert result.exit_code == code, result.stderr
    made = json.loads(result.stdout)
    msgspec.convert(made, Plan)
    return made


def where(made: dict[str, Any]) -> dict[str, tuple[str | None, list[int]]]:
    """Node and device indices by pod."""
    return {p["name"]: (p["node"], [charge["index"] for charge in p["charges"]]) for p in made["pods"]}


def test_binpack_fills_a_device_before_it_opens_another(tessera, write) -> None:
    # A T4 has 16,384 MiB: two of 8,000 MiB and 50 % fit, a third does not.
    path = write("pods.yaml", "---\n".join(pod(f"p{i}", HALF) for i in range(3)))
    made = document(tessera, "-f", path, "--fleet", "2x2xT4")
    assert where(made) == {"p0": ("node-0", [0]), "p1": ("node-0", [0]), "p2": ("node-0", [1])}


def test_spread_takes_the_emptiest_node_and_device(tessera, write) -> None:
    path = write("pods.yaml", "---\n".join(pod(f"p{i}", HALF) for i in range(3)))
    made = document(tessera, "-f", path, "--fleet", "2x2xT4", "--policy", "spread")
    assert where(made) == {"p0": ("node-0", [0]), "p1": ("node-1", [0]), "p2": ("node-0", [1])}


def test_the_document_holds_what_was_decided_on_each_pod(tessera, write) -> None:
    path = write("all.yaml", "---\n".join((pod("half", HALF), pod("big", BIG), pod("web", WEB))))
    made = document(tessera, "-f", path, "--fleet", "1xT4", code=1)
    half, big, web = made["pods"]
    assert (half["outcome"], half["dialect"], half["object"]) == ("placed", "hami", "Pod/default/half")
    assert half["containers"] == {
        "main": {
            "devices": [
                {
                    "uuid": "GPU-node-0-0",
                    "index": 0,
                    "model": "Tesla T4",
                    "memory_mib": {"request": 8000, "limit": 8000},
                    "compute_milli": {"request": 500, "limit": 500},
                }
            ]
        }
    }
    assert (big["outcome"], big["dialect"], big["node"]) == ("rejected", "native", None)
    (reason,) = big["reasons"]
    assert (reason["nodes"], reason["node_count"]) == (["node-0"], 1)
    (shortfall,) = reason["shortfalls"]
    # 20 GiB are asked for; 16,384 - 8,000 MiB are left.
    assert (shortfall["reason"], shortfall["asked"], shortfall["best"]) == ("memory", 20_480, 8384)
    suggestion = big["suggestions"][0]
    assert (suggestion["change"], suggestion["value"], suggestion["nodes"]) == ("memory", 8384, ["node-0"])
    assert (web["outcome"], web["dialect"]) == ("not-ours", None)
    assert made["summary"] == {
        "placed": 1,
        "rejected": 1,
        "not_ours": 1,
        "invalid": 0,
        "skipped": 0,
        "memory_mib": {"capacity": 16_384, "before": 0, "after": 8000},
        "compute_milli": {"capacity": 1000, "before": 0, "after": 500},
    }
    assert made["fleet"] == {
        "source": "1xT4", "nodes": 1, "devices": 1, "memory_mib": 16_384, "notes": []
    }  # fmt: skip


def test_a_request_beyond_every_device_is_a_rejection_that_names_the_largest(tessera, write) -> None:
    path = write("pod.yaml", pod("huge", "tessera.dev/gpu: 1, tessera.dev/memory: 200Gi"))
    made = document(tessera, "-f", path, "--fleet", "8xT4+1xA100-SXM4-80GB", code=1)
    best = [s["best"] for reason in made["pods"][0]["reasons"] for s in reason["shortfalls"]]
    assert max(best) == 81_920


def test_pods_that_are_not_ours_do_not_count_against_the_call(tessera, write) -> None:
    path = write("pods.yaml", "---\n".join((pod("web", WEB), pod("gpu", WHOLE))))
    assert tessera("plan", "-f", path, "--fleet", "1xT4").exit_code == 0


def test_json_and_yaml_are_the_same_document_and_the_same_every_time(tessera, write) -> None:
    path = write("pods.yaml", "---\n".join((pod("half", HALF), pod("big", BIG))))
    args = ("plan", "-f", path, "--fleet", "1xT4", "-o")
    first, second, third = tessera(*args, "json"), tessera(*args, "json"), tessera(*args, "yaml")
    assert first.stdout == second.stdout
    assert json.loads(first.stdout) == yaml.safe_load(third.stdout)


def test_folders_are_read_at_any_depth_in_order_without_hidden_files(tessera, write, tmp_path: Path) -> None:
    write("m/b.yaml", pod("b", WHOLE))
    write("m/a/deep.yml", pod("deep", WHOLE))
    write("m/a.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(pod("a", WHOLE))]}))
    write("m/.hidden.yaml", "not: [valid")
    write("m/.git/c.yaml", "not: [valid")
    write("m/readme.md", "not: [valid")
    made = document(tessera, "-f", str(tmp_path / "m"), "--fleet", "8xT4")
    assert [p["name"] for p in made["pods"]] == ["a", "deep", "b"]


def test_paths_follow_f_or_stand_alone_and_a_file_is_read_once(tessera, write) -> None:
    one, two = write("one.yaml", pod("one", WHOLE)), write("two.yaml", pod("two", WHOLE))
    made = document(tessera, "-f", one, two, "--fleet", "8xT4", "-f", one)
    assert sorted(p["name"] for p in made["pods"]) == ["one", "two"]


def test_a_dash_is_standard_input(tessera) -> None:
    made = document(tessera, "-f", "-", "--fleet", "1xT4", stdin=pod("p", WHOLE))
    assert [(p["name"], p["source"]) for p in made["pods"]] == [("p", "stdin")]


def test_a_daemon_set_meets_the_fleets_labels(tessera, write) -> None:
    fleet = write(
        "fleet.yaml",
        "apiVersion: tessera.dev/v1\nkind: Fleet\nnodes:\n"
        "  - {name: a, count: 2, labels: {pool: x}, devices: [{model: T4}]}\n"
        "  - {name: b, devices: [{model: T4}]}\n",
    )
    daemon = (
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec: {template: {spec: {nodeSelector: "
        "{pool: x}, containers: [{name: main, resources: {limits: {tessera.dev/gpu: 1}}}]}}}\n"
    )
    made = document(tessera, "-f", write("d.yaml", daemon), "--fleet", fleet)
    assert sorted(p["node"] for p in made["pods"]) == ["a-0", "a-1"]


def test_a_traces_lists_are_planned_by_model(tessera, write) -> None:
    nodes = write("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\nn-0,8000,8192,1,T4\nn-1,8000,8192,2,G2\n")
    pods = write(
        "pods.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
        "p-0,1000,1024,1,500,G2\np-1,1000,1024,2,1000,G2\np-2,9000,1024,1,500,T4\np-3,1000,1024,0,0,\n",
    )
    made = document(tessera, "-f", pods, "--fleet", nodes, code=1)
    # p-1 finds only one of the two G2 untouched; p-2 wants more CPU than the T4's node has.
    assert [p["outcome"] for p in made["pods"]] == ["placed", "rejected", "rejected", "not-ours"]
    assert made["pods"][0]["charges"][0]["memory_mib"] == 16_384
    assert len(made["fleet"]["notes"]) == 1


# the table


def test_the_table_has_a_row_for_each_pod_and_a_block_for_what_was_refused(tessera, write) -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\n"
    path = write("all.yaml", "---\n".join((pod("half", HALF), pod("big", BIG), pod("web", WEB), service)))
    result = tessera("plan", "-f", path, "--fleet", "1xT4")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert [line.split() for line in lines[1:4]] == [
        ["default/half", "hami", "placed", "node-0", "0:8000Mi/50%"],
        ["default/big", "native", "rejected", "-", "-"],
        ["default/web", "-", "not", "ours", "-", "-"],
    ]
    refused = lines[lines.index("Rejected:") + 1 :]
    assert refused[0] == f"  default/big ({path})"
    assert "asked 20,480 MiB, largest free 8,384 MiB" in refused[1]
    assert refused[2] == "    would fit: lower memory to 8,384 MiB"
    assert any(line.startswith("  Service front:") for line in lines)
    # 8,000 of 16,384 MiB are 48.8 %.
    assert "Allocated memory 0.0% -> 48.8% and compute 0.0% -> 50.0% of the fleet" in lines
    assert lines[-1] == "Pods 1 placed, 1 rejected, 1 not ours; 1 object skipped"


def test_the_table_joins_equal_neighbours_and_shows_peaks(tessera, write) -> None:
    path = write("pods.yaml", pod("p", "tessera.dev/gpu: 3, tessera.dev/memory: 4Gi, tessera.dev/compute: 12"))
    assert "0-2:4Gi/12%" in tessera("plan", "-f", path, "--fleet", "4xT4").stdout


def test_wide_adds_containers_with_uuid_request_and_limit(tessera, write) -> None:
    path = write("pods.yaml", pod("p", HALF))
    text = tessera("plan", "-f", path, "--fleet", "1xT4", "-o", "wide").stdout
    assert (
        "  main: GPU-node-0-0 (Tesla T4), memory 8,000 MiB (limit 8,000 MiB), compute 50% (limit 50%)"
    ) in text.splitlines()


def test_pods_refused_alike_are_shown_once(tessera, write) -> None:
    path = write("pods.yaml", "---\n".join(pod(f"p{i}", BIG) for i in range(5)))
    text = tessera("plan", "-f", path, "--fleet", "1xT4").stdout
    assert "  default/p0 and 4 more like it " in text
    assert text.count("would fit:") == 1


def test_names_are_never_cut_and_never_coloured_in_a_pipe(tessera, write) -> None:
    name = "n" * 60
    path = write("pods.yaml", pod(name, HALF))
    env = {"PATH": os.environ["PATH"], "COLUMNS": "40"}
    code = "from tessera.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "-f", path, "--fleet", "1xT4"],
        capture_output=True, text=True, env=env, check=True,
    )  # fmt: skip
    assert f"default/{name}" in done.stdout
    assert "\x1b" not in done.stdout


# invalid input: exit 2, nothing placed, a line for every problem

ANNOTATED = "annotations: {tessera.dev/modle: T4}"
TF = "labels: {tensor-fusion.ai/enabled: 'true'}, annotations: "

BAD = {
    "unparseable": (pod("p", "tessera.dev/gpu: 1, tessera.dev/memory: 4Gb"), "tessera.dev/memory", "4Gb"),
    "negative": (pod("p", "tessera.dev/gpu: 1, tessera.dev/memory: -4Gi"), "tessera.dev/memory", "-4Gi"),
    "negative count": (pod("p", "nvidia.com/gpu: -1"), "nvidia.com/gpu", "-1"),
    "no device": (pod("p", "tessera.dev/gpu: 0, tessera.dev/memory: 4Gi"), "tessera.dev/gpu", "0"),
    "over 100 percent": (pod("p", "tessera.dev/gpu: 1, tessera.dev/compute: 101"), "tessera.dev/compute", "101"),
    "unknown annotation": (pod("p", WHOLE, ANNOTATED), "tessera.dev/modle", ""),
    "two dialects": (pod("p", f"{HALF}, tessera.dev/gpu: 1, tessera.dev/memory: 1Gi"), "", ""),
    "TFLOPS of an unknown model": (
        pod(
            "p",
            WEB,
            TF + "{tensor-fusion.ai/tflops-request: '10', tensor-fusion.ai/vram-request: 1Gi, "
            "tensor-fusion.ai/gpu-model: Zork-9}",
        ),
        "tensor-fusion.ai/gpu-model",
        "Zork-9",
    ),
    "one name twice": (pod("p", WHOLE) + "---\n" + pod("p", WHOLE), "", ""),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_manifest_is_a_line_with_file_object_field_value_and_remedy(tessera, write, case: str) -> None:
    text, field, value = BAD[case]
    path = write("bad.yaml", text)
    result = tessera("plan", "-f", path, "--fleet", "4xT4")
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(errors) == 1
    (line,) = errors
    assert line.startswith(f"error: {path}: Pod/default/p: ")
    assert field in line
    assert not value or f"got '{value}'" in line
    assert "; " in line, "a remedy"


def test_broken_yaml_is_a_line_with_its_place(tessera, write) -> None:
    path = write("bad.yaml", "apiVersion: v1\nkind: Pod: x\n")
    result = tessera("plan", "-f", path, "--fleet", "4xT4")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2
    assert line.startswith(f"error: {path}: line 2, column ")


def test_every_problem_of_every_input_is_shown_and_nothing_is_placed(tessera, write, tmp_path: Path) -> None:
    fleet = write(
        "fleet.yaml",
        "apiVersion: tessera.dev/v1\nkind: Fleet\nnodes:\n"
        "  - {name: a, devices: [{model: T4, uuid: GPU-1}, {model: T4, uuid: GPU-1}]}\n",
    )
    bad = write("bad.yaml", BAD["negative"][0] + "---\n" + BAD["no device"][0].replace("name: p}", "name: q}"))
    trace = write("pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np-0,NaN,1,1,1000\n")
    result = tessera("plan", "-f", bad, trace, str(tmp_path / "gone.yaml"), "--fleet", fleet)
    starts = [line.removeprefix("error: ").split(": ")[0] for line in result.stderr.splitlines()]
    assert (result.exit_code, result.stdout) == (2, "")
    assert sorted(starts) == sorted([fleet, bad, bad, f"{trace}:2", str(tmp_path / "gone.yaml")])


def test_an_invalid_call_still_prints_a_document_of_its_errors(tessera, write) -> None:
    path = write("bad.yaml", BAD["negative"][0] + "---\n" + pod("fine", WHOLE))
    made = document(tessera, "-f", path, "--fleet", "4xT4", code=2)
    assert [(p["name"], p["outcome"]) for p in made["pods"]] == [("p", "invalid")]
    (error,) = made["errors"]
    assert (error["source"], error["object"], error["value"]) == (path, "Pod/default/p", "-4Gi")
    assert (made["summary"]["placed"], made["summary"]["invalid"]) == (0, 1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-f", "nowhere.yaml", "--fleet", "1xT4"), "nowhere.yaml: is not there"),
        (("-f", "-", "--fleet", "1xZork"), "'Zork'"),
        (("-f", "-", "--fleet", "nothing"), "neither a file nor a fleet in short"),
        (("-f", "-",), "Missing option '--fleet'"),
        (("--fleet", "1xT4"), "name manifests with -f PATH"),
        (("-f", "-", "--fleet", "-"), "cannot both come from standard input"),
        (("-f", "-", "--fleet", "1xT4", "--policy", "sideways"), "'sideways' is not one of"),
    ],
)  # fmt: skip
def test_a_wrong_call_says_what_is_wrong_with_it(tessera, args: tuple[str, ...], said: str) -> None:
    result = tessera("plan", *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_an_empty_folder_and_a_file_that_is_no_text_are_problems(tessera, write, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"a: \xff\xfe")
    result = tessera("plan", "-f", str(tmp_path / "empty"), str(tmp_path / "binary.yaml"), "--fleet", "1xT4")
    first, second = result.stderr.splitlines()
    assert result.exit_code == 2
    assert "empty: has no *.json, *.yaml, *.yml in it" in first
    assert "binary.yaml: is not UTF-8" in second


# the examples


def test_the_demo_is_planned_on_the_example_fleet(tessera) -> None:
    made = document(
        tessera, "-f", str(ROOT / "examples/demo"), "--fleet", str(ROOT / "examples/fleet-openb.yaml"), code=1
    )
    fleet, by_name = made["fleet"], {p["name"]: p["outcome"] for p in made["pods"]}
    # Source: the totals that are published with the trace.
    assert (fleet["nodes"], fleet["devices"]) == (1213, 6212)
    assert {name for name, outcome in by_name.items() if outcome == "rejected"} == {
        "merge-checkpoints", "fp8-bench", "sixteen-cards", "long-context", "render-farm",
    }  # fmt: skip
    assert made["summary"]["placed"] > 100
    assert {p["dialect"] for p in made["pods"]} == {"native", "hami", "tensor-fusion", None}


SELECTING = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {gpu: "on"}
  containers: [{name: main, image: main, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
LABELLED = """
apiVersion: tessera.dev/v1
kind: Fleet
nodes:
  - {name: plain, devices: [{model: T4}]}
  - {name: lit, labels: {gpu: "on"}, devices: [{model: T4}]}
"""


def test_node_selectors_count_where_the_fleet_gives_labels(tessera, write) -> None:
    result = tessera(
        "plan", "-f", write("p.yaml", SELECTING), "--fleet", write("fleet.yaml", LABELLED), "-o", "json"
    )
    document = json.loads(result.stdout)
    assert document["pods"][0]["node"] == "lit"
    assert document["fleet"]["notes"] == []


@pytest.mark.parametrize(
    ("selector", "node"), [('gpu: "on"', "node-0"), ("kubernetes.io/hostname: node-1", "node-1")]
)
def test_node_selectors_are_left_out_and_said_to_be_where_the_fleet_gives_none(
    tessera, write, selector: str, node: str
) -> None:
    path = write("p.yaml", SELECTING.replace('gpu: "on"', selector))
    result = tessera("plan", "-f", path, "--fleet", "2x1xT4", "-o", "json")
    document = json.loads(result.stdout)
    assert document["pods"][0]["node"] == node
    assert ["no labels" in note for note in document["fleet"]["notes"]] == ([True] if "gpu" in selector else [])


DAEMONS = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
spec:
  selector: {}
  template:
    metadata: {}
    spec:
      nodeSelector: {gpu: "on"}
      containers: [{name: main, image: main, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


def test_a_daemon_set_runs_on_every_node_of_a_fleet_without_labels(tessera, write) -> None:
    result = tessera("plan", "-f", write("d.yaml", DAEMONS), "--fleet", "3x1xT4", "-o", "json")
    assert [pod["node"] for pod in json.loads(result.stdout)["pods"]] == ["node-0", "node-1", "node-2"]
