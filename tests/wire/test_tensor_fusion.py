import json

import pytest

from tessera.core.priority import WORDS, Priority, priority_of
from tessera.core.request import Claim, Constraints, Dialect, ModelRule
from tessera.core.share import ComputeMilli, ComputeTflops, MemoryFraction, MemoryMiB, ShareSpec
from tessera.wire.manifests import read_manifests
from wire.objects import claim, container, errors, planned, pod, read, request, served, warnings

TF = "tensor-fusion.ai/"
ON = {f"{TF}enabled": "true"}
ALL, NOTHING, FREE = MemoryFraction(1000), ComputeMilli(0), ComputeMilli(1000)
WHOLE = ShareSpec(ALL, ALL, FREE, FREE, exclusive=True)
BASE = {"tflops-request": "10", "vram-request": "1Gi"}


def asking(*containers, labels=ON, **given):
    annotations = {TF + key.replace("_", "-"): value for key, value in given.items()}
    return pod(*(containers or (container(),)), annotations=annotations, labels=labels)


def base(*containers, **given):
    return asking(*containers, **{key.replace("-", "_"): value for key, value in BASE.items()}, **given)


def profile(name="prof", namespace="default", **spec):
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "tensor-fusion.ai/v1", "kind": "WorkloadProfile", "metadata": metadata, "spec": spec}


# compute and memory


def test_tflops_and_vram_are_per_gpu():
    found = claim(
        asking(tflops_request="10", vram_request="1Gi", tflops_limit="20", vram_limit="2Gi", gpu_count="2")
    )
    share = ShareSpec(MemoryMiB(1024), MemoryMiB(2048), ComputeTflops(10000), ComputeTflops(20000))
    assert found == Claim(("main",), 2, share)


@pytest.mark.parametrize("side", ["request", "limit"])
def test_a_missing_side_takes_the_other(side):
    share = claim(asking(**{f"tflops_{side}": "10", f"vram_{side}": "1Gi"})).share
    assert share.compute_request == share.compute_limit == ComputeTflops(10000)
    assert share.memory_request == share.memory_limit == MemoryMiB(1024)


def test_percent_is_an_alternative_to_tflops():
    share = claim(asking(compute_percent_request="12.5", compute_percent_limit="50", vram_request="1Gi")).share
    assert (share.compute_request, share.compute_limit) == (ComputeMilli(125), ComputeMilli(500))


def test_tflops_win_over_percent_and_say_so():
    raw = base(compute_percent_request="50")
    assert claim(raw).share.compute_request == ComputeTflops(10000)
    assert "because TFLOPS are given" in warnings(raw)[0]


def test_no_compute_uses_what_is_free():
    share = claim(asking(vram_request="1Gi")).share
    assert (share.compute_request, share.compute_limit) == (NOTHING, FREE)


def test_no_vram_charges_all_of_the_memory_and_says_so():
    raw = asking(tflops_request="10")
    assert claim(raw).share.memory_request == ALL
    assert "all of the memory" in warnings(raw)[0]


def test_tflops_of_a_fraction_are_exact():
    assert claim(asking(tflops_request="500m", vram_request="1Gi")).share.compute_request == ComputeTflops(500)


def test_no_tflops_requested_is_free_of_charge_and_limited():
    share = claim(asking(tflops_request="0", tflops_limit="5", vram_request="1Gi")).share
    assert (share.compute_request, share.compute_limit) == (NOTHING, ComputeTflops(5000))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"vram_request": "1gb"}, "not a Kubernetes quantity"),
        ({"tflops_request": "ten"}, "not a Kubernetes quantity"),
        ({"vram_request": "-1Gi"}, "is negative"),
        ({"vram_request": "2Gi", "vram_limit": "1Gi"}, "more than its limit of 1Gi"),
        ({"vram_request": "0", "vram_limit": "0"}, "less than 2 MiB"),
        ({"vram_request": "4000"}, "less than 2 MiB"),
        ({"compute_percent_request": "101"}, "more than 100 percent"),
        ({"gpu_count": "0"}, "no number of devices"),
        ({"gpu_count": "129"}, "no number of devices"),
        ({"gpu_indices": "0,x"}, "not the index of a device"),
        ({"gpu_indices": "0,-1"}, "not the index of a device"),
        ({"isolation": "softt", "vram_request": "1Gi"}, "did you mean soft?"),
        ({"vendor": "NVIDEA", "vram_request": "1Gi"}, "did you mean NVIDIA?"),
        ({"qos": "urgent", "vram_request": "1Gi"}, "known are low"),
        ({"dedicated_gpu": "maybe"}, "not a boolean"),
        ({"tflops_request": "9000000"}, "more TFLOPS"),
    ],
)
def test_what_tensor_fusion_drops_in_silence_is_a_problem(given, words):
    found = errors(asking(**given))
    assert any(words in text for text in found), found


