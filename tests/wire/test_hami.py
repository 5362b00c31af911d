from dataclasses import replace

import pytest

from tessera.core.priority import Priority
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference
from tessera.core.share import ComputeMilli, MemoryFraction, MemoryMiB, ShareSpec
from tessera.vendors.registry import VENDORS
from tessera.wire.dialects import hami
from wire.objects import claim, container, errors, planned, pod, read, request, served, warnings

WHOLE = ShareSpec(
    MemoryFraction(1000), MemoryFraction(1000), ComputeMilli(1000), ComputeMilli(1000), exclusive=True
)


def gpu(limits, requests=None, name="main", **more):
    sides = [None if s is None else {f"nvidia.com/{k}": v for k, v in s.items()} for s in (limits, requests)]
    return container(name, *sides, **more)


def noted(key, value):
    return pod(gpu({"gpu": 1}), annotations={key: value})


def share_of(**limits):
    return claim(pod(gpu({key.replace("_", "-"): value for key, value in limits.items()}))).share


def test_a_count_alone_is_whole_cards():
    assert claim(pod(gpu({"gpu": 2}))) == Claim(("main",), 2, WHOLE)


def test_all_of_the_memory_by_percent_without_cores_is_the_whole_card():
    assert share_of(gpu=1, gpumem_percentage=100) == WHOLE


def test_all_of_the_memory_and_all_cores_is_the_whole_card():
    assert share_of(gpu=1, gpumem_percentage=100, gpucores=100) == WHOLE


def test_all_of_the_memory_with_cores_is_no_whole_card():
    share = share_of(gpu=1, gpucores=30)
    assert (share.memory_request, share.compute_request, share.exclusive) == (
        MemoryFraction(1000),
        ComputeMilli(300),
        False,
    )


def test_gpumem_is_mib_per_card():
    assert share_of(gpu=2, gpumem=3000).memory_request == MemoryMiB(3000)


def test_a_vendor_may_count_memory_in_larger_units(monkeypatch):
    rows = tuple(replace(vendor, hami=replace(vendor.hami, memory_factor=256)) for vendor in VENDORS)
    monkeypatch.setattr(hami, "VENDORS", rows)
    assert share_of(gpumem=3).memory_request == MemoryMiB(768)


def test_percent_is_of_each_card():
    assert share_of(gpumem_percentage=40).memory_request == MemoryFraction(400)


def test_gpumem_wins_over_percent_and_says_so():
    raw = pod(gpu({"gpumem": 3000, "gpumem-percentage": 50}))
    assert claim(raw).share.memory_request == MemoryMiB(3000)
    assert "is ignored" in warnings(raw)[0]


@pytest.mark.parametrize("limits", [{"gpumem": 4000}, {"gpumem": 4000, "gpucores": 0}])
def test_no_cores_share_with_others_without_a_limit(limits):
    share = share_of(**limits)
    assert (share.compute_request, share.compute_limit) == (ComputeMilli(0), ComputeMilli(1000))
    assert not share.exclusive


def test_some_cores_are_request_and_limit():
    share = share_of(gpumem=4000, gpucores=30)
    assert share.compute_request == share.compute_limit == ComputeMilli(300)


def test_all_cores_keep_everybody_else_off():
    share = share_of(gpumem=4000, gpucores=100)
    assert share.exclusive
    assert share.memory_request == MemoryMiB(4000)


def test_more_than_all_cores_are_all_cores_with_a_warning():
    raw = pod(gpu({"gpumem": 4000, "gpucores": 150}))
    assert claim(raw).share.compute_request == ComputeMilli(1000)
    assert "more than a device has" in warnings(raw)[0]


@pytest.mark.parametrize("limits", [{"gpumem": 1}, {"gpucores": 1}, {"gpumem-percentage": 1}])
def test_a_share_without_a_count_is_of_one_card(limits):
    assert claim(pod(gpu(limits))).count == 1


