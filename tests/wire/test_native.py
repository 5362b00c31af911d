from dataclasses import replace

import pytest

from tessera.core.placement import Charge, Grant, Placement
from tessera.core.priority import Priority
from tessera.core.request import Claim, Constraints, Dialect, ModelRule, Preference, Request
from tessera.core.share import ComputeMilli, MemoryFraction, MemoryMiB, Share, ShareSpec
from tessera.core.units import MiB, Milli
from tessera.wire.dialects.native import WHOLE_DEVICE
from tessera.wire.kube.allocation import decode_allocation, encode_allocation
from tessera.wire.kube.request import decode_request, encode_request
from wire.objects import claim, container, errors, planned, pod, request, served, warnings

ALL, FREE = MemoryFraction(1000), ComputeMilli(1000)


def gpu(limits, requests=None, name="main"):
    prefix = "tessera.dev/"
    sides = [None if s is None else {prefix + key: value for key, value in s.items()} for s in (limits, requests)]
    return container(name, *sides)


def noted(key, value):
    return pod(gpu({"gpu": 1}), annotations={f"tessera.dev/{key}": value})


def test_a_count_alone_is_whole_devices_and_nobody_else_on_them():
    assert claim(pod(gpu({"gpu": 2}))) == Claim(("main",), 2, ShareSpec(ALL, ALL, FREE, FREE, exclusive=True))


def test_memory_and_compute_are_a_share_of_each_device():
    share = claim(pod(gpu({"gpu": 2, "memory": "20Gi", "compute": 30}))).share
    mib, milli = MemoryMiB(20480), ComputeMilli(300)
    assert share == ShareSpec(mib, mib, milli, milli)


def test_a_share_without_a_count_is_of_one_device():
    assert claim(pod(gpu({"memory": "1Gi"}))).count == 1
    assert claim(pod(gpu({"compute": 10}))).count == 1


def test_memory_alone_uses_what_compute_is_free():
    share = claim(pod(gpu({"memory": "1Gi"}))).share
    assert (share.compute_request, share.compute_limit) == (ComputeMilli(0), FREE)


def test_compute_alone_charges_all_of_the_memory():
    share = claim(pod(gpu({"gpu": 1, "compute": 30}))).share
    assert (share.memory_request, share.memory_limit, share.exclusive) == (ALL, ALL, False)


def test_memory_percent_is_a_fraction_of_whatever_device_it_lands_on():
    assert claim(pod(gpu({"memory-percent": 25}))).share.memory_request == MemoryFraction(250)


def test_all_of_the_compute_can_be_asked_for():
    assert claim(pod(gpu({"compute": 100, "memory": "1Gi"}))).share.compute_request == FREE


def test_request_and_limit_may_differ_and_a_missing_one_takes_the_other():
    share = claim(pod(gpu({"memory": "8Gi", "compute": 50}, {"memory": "4Gi"}))).share
    assert (share.memory_request, share.memory_limit) == (MemoryMiB(4096), MemoryMiB(8192))
    assert share.compute_request == share.compute_limit == ComputeMilli(500)
    assert claim(pod(gpu(None, {"compute": 20, "memory": "1Gi"}))).share.compute_limit == ComputeMilli(200)


def test_memory_rounds_up_to_a_mib():
    assert claim(pod(gpu({"memory": "10G"}))).share.memory_request == MemoryMiB(9537)