@pytest.mark.parametrize("word", WORDS)
def test_qos_is_who_goes_first(word):
    assert claim(base(qos=word)).share.priority is priority_of(word)
    assert warnings(base(qos=word)) == []
    assert claim(base()).share.priority is Priority.MEDIUM


# opting in


def test_the_label_decides():
    assert planned(base()).pod.dialect is Dialect.TENSOR_FUSION
    off = asking(vram_request="1Gi", labels={f"{TF}enabled": "false"})
    assert planned(off).pod.request is None
    assert warnings(off) == []


def test_without_the_label_a_request_is_honoured_with_a_warning():
    raw = asking(vram_request="1Gi", tflops_request="1", labels=None)
    assert planned(raw).pod.dialect is Dialect.TENSOR_FUSION
    assert "TensorFusion itself would ignore" in warnings(raw)[0]


def test_a_label_that_is_neither_true_nor_false_is_a_problem():
    assert "neither true nor false" in errors(asking(vram_request="1Gi", labels={f"{TF}enabled": "yes"}))[0]


def test_opting_in_without_asking_for_anything_is_a_problem():
    assert "says nothing about what it needs" in errors(asking())[0]


# whole devices


def test_shared_isolation_is_whole_idle_gpus():
    found = request(asking(isolation="shared", gpu_count="2"))
    assert found.claims == (Claim(("main",), 2, WHOLE),)
    assert found.constraints.idle_device


def test_a_dedicated_gpu_is_a_whole_one():
    raw = asking(dedicated_gpu="true", gpu_model="NVIDIA A100-SXM4-80GB", tflops_request="5")
    assert claim(raw).share == WHOLE
    assert "is ignored" in warnings(raw)[0]


def test_a_count_alone_is_whole_gpus():
    assert claim(asking(gpu_count="2")) == Claim(("main",), 2, WHOLE)


@pytest.mark.parametrize("isolation", ["soft", "hard"])
def test_soft_and_hard_isolation_are_a_share(isolation):
    found = request(base(isolation=isolation))
    assert not found.claims[0].share.exclusive
    assert found.constraints.modes == {"shared"}


def test_partitioned_isolation_wants_partitioned_devices():
    assert request(base(isolation="partitioned")).constraints.modes == {"partitioned"}
    assert request(base(partition_id="19")).constraints.modes == {"partitioned"}


# where


def test_a_model_is_the_whole_name():
    rules = request(base(gpu_model="NVIDIA H200")).constraints.models_allowed
    assert rules == (ModelRule("NVIDIA H200", exact=True),)


def test_a_short_model_name_also_means_the_drivers():
    rules = request(base(gpu_model="A100_SXM")).constraints.models_allowed
    assert rules == (ModelRule("A100_SXM", exact=True), ModelRule("NVIDIA A100-SXM4-80GB", exact=True))


def test_tflops_of_an_unknown_model_are_a_problem_that_names_the_nearest():
    (found,) = errors(base(gpu_model="NVIDIA A100-SXM5-80GB"))
    assert "did you mean NVIDIA A100-SXM4-80GB" in found


def test_an_unknown_model_without_tflops_is_only_a_name():
    rules = request(asking(gpu_model="Foo 1", vram_request="1Gi")).constraints.models_allowed
    assert rules == (ModelRule("Foo 1", exact=True),)


def test_indices_choose_devices_and_count_them():
    found = request(base(gpu_indices="0, 3"))
    assert found.constraints.indices == {0, 3}
    assert found.claims[0].count == 2


def test_indices_count_against_a_contradicting_count_and_say_so():
    raw = base(gpu_indices="0,3", gpu_count="1")
    assert claim(raw).count == 2
    assert "gpu-indices, which count" in warnings(raw)[0]


