"""The plan as a document: its schema is the published one, and what is capped says how much there was."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec

from builders import a_claim, a_fleet, a_node, a_pod, a_share
from tessera.allocator.plan import plan
from tessera.policy.rank import DEFAULT_POLICY, POLICIES
from tessera.wire.manifests import Manifests, PlannedPod
from tessera.wire.planfile import NAMES_SHOWN, Outcome, Plan, fleet_entry, plan_of

ROOT = Path(__file__).parent.parent.parent


def made(pods, nodes) -> Plan:
    return plan_of(
        DEFAULT_POLICY,
        fleet_entry("here", nodes, ("a note",)),
        nodes,
        manifests=Manifests(pods=tuple(PlannedPod(pod, "f.yaml", f"Pod/{pod.key}") for pod in pods)),
        verdicts=plan(pods, a_fleet(*nodes), POLICIES[DEFAULT_POLICY]),
    )


def test_the_published_schema_is_generated_from_the_shapes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/plan_schema.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "docs/plan.schema.json is as generated\n")


def test_the_schema_names_every_outcome_and_marks_every_field_that_is_always_there() -> None:
    shapes = json.loads((ROOT / "docs/plan.schema.json").read_text(encoding="utf-8"))["$defs"]
    assert set(shapes["Outcome"]["enum"]) == {outcome.value for outcome in Outcome}
    assert {"policy", "fleet", "summary", "pods", "skipped", "errors"} <= set(shapes["Plan"]["required"])


def test_a_document_survives_its_encoding() -> None:
    document = made([a_pod(a_claim(a_share(1024, 100)))], [a_node()])
    assert msgspec.json.decode(msgspec.json.encode(document), type=Plan) == document
    assert json.loads(msgspec.json.encode(document))["apiVersion"] == "tessera.dev/v1"


def test_nodes_beyond_those_shown_are_counted() -> None:
    nodes = [a_node(f"n{i:02}") for i in range(NAMES_SHOWN + 5)]
    (pod,) = made([a_pod(a_claim(a_share(memory=99_999)))], nodes).pods
    (reason,) = pod.reasons
    assert (len(reason.nodes), reason.node_count) == (NAMES_SHOWN, NAMES_SHOWN + 5)


def test_charges_are_the_peak_of_all_containers_on_a_device() -> None:
    pod = a_pod(a_claim(a_share(1000, 100), containers="a"), a_claim(a_share(2000, 200), containers="b"))
    (entry,) = made([pod], [a_node()]).pods
    (charge,) = entry.charges
    assert (charge.memory_mib, charge.compute_milli) == (3000, 300)
    assert set(entry.containers) == {"a", "b"}


def test_levels_count_every_device_of_the_fleet() -> None:
    summary = made([a_pod(a_claim(a_share(1000, 100)))], [a_node(devices=2, memory=5000)]).summary
    assert (summary.memory_mib.capacity, summary.memory_mib.before, summary.memory_mib.after) == (10_000, 0, 1000)
    assert (summary.compute_milli.capacity, summary.compute_milli.after) == (2000, 100)