@pytest.mark.parametrize(
    ("limits", "requests", "words"),
    [
        ({"memory": "4Gi"}, {"memory": "8Gi"}, "more than its limit of 4Gi"),
        ({"memory": "4Gi", "memory-percent": 10}, None, "contradicts tessera.dev/memory"),
        ({"gpu": 2}, {"gpu": 1}, "differs from its request"),
        ({"gpu": 0}, None, "no number of devices"),
        ({"gpu": 129}, None, "no number of devices"),
        ({"gpu": -1}, None, "is negative"),
        ({"gpu": "500m"}, None, "not a whole number"),
        ({"gpu": True}, None, "is not a number"),
        ({"gpu": None}, None, "is not a number"),
        ({"gpu": ""}, None, "not a Kubernetes quantity"),
        ({"gpu": 1, "memory": 4000}, None, "less than 1 MiB"),
        ({"gpu": 1, "memory": "0"}, None, "less than 1 MiB"),
        ({"gpu": 1, "memory": "4Pi"}, None, "more memory than any device has"),
        ({"memory": "4gb"}, None, "not a Kubernetes quantity"),
        ({"compute": 101}, None, "more than 100 percent"),
        ({"compute": "12.5"}, None, "not a whole number"),
        ({"memory-percent": 0}, None, "asks for no memory"),
    ],
)
def test_what_cannot_be_meant_is_a_problem(limits, requests, words):
    found = errors(pod(gpu(limits, requests)))
    assert any(words in text for text in found), found


def test_everything_wrong_with_a_pod_is_reported_at_once():
    first, second = gpu({"gpu": 0, "memory": "x"}), gpu({"compute": 200}, name="b")
    assert len(errors(pod(first, second, annotations={"tessera.dev/numa": "maybe"}))) == 4


@pytest.mark.parametrize(
    ("key", "value", "constraints"),
    [
        ("model", "A100, h100", Constraints(models_allowed=(ModelRule("A100"), ModelRule("h100")))),
        ("model", "V100M16|V100M32", Constraints(models_allowed=(ModelRule("V100M16"), ModelRule("V100M32")))),
        ("model", " , ", Constraints()),
        ("exclude-model", "T4", Constraints(models_denied=(ModelRule("T4"),))),
        ("uuid", "GPU-a,GPU-b", Constraints(uuids_allowed=frozenset({"GPU-a", "GPU-b"}))),
        ("exclude-uuid", "GPU-a", Constraints(uuids_denied=frozenset({"GPU-a"}))),
        ("numa", "same", Constraints(one_numa=True)),
        ("idle-device", "true", Constraints(idle_device=True)),
        ("idle-device", "false", Constraints()),
        ("distinct-devices", "true", Constraints(distinct_devices=True)),
        ("mode", "mig", Constraints(modes=frozenset({"mig"}))),
        ("vendor", "nvidia", Constraints(vendor="NVIDIA")),
    ],
)
def test_annotations_constrain_where_the_pod_may_go(key, value, constraints):
    assert request(noted(key, value)).constraints == constraints


def test_policies_are_the_pods_own_preference():
    annotations = {"tessera.dev/node-policy": "spread", "tessera.dev/device-policy": "binpack"}
    assert request(pod(gpu({"gpu": 1}), annotations=annotations)).preference == Preference("spread", "binpack")


def test_containers_can_be_bound_to_the_same_devices():
    both = (gpu({"memory": "1Gi"}, name="a"), gpu({"memory": "1Gi"}, name="b"))
    found = request(pod(*both, annotations={"tessera.dev/same-device": "a, b"}))
    assert found.constraints.same_device == (("a", "b"),)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a,x", "is no container that asks"),
        ("a", "no group of its own"),
        ("a,b;b,c", "no group of its own"),
        ("a,c", "different"),
    ],
)
def test_a_group_that_cannot_share_devices_is_a_problem(value, words):
    three = (
        gpu({"gpu": 1, "memory": "1Gi"}, name="a"),
        gpu({"memory": "1Gi"}, name="b"),
        gpu({"gpu": 2}, name="c"),
    )
    found = errors(pod(*three, annotations={"tessera.dev/same-device": value}))
    assert any(words in text for text in found), found