def test_the_vendor_is_named_or_implied_by_the_native_resource():
    assert request(base(vendor="nvidia")).constraints.vendor == "NVIDIA"
    assert request(base(container(limits={"nvidia.com/gpu": 1}))).constraints.vendor == "NVIDIA"
    assert request(base()).constraints == Constraints(modes=frozenset({"shared"}))


# which containers


def test_several_containers_need_to_say_which_of_them_hold_the_gpu():
    (found,) = errors(base(container("a"), container("b")))
    assert "must say which of a, b" in found


def test_injected_containers_hold_one_claim_jointly():
    three = (container("a"), container("b"), container("c"))
    assert claim(base(*three, inject_container="c, a")).containers == ("a", "c")


def test_an_injected_container_must_be_there():
    assert "did you mean train?" in errors(base(container("train"), container("b"), inject_container="trian"))[0]


def test_a_split_gives_each_container_its_own_devices():
    raw = base(container("a"), container("b"), gpu_count="3", container_gpu_count='{"b": 2, "a": 1}')
    found = request(raw)
    assert [(c.containers, c.count) for c in found.claims] == [(("a",), 1), (("b",), 2)]
    assert found.constraints.distinct_devices


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ('{"a": 1}', "gives out 1 of 3"),
        ('{"a": 1, "x": 2}', "is no container of the pod"),
        ('{"a": "1"}', "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"a": -1, "b": 4}', "no number of devices for a"),
    ],
)
def test_a_split_that_does_not_add_up_is_a_problem(split, words):
    found = errors(base(container("a"), container("b"), gpu_count="3", container_gpu_count=split))
    assert any(words in text for text in found), found


def test_a_split_is_among_the_injected_containers():
    raw = base(container("a"), container("b"), inject_container="a", container_gpu_count='{"a": 1, "b": 1}')
    assert "is not in inject-container" in errors(raw)[0]


def test_native_limits_that_add_up_to_more_than_a_node_has_are_a_problem():
    two = (container("a", limits={"nvidia.com/gpu": 100}), container("b", limits={"nvidia.com/gpu": 100}))
    assert "more than a node has" in errors(base(*two))[0]


def test_native_limits_count_the_gpus_and_mean_all_of_their_compute():
    found = claim(asking(container(limits={"nvidia.com/gpu": 2}), vram_request="1Gi"))
    share = ShareSpec(MemoryMiB(1024), MemoryMiB(1024), FREE, FREE)
    assert found == Claim(("main",), 2, share)


def test_native_limits_alone_are_whole_gpus():
    assert claim(asking(container(limits={"nvidia.com/gpu": 1}))).share == WHOLE


def test_native_limits_of_several_containers_split_the_gpus():
    two = (container("a", limits={"nvidia.com/gpu": 1}), container("b", limits={"nvidia.com/gpu": 2}))
    assert [(c.containers, c.count) for c in request(base(*two)).claims] == [(("a",), 1), (("b",), 2)]


def test_named_containers_hold_the_gpus_of_native_limits_jointly():
    two = (container("a", limits={"nvidia.com/gpu": 1}), container("b", limits={"nvidia.com/gpu": 2}))
    assert claim(base(*two, inject_container="a,b")).containers == ("a", "b")


def test_a_native_limit_of_zero_counts_nothing():
    assert claim(base(container(limits={"nvidia.com/gpu": 0}))).count == 1


def test_the_container_with_the_native_limit_holds_the_gpu():
    two = (container("a"), container("b", limits={"nvidia.com/gpu": 1}))
    assert claim(base(*two)).containers == ("b",)


# the profile


def test_a_profile_says_what_annotations_would():
    spec = {
        "resources": {"requests": {"tflops": "10", "vram": "1Gi"}, "limits": {"tflops": 20, "vram": "2Gi"}},
        "gpuCount": 2,
        "gpuModel": "NVIDIA H200",
        "vendor": "NVIDIA",
        "isolation": "hard",
        "qos": "high",
        "isLocalGPU": True,
    }
    found = read(asking(workload_profile="prof"), profile(**spec))
    assert found.problems == ()
    wanted = base(
        tflops_limit="20",
        vram_limit="2Gi",
        gpu_count="2",
        gpu_model="NVIDIA H200",
        vendor="NVIDIA",
        isolation="hard",
        qos="high",
    )
    assert found.pods[0].pod.request == request(wanted)


