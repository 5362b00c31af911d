"""Traces: equal pods are one shape, and what a pod asks is one number of milli on each model."""

from builders import a_share
from simulator.worlds import a_trace, node, pod
from tessera.core.request import Claim, Container, Pod, Request
from tessera.policy.target import Kind as TargetKind
from tessera.simulator.result import Kind
from tessera.simulator.trace import strangers, trace_of

NODES = [node("a", 2), node("b", 1, model="T4")]


def test_pods_that_ask_alike_are_one_shape():
    trace = a_trace(NODES, pod(500), pod(500), pod(250), pod(500))
    assert trace.names == ("p0", "p1", "p2", "p3")
    assert trace.shape_of == (0, 0, 1, 0)
    assert trace.demand == 1750


def test_kinds_are_by_number_of_devices_and_part_of_them():
    trace = a_trace(NODES, pod(), pod(999), pod(1000), pod(1000, count=2), pod(500, count=2))
    kinds = [shape.kind for shape in trace.shapes]
    assert kinds == [Kind.CPU_ONLY, Kind.SHARING, Kind.ONE, Kind.MANY, Kind.MANY]


def test_the_greater_part_of_memory_and_compute_counts_and_the_model_on_which_that_is_least():
    # 6,144 MiB are a quarter of 24,576; 100 milli of compute are less than that.
    claim = Claim(("main",), 1, a_share(6144, 100))
    asked = Pod("t", "p", "p", (Container("main"),), Request((claim,)))
    trace = trace_of([asked], NODES)
    assert trace.shapes[0].milli == {"A100": 250, "T4": 250}
    assert trace.shapes[0].demand == 250


def test_a_named_model_constrains_and_is_counted_as_written():
    trace = a_trace(NODES, pod(500, models="T4|A100|T4"), pod(500, models="T4"), pod(500))
    assert [shape.constrained for shape in trace.shapes] == [True, True, False]
    assert trace.shapes[1].milli == {"T4": 500}
    assert trace.kinds() == {
        TargetKind(1000, 500, 1, ("T4", "A100", "T4")): 1,
        TargetKind(1000, 500, 1, ("T4",)): 1,
        TargetKind(1000, 500, 1): 1,
    }


def test_devices_that_exist_nowhere_are_named_with_their_line_once_a_shape():
    trace = a_trace(NODES, pod(500), pod(500, models="H100"), pod(500, models="H100"))
    (problem,) = strangers(trace, ["pods.csv:2", "pods.csv:3", "pods.csv:4"])
    assert (problem.source, problem.object, problem.field, problem.value) == (
        "pods.csv:3",
        "p1",
        "gpu_spec",
        "H100",
    )


def test_sorting_by_name_takes_everything_along():
    trace = trace_of([pod(500, name="b"), pod(250, name="a")], NODES, [7, 9]).by_name()
    assert trace.names == ("a", "b")
    assert [trace.shapes[row].demand for row in trace.shape_of] == [250, 500]
    assert trace.lifetimes == (9, 7)