def test_limits_go_before_requests_and_requests_serve_where_there_is_no_limit():
    assert claim(pod(gpu({"gpu": 2}, {"gpu": 3, "gpumem": 100}))).count == 2
    assert claim(pod(gpu({"gpu": 2}, {"gpumem": 100}))).share.memory_request == MemoryMiB(100)


@pytest.mark.parametrize(
    ("key", "words"), [("gpumem", "all of the memory"), ("gpumem-percentage", "all of the memory")]
)
def test_zero_memory_counts_as_not_given_and_says_so(key, words):
    raw = pod(gpu({"gpu": 1, key: 0}))
    assert claim(raw).share == WHOLE
    assert words in warnings(raw)[0]


def test_a_count_of_zero_asks_for_nothing():
    found = planned(pod(gpu({"gpu": 0})))
    assert found.pod.request is None
    assert "asks for no device" in str(found.warnings[0])


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"gpu": 0, "gpumem": 100}, "no number of devices"),
        ({"gpu": 129}, "no number of devices"),
        ({"gpu": -2}, "is negative"),
        ({"gpu": 1.5}, "not a whole number"),
        ({"gpu": "one"}, "not a Kubernetes quantity"),
        ({"gpumem": -1}, "is negative"),
        ({"gpumem": "0.5"}, "not a whole number"),
        ({"gpumem": "4Gi"}, "more memory than any device has"),
        ({"gpumem-percentage": 101}, "more than 100 percent"),
        ({"gpucores": -1}, "is negative"),
        ({"gpu": float("inf")}, "not a"),
    ],
)
def test_what_hami_drops_in_silence_is_a_problem(limits, words):
    found = errors(pod(gpu(limits)))
    assert any(words in text for text in found), found


@pytest.mark.parametrize(
    ("key", "value", "constraints"),
    [
        ("use-gputype", "A100, v100", {"models_allowed": (ModelRule("A100"), ModelRule("v100"))}),
        ("use-gputype", "", {}),
        ("use-gputype", "NVIDIA-Tesla T4", {"models_allowed": (ModelRule("Tesla T4"),)}),
        ("nouse-gputype", "1080,2080,", {"models_denied": (ModelRule("1080"), ModelRule("2080"))}),
        ("use-gpuuuid", " GPU-a ,GPU-b", {"uuids_allowed": frozenset({"GPU-a", "GPU-b"})}),
        ("nouse-gpuuuid", "GPU-a", {"uuids_denied": frozenset({"GPU-a"})}),
        ("numa-bind", "true", {"one_numa": True}),
        ("numa-bind", "False", {}),
        ("vgpu-mode", "hami-core", {"modes": frozenset({"shared"})}),
        ("vgpu-mode", "mig,hami-core", {"modes": frozenset({"mig", "shared"})}),
    ],
)
def test_annotations_constrain_where_the_pod_may_go(key, value, constraints):
    assert request(noted(f"nvidia.com/{key}", value)).constraints == Constraints(vendor="NVIDIA", **constraints)


@pytest.mark.parametrize(("key", "value"), [("numa-bind", "yes"), ("vgpu-mode", "mgi")])
def test_an_annotation_that_hami_would_misread_is_a_problem(key, value):
    assert len(errors(noted(f"nvidia.com/{key}", value))) == 1


@pytest.mark.parametrize(
    ("value", "device", "idle"),
    [
        ("binpack", "binpack", False),
        ("spread", "spread", False),
        ("mutex", None, True),
        ("binpack, mutex", "binpack", True),
    ],
)
def test_device_policies_are_a_preference_and_mutex_is_an_idle_device(value, device, idle):
    found = request(noted("hami.io/gpu-scheduler-policy", value))
    assert found.preference == Preference(None, device)
    assert found.constraints.idle_device is idle
    assert warnings(noted("hami.io/gpu-scheduler-policy", value)) == []


