"""Which dialect a pod is written in, what contradicts, and that no pod spec at all breaks the reading."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.core.request import ContainerKind, Dialect
from wire.objects import container, errors, planned, pod, read, served, warnings

NATIVE = {"tessera.dev/gpu": 1}
HAMI = {"nvidia.com/gpumem": 100}
COUNT = {"nvidia.com/gpu": 1}
FUSION = {"tensor-fusion.ai/vram-request": "1Gi"}
ON = {"tensor-fusion.ai/enabled": "true"}


@pytest.mark.parametrize(
    ("limits", "annotations", "labels"),
    [
        ({**NATIVE, **HAMI}, {}, {}),
        ({**NATIVE, **COUNT}, {}, {}),
        (NATIVE, FUSION, ON),
        (NATIVE, {}, ON),
        (HAMI, FUSION, ON),
        (HAMI, FUSION, {}),
        (COUNT, {"tessera.dev/model": "A100"}, {}),
    ],
)
def test_two_dialects_on_one_pod_are_a_problem(limits, annotations, labels):
    (found,) = errors(pod(container(limits=limits), annotations=annotations, labels=labels))
    assert "dialects at once" in found


@pytest.mark.parametrize(
    ("limits", "annotations", "labels", "dialect"),
    [
        (NATIVE, {}, {}, Dialect.NATIVE),
        (COUNT, {}, {}, Dialect.HAMI),
        (HAMI, {}, {}, Dialect.HAMI),
        ({}, FUSION, ON, Dialect.TENSOR_FUSION),
        (COUNT, FUSION, ON, Dialect.TENSOR_FUSION),
        (COUNT, {}, ON, Dialect.TENSOR_FUSION),
        (COUNT, FUSION, {"tensor-fusion.ai/enabled": "false"}, Dialect.HAMI),
        (NATIVE, FUSION, {"tensor-fusion.ai/enabled": "false"}, Dialect.NATIVE),
        ({"cpu": 1}, {}, {}, None),
        ({"cpu": 1}, {"tensor-fusion.ai/gpupool": "p"}, {}, None),
    ],
)
def test_a_pod_is_in_the_dialect_that_it_is_written_in(limits, annotations, labels, dialect):
    found = planned(pod(container(limits=limits), annotations=annotations, labels=labels)).pod
    assert found.dialect is dialect
    assert (found.request is None) is (dialect is None)


@pytest.mark.parametrize("name", ["amd.com/gpu", "huawei.com/Ascend910B", "google.com/tpu"])
def test_a_device_that_nobody_hands_out_is_warned_of(name):
    raw = pod(container(limits={name: 1}))
    assert planned(raw).pod.request is None
    assert "does not hand out" in warnings(raw)[0]


def test_an_annotation_that_is_no_text_is_a_problem():
    assert (
        "must be text" in errors(pod(container(limits=NATIVE), annotations={"tessera.dev/idle-device": True}))[0]
    )


_SHAPES = [
    (inits, sidecars, apps, uses)
    for inits, sidecars, apps in itertools.product(range(3), range(3), range(1, 4))
    for uses in itertools.product((False, True), repeat=inits + sidecars + apps)
    if sum(uses) < 4
]


def test_every_mix_of_containers_gives_each_its_own_claim_and_no_other():
    for inits, sidecars, apps, uses in _SHAPES:
        kinds = [ContainerKind.INIT] * inits + [ContainerKind.SIDECAR] * sidecars + [ContainerKind.APP] * apps
        made = [
            container(f"c{n}", limits={"nvidia.com/gpu": n + 1} if use else {"cpu": 1})
            | ({"restartPolicy": "Always"} if kind is ContainerKind.SIDECAR else {})
            for n, (kind, use) in enumerate(zip(kinds, uses, strict=True))
        ]
        found = planned(pod(*made[inits + sidecars :], init=made[: inits + sidecars])).pod
        assert [(c.name, c.kind) for c in found.containers] == [(f"c{n}", kind) for n, kind in enumerate(kinds)]
        claims = found.request.claims if found.request else ()
        wanted = [((f"c{n}",), n + 1) for n, use in enumerate(uses) if use]
        assert [(claim.containers, claim.count) for claim in claims] == wanted


# whatever stands in a pod spec, reading it gives pods or problems

_keys = st.sampled_from(
    ["tessera.dev/gpu", "tessera.dev/memory", "tessera.dev/compute", "nvidia.com/gpu", "nvidia.com/gpumem",
     "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "cpu", "memory", "amd.com/gpu", "x", ""]
)  # fmt: skip
_notes = st.sampled_from(
    ["tessera.dev/model", "tessera.dev/same-device", "tessera.dev/mode", "nvidia.com/vgpu-mode",
     "nvidia.com/numa-bind", "nvidia.com/use-gputype", "hami.io/gpu-scheduler-policy",
     "hami.io/device-scoring-weights",
     *(f"tensor-fusion.ai/{key}" for key in (
         "vram-request", "vram-limit", "tflops-request", "compute-percent-limit", "gpu-count", "gpu-indices",
         "gpu-model", "isolation", "inject-container", "container-gpu-count", "workload-profile", "dedicated-gpu",
         "qos"))]
)  # fmt: skip
_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
_amounts = (
    st.sampled_from(["1", "0", "4Gi", "30", "-1", "500m", "1e9", "a,b", "true", '{"a": 1}', "soft", "slot=1"])
    | _junk
)
_resources = st.dictionaries(_keys, _amounts, max_size=3)
_sides = st.fixed_dictionaries({}, optional={"limits": _resources | _junk, "requests": _resources | _junk})
_containers = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b"]) | _junk,
        "restartPolicy": st.sampled_from(["Always"]) | _junk,
        "resources": _sides | _junk,
        "env": _junk,
        "securityContext": _junk,
    },
)
_specs = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(_containers | _junk, max_size=3) | _junk,
        "initContainers": st.lists(_containers | _junk, max_size=2) | _junk,
        "nodeSelector": _junk,
        "nodeName": _junk,
        "overhead": _resources | _junk,
        "resources": _junk,
    },
)
_metadata = st.fixed_dictionaries(
    {"name": st.just("p") | _junk},
    optional={
        "annotations": st.dictionaries(_notes, _amounts, max_size=4) | _junk,
        "labels": st.sampled_from([ON]) | _junk,
        "ownerReferences": _junk,
        "uid": _junk,
    },
)
_kinds = st.sampled_from(["Pod", "Deployment", "Job", "CronJob", "DaemonSet", "WorkloadProfile"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(_kinds, _metadata | _junk, _specs | _junk, _junk)
def test_any_object_gives_pods_or_problems_and_never_raises(kind, metadata, spec, count):
    group = {"Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    body = spec if kind == "Pod" else {"template": {"metadata": metadata, "spec": spec}, "replicas": count}
    if kind == "CronJob":
        body = {"jobTemplate": {"spec": body}}
    found = read({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": body}, nodes=[("n", {})])
    assert all(problem.message and problem.remedy for problem in found.problems)
    for invalid in found.invalid:
        assert invalid.problems


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_resources, min_size=1, max_size=3), st.dictionaries(_notes, st.text(max_size=5), max_size=2))
def test_the_api_servers_form_of_a_valid_pod_is_the_same_request(limits, annotations):
    raw = pod(*(container(f"c{n}", limits=each) for n, each in enumerate(limits)), annotations=annotations)
    found = read(raw)
    if found.problems:
        return
    again = read(served(raw))
    assert [p.pod for p in again.pods] == [p.pod for p in found.pods]
