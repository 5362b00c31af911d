"""Fleets as people write them: what a text means, and that everything wrong with it is said."""

import pytest

from tessera.core.device import Node
from tessera.core.errors import Problem
from tessera.wire.fleetfile import FleetInput, is_shorthand, read_fleet, read_shorthand

HEAD = "apiVersion: tessera.dev/v1\nkind: Fleet\n"


def nodes_of(body: str) -> tuple[Node, ...]:
    found = read_fleet("fleet.yaml", HEAD + body)
    assert found.problems == ()
    return found.nodes


def problems_of(body: str) -> dict[str, Problem]:
    """Problems by path; every one names the file, and none comes with nodes."""
    found = read_fleet("fleet.yaml", HEAD + body)
    assert found.nodes == ()
    assert all(problem.source == "fleet.yaml" and problem.remedy for problem in found.problems)
    return {problem.field: problem for problem in found.problems}


def test_a_counted_node_is_numbered_with_as_many_digits_as_the_last_needs() -> None:
    assert [node.name for node in nodes_of("nodes: [{name: a, count: 3}]")] == ["a-0", "a-1", "a-2"]
    names = [node.name for node in nodes_of("nodes: [{name: a, count: 11}]")]
    assert (names[0], names[9], names[10]) == ("a-00", "a-09", "a-10")


def test_a_node_without_a_count_keeps_its_name() -> None:
    assert [node.name for node in nodes_of("nodes: [{name: a}]")] == ["a"]


def test_amounts_are_counted_in_the_units_of_the_core() -> None:
    (node,) = nodes_of(
        "nodes: [{name: a, cpu: 1500m, memory: 2Gi, pods: 110, devices: [{model: Own, memory: 24Gi, slots: 7}]}]"
    )
    assert (node.cpu_milli, node.memory_mib, node.max_pods) == (1500, 2048, 110)
    assert (node.devices[0].memory_mib, node.devices[0].slots) == (24_576, 7)


def test_a_known_model_brings_memory_compute_vendor_and_the_drivers_name() -> None:
    (node,) = nodes_of("nodes: [{name: a, devices: [{model: T4}]}]")
    device = node.devices[0]
    assert (device.model, device.memory_mib, device.milli_tflops) == ("Tesla T4", 16_384, 65_000)


def test_a_listed_model_overrides_what_is_known_and_keeps_its_name() -> None:
    (node,) = nodes_of(
        "models: [{name: T4, memory: 15Gi, tflops: 60.5}]\nnodes: [{name: a, devices: [{model: T4}]}]"
    )
    device = node.devices[0]
    assert (device.model, device.memory_mib, device.milli_tflops) == ("T4", 15_360, 60_500)


def test_devices_are_numbered_across_entries_and_named_by_node_and_index() -> None:
    (node,) = nodes_of(
        "nodes: [{name: a, devices: [{model: T4, count: 2}, {model: A10, index: 4}, {model: A10}]}]"
    )
    assert [device.index for device in node.devices] == [0, 1, 4, 5]
    assert [device.uuid for device in node.devices] == ["GPU-a-0", "GPU-a-1", "GPU-a-4", "GPU-a-5"]


def test_numa_is_one_number_for_all_or_a_list_with_one_for_each() -> None:
    (node,) = nodes_of(
        "nodes: [{name: a, devices: [{model: T4, count: 2, numa: 1}, {model: T4, count: 2, numa: [0, 1]}]}]"
    )
    assert [device.numa for device in node.devices] == [1, 1, 0, 1]


def test_states_and_labels_are_taken_over() -> None:
    (node,) = nodes_of(
        "nodes: [{name: a, cordoned: true, labels: {zone: b},"
        " devices: [{model: T4, healthy: false, cordoned: true, mode: mig, uuid: GPU-x}]}]"
    )
    device = node.devices[0]
    assert (node.cordoned, dict(node.labels)) == (True, {"kubernetes.io/hostname": "a", "zone": "b"})
    assert (device.healthy, device.cordoned, device.mode, device.uuid) == (False, True, "mig", "GPU-x")


def test_every_problem_of_a_file_is_reported_at_once() -> None:
    found = problems_of(
        "nodes:\n"
        "  - {name: a, cpu: -1, mem: 4Gi, pods: 0, cordoned: maybe, labels: {a: 1}}\n"
        "  - {name: B, count: 0, devices: [{model: T4, count: 0, memory: 0, slots: 0, helthy: true}]}\n"
    )
    assert set(found) == {
        "nodes[0].cpu",
        "nodes[0].mem",
        "nodes[0].pods",
        "nodes[0].cordoned",
        "nodes[0].labels",
        "nodes[1].name",
        "nodes[1].count",
        "nodes[1].devices[0].count",
        "nodes[1].devices[0].memory",
        "nodes[1].devices[0].slots",
        "nodes[1].devices[0].helthy",
    }


def test_an_unknown_key_is_met_with_the_nearest_one() -> None:
    assert "devices" in problems_of("nodes: [{name: a, device: []}]")["nodes[0].device"].remedy


@pytest.mark.parametrize("amount", ["-4Gi", "0", "4Q", "true", "1023Ki", "2Pi", "[]"])
def test_an_amount_that_is_none_is_a_problem_that_shows_it(amount: str) -> None:
    found = problems_of(f"nodes: [{{name: a, devices: [{{model: T4, memory: {amount}}}]}}]")
    assert set(found) == {"nodes[0].devices[0].memory"}
    assert "80Gi" in found["nodes[0].devices[0].memory"].remedy


