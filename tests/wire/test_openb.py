"""The public trace's CSV files: what a line becomes, and what each wrong cell is answered with."""

import pytest

from tessera.core.request import Claim, Constraints, Dialect, ModelRule
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.core.units import Milli
from tessera.wire.openb import read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
PODS_WITH_SPEC = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def test_a_node_line_becomes_a_node_with_its_devices() -> None:
    (node,) = read_nodes("n.csv", NODES + "n-1,64000,262144,2,T4\n").nodes
    assert (node.name, node.cpu_milli, node.memory_mib) == ("n-1", 64_000, 262_144)
    assert [(d.uuid, d.index, d.model, d.memory_mib) for d in node.devices] == [
        ("GPU-n-1-0", 0, "T4", 16_384),
        ("GPU-n-1-1", 1, "T4", 16_384),
    ]


def test_a_node_without_devices_is_a_node() -> None:
    (node,) = read_nodes("n.csv", NODES + "n-1,64000,262144,0,\n").nodes
    assert node.devices == ()


@pytest.mark.parametrize(
    ("model", "gib", "tflops"),
    [
        ("T4", 16, 65.0),
        ("P100", 16, 18.7),
        ("V100M16", 16, 125.0),
        ("V100M32", 32, 125.0),
        ("A10", 24, 125.0),
        ("G2", 32, None),
        ("G3", 80, None),
    ],
)
def test_models_keep_the_traces_name_and_get_memory_and_compute(
    model: str, gib: int, tflops: float | None
) -> None:
    (node,) = read_nodes("n.csv", NODES + f"n-1,1000,1024,1,{model}\n").nodes
    device = node.devices[0]
    assert (device.model, device.memory_mib) == (model, gib * 1024)
    assert device.milli_tflops == (None if tflops is None else round(tflops * 1000))


def test_what_is_assumed_of_a_model_is_noted_only_where_that_model_is_present() -> None:
    lines = "n-1,1000,1024,1,T4\nn-2,1000,1024,1,G3\n"
    (note,) = read_nodes("n.csv", NODES + lines).notes
    assert "G3" in note
    assert "80 GiB" in note


def test_a_pod_line_becomes_a_native_request_for_that_part_of_each_device() -> None:
    (planned,) = read_pods("p.csv", PODS_WITH_SPEC + "p-1,4000,8192,2,500,T4|V100M32\n").pods
    pod, memory, compute = planned.pod, MemoryFraction(Milli(500)), ComputeMilli(Milli(500))
    assert (pod.name, pod.cpu_milli, pod.memory_mib, pod.dialect) == ("p-1", 4000, 8192, Dialect.NATIVE)
    assert pod.request is not None
    assert pod.request.claims == (Claim(("main",), 2, ShareSpec(memory, memory, compute, compute)),)
    assert pod.request.constraints == Constraints(
        models_allowed=(ModelRule("T4", exact=True), ModelRule("V100M32", exact=True))
    )
    assert planned.source == "p.csv:2"


def test_a_pod_line_without_devices_is_not_ours() -> None:
    (planned,) = read_pods("p.csv", PODS + "p-1,4000,8192,0,0\n").pods
    assert (planned.pod.request, planned.pod.dialect) == (None, None)


@pytest.mark.parametrize("cell", ["NaN", "-1", "1.5", "", "1e3", "0x10", "٣", "99999999999999999999"])
@pytest.mark.parametrize("column", ["cpu_milli", "memory_mib", "gpu"])
def test_a_wrong_number_of_a_node_is_one_problem_with_line_and_column(column: str, cell: str) -> None:
    cells = {"sn": "n-2", "cpu_milli": "1000", "memory_mib": "1024", "gpu": "1", "model": "T4", column: cell}
    found = read_nodes("n.csv", NODES + "n-1,1000,1024,1,T4\n" + ",".join(cells.values()) + "\n")
    (problem,) = found.problems
    assert found.nodes == ()
    assert (problem.source, problem.object, problem.field, problem.value) == ("n.csv:3", "n-2", column, cell)
    assert problem.remedy


@pytest.mark.parametrize("milli", ["0", "1001"])
def test_a_part_of_a_device_is_between_one_thousandth_and_all_of_it(milli: str) -> None:
    (problem,) = read_pods("p.csv", PODS + f"p-1,1000,1024,1,{milli}\n").problems
    assert (problem.field, problem.value) == ("gpu_milli", milli)


def test_every_wrong_line_is_reported_and_nothing_comes_out() -> None:
    found = read_pods("p.csv", PODS + "p-1,x,1,1,1000\np-2,1,y,1,1000\np-3,1,1,1,1000\np-3,1,1,1,1000\np-5,1\n")
    assert found.pods == ()
    assert sorted(problem.source for problem in found.problems) == ["p.csv:2", "p.csv:3", "p.csv:5", "p.csv:6"]


def test_an_unknown_model_is_met_with_the_known_ones() -> None:
    (problem,) = read_nodes("n.csv", NODES + "n-1,1000,1024,1,H100\n").problems
    assert (problem.field, problem.value) == ("model", "H100")
    assert "V100M32" in problem.remedy


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model,gpu_spec\n", "unknown column"),
        ("sn,cpu_milli,memory_mib,gpu\n", "lacks the column model"),
        ("sn,cpu_milli,memory_mib,gpu,model,model\n", "twice"),
        ("", "lacks the columns"),
        (NODES, "no lines"),
    ],
)
def test_a_wrong_header_is_a_problem(header: str, said: str) -> None:
    found = read_nodes("n.csv", header)
    assert found.nodes == ()
    assert any(said in problem.message for problem in found.problems)


def test_either_list_given_as_the_other_is_told_where_it_belongs() -> None:
    (nodes,) = read_nodes("p.csv", PODS + "p-1,1,1,0,0\n").problems
    (pods,) = read_pods("n.csv", NODES + "n-1,1,1,0,\n").problems
    assert "-f" in nodes.remedy
    assert "--fleet" in pods.remedy


TIMES = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"


def test_a_pod_stays_from_its_creation_to_its_deletion_where_both_are_said() -> None:
    found = read_pods("p.csv", TIMES + "p-1,1,1,0,0,100,350\np-2,1,1,0,0,100,\np-3,1,1,0,0,7,7\n")
    assert [pod.stays for pod in found.pods] == [250, None, 0]


@pytest.mark.parametrize(
    ("times", "column"), [("100,99", "deletion_time"), ("-1,99", "creation_time"), ("1,nan", "deletion_time")]
)
def test_a_time_that_cannot_be_is_one_problem_with_its_column(times: str, column: str) -> None:
    (problem,) = read_pods("p.csv", TIMES + f"p-1,1,1,0,0,{times}\n").problems
    assert (problem.source, problem.field) == ("p.csv:2", column)


def test_a_cell_that_is_no_number_is_one_problem() -> None:
    (problem,) = read_pods("p.csv", PODS + "p-1,1,1,1,nan\n").problems
    assert (problem.field, problem.value) == ("gpu_milli", "nan")