def test_same_and_distinct_devices_contradict():
    both = (gpu({"memory": "1Gi"}, name="a"), gpu({"memory": "1Gi"}, name="b"))
    annotations = {"tessera.dev/same-device": "a,b", "tessera.dev/distinct-devices": "true"}
    assert "contradicts" in errors(pod(*both, annotations=annotations))[0]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("modle", "A100", "did you mean tessera.dev/mode or tessera.dev/model?"),
        ("numa", "all", "not a known NUMA rule"),
        ("idle-device", "yes", "not a boolean"),
        ("node-policy", "first", "not a known policy"),
        ("mode", "mgi", "did you mean mig?"),
        ("vendor", "nvidea", "did you mean NVIDIA?"),
        ("request", "{}", "not believed from a manifest"),
        ("allocation", "{}", "not believed from a manifest"),
        ("ticket", "7", "not believed from a manifest"),
    ],
)
def test_a_wrong_annotation_is_a_problem_with_a_remedy(key, value, words):
    (found,) = errors(noted(key, value))
    assert words in found


def test_a_misspelt_resource_is_a_problem_with_a_remedy():
    (found,) = errors(pod(gpu({"gpu": 1, "memroy": "4Gi"})))
    assert "did you mean tessera.dev/memory?" in found
    assert "containers[main].resources.limits[tessera.dev/memroy]" in found


def test_a_ticket_in_the_resources_is_refused():
    assert "not believed" in errors(pod(gpu({"gpu": 1, "ticket-3": 1})))[0]


def test_annotations_without_a_device_are_a_problem():
    assert "asks for no device" in errors(pod(container(), annotations={"tessera.dev/model": "A100"}))[0]


def test_only_containers_that_ask_hold_devices():
    found = request(pod(container("a"), gpu({"gpu": 1}, name="b")))
    assert [c.containers for c in found.claims] == [("b",)]


@pytest.mark.parametrize(
    "limits", [{"gpu": 2}, {"gpu": "2000m"}, {"memory": "0.5Gi", "compute": 30}, {"gpu": 1, "memory": 4294967296}]
)
def test_the_api_servers_form_is_the_same_request(limits):
    raw = pod(gpu(limits))
    assert request(served(raw)) == request(raw)
    assert planned(raw).pod.dialect is Dialect.NATIVE


def test_a_sound_pod_has_no_warnings():
    assert warnings(pod(gpu({"gpu": 1}))) == []


def test_a_pod_says_who_goes_first_and_what_may_lie_in_host_memory():
    shared = pod(gpu({"memory": "4Gi"}), annotations={"tessera.dev/priority": "High", "tessera.dev/spill": "2Gi"})
    assert (claim(shared).share.priority, claim(shared).share.spill) == (Priority.HIGH, 2048)
    assert (claim(pod(gpu({"memory": "4Gi"}))).share.priority, claim(pod(gpu({"gpu": 1}))).share.spill) == (2, 0)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("priority", "hihg", "did you mean high?"),
        ("priority", "3", "not a known priority"),
        ("spill", "much", "spill"),
    ],
)
def test_a_priority_or_a_spill_that_means_nothing_is_a_problem(key, value, words):
    found = errors(pod(gpu({"memory": "4Gi"}), annotations={f"tessera.dev/{key}": value}))
    assert any(words in text for text in found), found


def test_priority_and_spill_survive_both_annotations_on_the_wire():
    share = replace(WHOLE_DEVICE, exclusive=False, priority=Priority.LOW, spill=MiB(512))
    wanted = Request((Claim(("main",), 1, share),))
    assert decode_request(encode_request(wanted, Dialect.NATIVE)) == (wanted, Dialect.NATIVE)
    plain = Request((Claim(("main",), 1, replace(share, priority=Priority.MEDIUM, spill=MiB(0))),))
    assert "priority" not in encode_request(plain, Dialect.NATIVE), "older readers know nothing of it"
    granted = Share(MiB(1), MiB(1), Milli(1), Milli(1), priority=Priority.CRITICAL, spill=MiB(7))
    grant = Grant("GPU-1", 0, "A100", granted)
    placement = Placement("u", "n/p", "node", {"main": (grant,)}, (Charge("GPU-1", 1, 1, 1, exclusive=False),))
    text = encode_allocation(placement, {})
    assert decode_allocation(text, uid="u", key="n/p", node="node").placement == placement