def test_a_profiles_indices_and_isolation_are_honoured():
    spec = {"resources": {"requests": {"vram": "1Gi"}}, "gpuIndices": [0, 2], "isolation": "shared"}
    found = read(asking(workload_profile="prof"), profile(**spec)).pods[0].pod.request
    assert found.constraints.indices == {0, 2}
    assert found.constraints.idle_device
    assert found.claims[0].count == 2


def test_annotations_override_the_profile():
    spec = {"resources": {"requests": {"tflops": "10", "vram": "1Gi"}}, "gpuCount": 4}
    found = read(asking(workload_profile="prof", vram_request="3Gi", gpu_count="1"), profile(**spec))
    (one,) = found.pods[0].pod.request.claims
    assert (one.count, one.share.memory_request, one.share.compute_request) == (
        1,
        MemoryMiB(3072),
        ComputeTflops(10000),
    )


def test_percent_of_the_pod_hides_tflops_of_the_profile():
    spec = {"resources": {"requests": {"tflops": "10", "vram": "1Gi"}, "limits": {"tflops": "20"}}}
    found = read(asking(workload_profile="prof", compute_percent_request="50"), profile(**spec))
    assert found.pods[0].pod.request.claims[0].share.compute_request == ComputeMilli(500)


def test_a_profile_that_is_not_there_is_a_problem():
    assert "not in the input" in errors(asking(workload_profile="prof", vram_request="1Gi"))[0]


def test_a_profile_of_the_pods_own_file_goes_before_that_of_another():
    def listed(*objects):
        return json.dumps({"kind": "List", "items": objects})

    def memory(*texts):
        pods = read_manifests([(f"f{n}", text) for n, text in enumerate(texts)]).pods
        return [p.pod.request.claims[0].share.memory_request.mib for p in pods]

    one, two = ({"resources": {"requests": {"vram": size}}} for size in ("1Gi", "2Gi"))
    asker = asking(workload_profile="prof")
    assert memory(listed(profile(**one)), listed(asker, profile(**two))) == [2048]
    assert memory(listed(profile(**one)), listed(asker)) == [1024]


def test_a_profile_of_another_namespace_is_not_the_pods():
    raw = asking(workload_profile="prof", vram_request="1Gi")
    found = read(raw, profile(namespace="other"))
    assert "not in the input" in str(found.problems[0])


def test_what_the_api_server_writes_for_an_unset_quantity_is_unset():
    raw = served(profile(resources={"requests": {"compute": "50", "vram": "1Gi"}}))
    assert raw["spec"]["resources"]["requests"]["tflops"] == "0"
    share = read(asking(workload_profile="prof"), raw).pods[0].pod.request.claims[0].share
    assert share.compute_request == ComputeMilli(500)
    assert share.memory_limit == MemoryMiB(1024)


def test_a_profile_with_a_gang_is_warned_of_like_its_annotation():
    spec = {"resources": {"requests": {"vram": "1Gi", "other": "x"}}, "gangScheduling": {"minMembers": 2}}
    (one,) = read(asking(workload_profile="prof"), profile(**spec)).pods
    assert "planned one by one" in one.warnings[0].message


def test_an_unreadable_quantity_of_a_profile_is_a_problem_of_the_profile():
    found = read(profile(resources={"limits": {"vram": True}}))
    assert [problem.object for problem in found.problems] == ["WorkloadProfile/default/prof"]


# keys


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpupool", "p"),
        ("gang_enabled", "true"),
        ("is_local_gpu", "false"),
        ("autoscale", "true"),
        ("eviction_protection", "5m"),
        ("enabled_replicas", "1"),
        ("client_profile", "x"),
        ("gpu_ids", "a,b"),
    ],
)
def test_a_key_without_effect_is_one_warning_and_no_error(key, value):
    assert len(warnings(base(**{key: value}))) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("is_local_gpu", "true"), ("gang_enabled", "false"), ("gang_timeout", "5m"), ("vendor", "AMD")],
)
def test_a_key_that_changes_nothing_is_silent(key, value):
    assert warnings(base(**{key: value})) == []


def test_the_api_servers_form_is_the_same_request():
    raw = base(container(limits={"nvidia.com/gpu": "1000m", "memory": "0.5Gi"}), gpu_count="1")
    assert request(served(raw)) == request(raw)