@pytest.mark.parametrize("value", ["numa,spread", "topology-aware,spread", "spraed,spread"])
def test_a_device_policy_without_effect_is_warned_of(value):
    raw = noted("hami.io/gpu-scheduler-policy", value)
    assert request(raw).preference.device == "spread"
    assert len(warnings(raw)) == 1


def test_an_unknown_node_policy_leaves_the_choice_to_the_caller():
    raw = noted("hami.io/node-scheduler-policy", "binpak")
    assert request(raw).preference.node is None
    assert "did you mean binpack?" in warnings(raw)[0]


def test_sound_weights_are_a_warning():
    assert "not applied yet" in warnings(noted("hami.io/device-scoring-weights", "slot=1, core=0,memory=2"))[0]


@pytest.mark.parametrize(
    "text",
    [
        "slot=1",
        "slot=1,core=1,memory=1,slot=1",
        "slot=0,core=0,memory=0",
        "slot=-1,core=1,memory=1",
        "slot=a,core=1,memory=1",
        "x=1,core=1,memory=1",
    ],
)
def test_malformed_weights_are_a_problem(text):
    assert "is not a set of weights" in errors(noted("hami.io/device-scoring-weights", text))[0]


def test_the_ignore_label_makes_the_pod_not_ours():
    found = planned(pod(gpu({"gpu": 1}), labels={"hami.io/webhook": "ignore"}))
    assert (found.pod.request, found.pod.dialect) == (None, None)
    assert "leave it alone" in str(found.warnings[0])


def test_a_hardware_partition_by_name_is_not_ours_and_says_so():
    found = planned(pod(gpu({"mig-3g.20gb": 1})))
    assert found.pod.request is None
    assert "does not hand out" in str(found.warnings[0])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"env": [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]}, "does not lift the limit"),
        ({"securityContext": {"privileged": True}}, "every device of the node"),
    ],
)
def test_a_container_that_would_escape_its_share_is_warned_of(more, words):
    raw = pod(gpu({"gpumem": 100}, **more))
    assert claim(raw).share.memory_limit == MemoryMiB(100)
    assert words in warnings(raw)[0]


@pytest.mark.parametrize(
    ("written", "priority"),
    [(0, Priority.HIGH), (1, Priority.MEDIUM), (2, Priority.LOW), (7, Priority.LOW), (None, Priority.MEDIUM)],
)
def test_a_smaller_priority_goes_first_and_one_is_what_a_pod_has_without_a_word(written, priority):
    limits = {"gpumem": 100} | ({} if written is None else {"priority": written})
    assert claim(pod(gpu(limits))).share.priority is priority
    assert warnings(pod(gpu(limits))) == []


def test_a_misspelt_annotation_is_warned_of_and_a_foreign_one_is_not():
    assert "did you mean" in warnings(noted("hami.io/gpu-schduler-policy", "spread"))[0]
    assert warnings(noted("hami.io/vgpu-node", "n1")) == []
    assert warnings(noted("nvidia.com/other", "n1")) == []


@pytest.mark.parametrize(
    "limits",
    [
        {"gpu": 1, "gpumem": 4000, "gpucores": 30},
        {"gpu": "1000m", "gpumem": "4k"},
        {"gpumem": "1024"},
        {"gpumem-percentage": 50},
        {"gpu": 2},
    ],
)
def test_the_api_servers_form_is_the_same_request(limits):
    raw = pod(gpu(limits))
    assert request(served(raw)) == request(raw)
    assert planned(served(raw)).pod.dialect is Dialect.HAMI


def test_each_container_holds_its_own_claim():
    raw = pod(
        gpu({"gpu": 1}, name="a"), container("b"), gpu({"gpumem": 5}, name="c"), init=[gpu({"gpu": 2}, name="i")]
    )
    assert [(c.containers, c.count) for c in request(raw).claims] == [(("i",), 2), (("a",), 1), (("c",), 1)]


def test_a_pod_without_devices_is_not_ours():
    found = read(pod(container(limits={"cpu": 1})))
    assert found.pods[0].pod.request is None
    assert found.pods[0].warnings == ()