def test_an_unknown_model_without_memory_is_a_problem_and_with_memory_is_none() -> None:
    found = problems_of("nodes: [{name: a, devices: [{model: Zork}]}]")
    assert found["nodes[0].devices[0].model"].value == "Zork"
    (node,) = nodes_of("nodes: [{name: a, devices: [{model: Zork, memory: 8Gi}]}]")
    assert (node.devices[0].model, node.devices[0].milli_tflops) == ("Zork", None)


def test_two_equal_uuids_are_a_problem_that_names_both_places() -> None:
    found = problems_of(
        "nodes:\n"
        "  - {name: a, devices: [{model: T4, uuid: GPU-1}]}\n"
        "  - {name: b, devices: [{model: T4, uuid: GPU-1}]}\n"
    )
    problem = found["nodes[1].devices[0].uuid"]
    assert problem.value == "GPU-1"
    assert "nodes[0].devices[0].uuid" in problem.message


def test_a_uuid_on_a_counted_node_is_a_problem_because_the_nodes_would_share_it() -> None:
    assert set(problems_of("nodes: [{name: a, count: 2, devices: [{model: T4, uuid: GPU-1}]}]")) == {
        "nodes[0].devices[0].uuid"
    }


def test_two_equal_node_names_are_a_problem_also_where_one_is_numbered() -> None:
    assert set(problems_of("nodes: [{name: a, count: 2}, {name: a-1}]")) == {"nodes[1].name"}


def test_two_devices_with_one_index_are_a_problem() -> None:
    found = problems_of("nodes: [{name: a, devices: [{model: T4, count: 2}, {model: T4, index: 1}]}]")
    assert found["nodes[0].devices"].value == "1"


@pytest.mark.parametrize("key", ["numa: [0]", "uuid: [GPU-1]"])
def test_a_list_needs_one_entry_for_each_device(key: str) -> None:
    found = problems_of(f"nodes: [{{name: a, devices: [{{model: T4, count: 2, {key}}}]}}]")
    assert set(found) == {f"nodes[0].devices[0].{key.partition(':')[0]}"}


def test_a_broken_model_is_reported_once_and_not_at_every_device_of_it() -> None:
    found = problems_of("models: [{name: Own}]\nnodes: [{name: a, devices: [{model: Own, count: 2}]}]")
    assert set(found) == {"models[0].memory"}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("kind: Fleet\nnodes: [{name: a}]", "apiVersion"),
        ("apiVersion: tessera.dev/v2\nkind: Fleet\nnodes: [{name: a}]", "apiVersion"),
        ("apiVersion: tessera.dev/v1\nkind: Pod\nnodes: [{name: a}]", "kind"),
        (HEAD, "nodes"),
        (HEAD + "nodes: []", "nodes"),
        (HEAD + "nodes: {name: a}", "nodes"),
        (HEAD + "nodes: [a]", "nodes[0]"),
        ("", ""),
        ("- a", ""),
        ("a: b: c", "line 1, column 5"),
        (HEAD + "nodes: [{name: a}]\n---\n" + HEAD + "nodes: [{name: b}]", ""),
    ],
)
def test_what_is_no_fleet_file_is_one_problem_at_its_place(text: str, field: str) -> None:
    found = read_fleet("fleet.yaml", text)
    assert found.nodes == ()
    assert field in [problem.field for problem in found.problems]


def test_json_is_read_as_well() -> None:
    text = '{"apiVersion": "tessera.dev/v1", "kind": "Fleet", "nodes": [{"name": "a"}]}'
    assert [node.name for node in read_fleet("fleet.json", text).nodes] == ["a"]


def shape(found: FleetInput) -> list[tuple[str, int, int]]:
    return [(node.name, len(node.devices), node.devices[0].memory_mib) for node in found.nodes]


def test_the_shorthand_is_nodes_by_devices_by_model() -> None:
    assert shape(read_shorthand("--fleet", "2x8xA100-SXM4-80GB")) == [
        ("node-0", 8, 81_920),
        ("node-1", 8, 81_920),
    ]
    assert shape(read_shorthand("--fleet", "3xT4")) == [("node-0", 3, 16_384)]


@pytest.mark.parametrize("joint", ["+", ",", " + "])
def test_groups_of_the_shorthand_are_joined_and_numbered_on(joint: str) -> None:
    found = read_shorthand("--fleet", f"2x1xT4{joint}4xOwn:24Gi")
    assert shape(found) == [("node-0", 1, 16_384), ("node-1", 1, 16_384), ("node-2", 4, 24_576)]


@pytest.mark.parametrize(
    "text", ["0x8xT4", "4x0xT4", "8xZork", "8xZork:0", "8xT4:-1Gi", "8x", "8xT4+", "100000x1024xT4"]
)
def test_a_wrong_shorthand_is_a_problem_and_no_fleet(text: str) -> None:
    found = read_shorthand("--fleet", text)
    assert found.nodes == ()
    assert found.problems
    assert all(problem.source == "--fleet" and problem.remedy for problem in found.problems)


def test_only_what_starts_like_the_shorthand_is_taken_for_it() -> None:
    assert [is_shorthand(text) for text in ("8xT4", "4x8xT4", "12x", "fleet.yaml", "x8", "T4")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
