"""Placing: what a policy prefers, and the rules that a user would be surprised to see broken."""

import pytest

from builders import a_claim, a_device, a_fleet, a_node, a_pod, a_share, whole
from tessera.allocator.ledger import Adopt, Ledger
from tessera.allocator.place import place
from tessera.allocator.single import OneNode
from tessera.core.placement import Placed
from tessera.core.request import Constraints, ContainerKind, ModelRule, Preference, Request
from tessera.core.share import ComputeMilli, ComputeTflops, MemoryFraction, MemoryMiB, ShareSpec, resolve
from tessera.policy.rank import POLICIES


def placing(fleet, *pods, policy="binpack"):
    """Place pods in order; node and device indices per container, or None."""
    ledger, answers = Ledger(fleet), []
    for pod in pods:
        decision = place(ledger.snapshot(), pod, POLICIES[policy])
        if decision is None:
            answers.append(None)
            continue
        ledger.apply(Adopt(decision.placement))
        grants = {c: [g.index for g in gs] for c, gs in decision.placement.grants.items()}
        answers.append((decision.placement.node, grants))
    return answers


def small(name, **facts):
    return a_pod(a_claim(a_share(4096, 250)), name=name, **facts)


def test_binpack_fills_one_device_before_the_next():
    answers = placing(a_fleet(a_node("a", 2), a_node("b", 2)), *(small(f"p{i}") for i in range(5)))
    assert answers == [("a", {"main": [0]})] * 4 + [("a", {"main": [1]})]


def test_spread_takes_the_emptiest_node_and_device():
    answers = placing(
        a_fleet(a_node("a", 2), a_node("b", 2)), *(small(f"p{i}") for i in range(4)), policy="spread"
    )
    assert answers == [(n, {"main": [i]}) for i in (0, 1) for n in ("a", "b")]


def test_node_binpack_device_spread_stays_on_the_node_and_alternates_devices():
    fleet = a_fleet(a_node("a", 2), a_node("b", 2))
    answers = placing(fleet, *(small(f"p{i}") for i in range(4)), policy="node-binpack-device-spread")
    assert answers == [("a", {"main": [i]}) for i in (0, 1, 0, 1)]


def test_a_pods_own_preference_goes_over_the_policy():
    pods = []
    for i in range(2):
        pod = small(f"p{i}")
        request = Request(pod.request.claims, pod.request.constraints, Preference(node="spread", device="spread"))
        pods.append(a_pod(*request.claims, name=f"p{i}"))
        pods[-1] = type(pod)(**{f: getattr(pod, f) for f in pod.__slots__} | {"request": request})
    assert [a[0] for a in placing(a_fleet(a_node("a"), a_node("b")), *pods)] == ["a", "b"]


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"random"}))  # which has no ties
def test_equal_inputs_give_equal_placements_with_ties_to_the_first(policy):
    fleet = a_fleet(a_node("b", 2), a_node("a", 2))
    assert placing(fleet, small("p"), policy=policy) == [("b", {"main": [0]})]


def test_an_exclusive_share_wants_a_device_without_any_other_and_keeps_others_off():
    fleet = a_fleet(a_node("a", 2))
    shared, alone, late = small("s"), a_pod(a_claim(whole()), name="w"), a_pod(a_claim(a_share(1, 0)), name="l")
    assert placing(fleet, shared, alone, late) == [
        ("a", {"main": [0]}),
        ("a", {"main": [1]}),
        ("a", {"main": [0]}),
    ]
    assert placing(a_fleet(a_node("a", 1)), shared, alone) == [("a", {"main": [0]}), None]
    assert placing(a_fleet(a_node("a", 1)), alone, late) == [("a", {"main": [0]}), None]


def test_a_share_without_compute_goes_beside_others_until_all_compute_is_taken():
    free_rider = a_pod(a_claim(a_share(1024, 0)), name="f")
    most = a_pod(a_claim(a_share(1024, 999)), name="m")
    rest = a_pod(a_claim(a_share(1024, 1)), name="r")
    assert placing(a_fleet(a_node("a", 1)), most, free_rider) == [("a", {"main": [0]})] * 2
    assert placing(a_fleet(a_node("a", 1)), most, rest, free_rider)[2] is None


def test_a_containers_devices_are_distinct():
    fleet = a_fleet(a_node("a", 1), a_node("b", 3))
    assert placing(fleet, a_pod(a_claim(a_share(1, 1), count=2))) == [("b", {"main": [0, 1]})]


def test_containers_share_one_device_unless_told_not_to():
    two = (a_claim(a_share(1000, 250), containers="x"), a_claim(a_share(1000, 250), containers="y"))
    fleet = a_fleet(a_node("a", 2))
    assert placing(fleet, a_pod(*two)) == [("a", {"x": [0], "y": [0]})]
    apart = Constraints(distinct_devices=True)
    assert placing(fleet, a_pod(*two, constraints=apart)) == [("a", {"x": [0], "y": [1]})]


def test_same_device_brings_containers_together_even_where_the_policy_would_part_them():
    two = (a_claim(a_share(1000, 250), containers="x"), a_claim(a_share(1000, 250), containers="y"))
    together = Constraints(same_device=(("x", "y"),))
    answer = placing(a_fleet(a_node("a", 4)), a_pod(*two, constraints=together), policy="spread")
    assert answer == [("a", {"x": [0], "y": [0]})]


def test_one_numa_node_skips_a_better_mixed_pair():
    devices = [a_device(f"g{i}", index=i, numa=numa) for i, numa in enumerate((0, 1, 1, None))]
    fleet = a_fleet(a_node("a", devices))
    pod = a_pod(a_claim(a_share(1, 1), count=2), constraints=Constraints(one_numa=True))
    assert placing(fleet, pod) == [("a", {"main": [1, 2]})]


def test_a_joint_claim_is_charged_once_and_granted_to_each_of_its_containers():
    pod = a_pod(a_claim(a_share(6000, 400), containers=("x", "y")))
    decision = place(Ledger(a_fleet(a_node("a", 1, 10000))).snapshot(), pod, POLICIES["binpack"])
    assert isinstance(decision, Placed)
    assert decision.placement.grants["x"] == decision.placement.grants["y"]
    (charge,) = decision.placement.charges
    assert (charge.memory_mib, charge.compute_milli, charge.slots) == (6000, 400, 1)


def test_an_init_container_may_use_the_room_that_the_app_uses_later():
    pod = a_pod(
        a_claim(a_share(8000, 0), containers="load"),
        a_claim(a_share(8000, 0), containers="serve"),
        kinds={"load": ContainerKind.INIT},
    )
    assert placing(a_fleet(a_node("a", 1, 10000)), pod) == [("a", {"load": [0], "serve": [0]})]


@pytest.mark.parametrize(("order", "fits"), [(("side", "load"), False), (("load", "side"), True)])
def test_the_order_of_init_containers_and_sidecars_decides_the_peak(order, fits):
    """Device of 10,000 MiB: sidecar 4,000, init 7,000, app 5,000. Declared after the sidecar the init container
    overlaps it (11,000); declared before, the peaks are 7,000 and 9,000.
    """
    memory = {"side": 4000, "load": 7000, "serve": 5000}
    claims = [a_claim(a_share(memory[c], 0), containers=c) for c in (*order, "serve")]
    pod = a_pod(*claims, kinds={"side": ContainerKind.SIDECAR, "load": ContainerKind.INIT})
    assert (placing(a_fleet(a_node("a", 1, 10000)), pod)[0] is not None) == fits


def test_cpu_memory_and_pod_count_of_a_node_count():
    nodes = a_node("a", 8, cpu_milli=4000), a_node("b", 8, memory_mib=8192), a_node("c", 8, max_pods=1)
    wants_all = [small(f"p{i}", cpu_milli=5000, memory_mib=9000) for i in range(2)]
    assert placing(a_fleet(*nodes), *wants_all) == [("c", {"main": [0]}), None]


def test_node_selector_node_name_and_cordon_are_honoured():
    fleet = a_fleet(a_node("a", cordoned=True), a_node("b"), a_node("c", labels={"zone": "x"}))
    assert placing(fleet, small("p"))[0][0] == "b"
    assert placing(fleet, small("p", node_selector=(("zone", "x"),)))[0][0] == "c"
    assert placing(fleet, small("p", node_name="c"))[0][0] == "c"
    assert placing(fleet, small("p", node_name="gone")) == [None]


def test_model_uuid_index_mode_vendor_and_health_narrow_the_choice():
    devices = [
        a_device("g0", index=0, model="Tesla T4"),
        a_device("g1", index=1, model="NVIDIA A100-SXM4-80GB"),
        a_device("g2", index=2, model="NVIDIA A100-SXM4-80GB", mode="mig"),
        a_device("g3", index=3, vendor="other", model="Gaudi"),
        a_device("g4", index=4, healthy=False),
        a_device("g5", index=5, cordoned=True),
    ]
    fleet = a_fleet(a_node("a", devices))

    def index(**rules):
        answer = placing(fleet, small("p", constraints=Constraints(**rules)))[0]
        return answer and answer[1]["main"][0]

    assert index(models_allowed=(ModelRule("a100"),)) == 1
    assert index(models_allowed=(ModelRule("A100", exact=True),)) is None
    assert index(models_denied=(ModelRule("T4"), ModelRule("A100-SXM"))) == 3
    assert index(uuids_allowed=frozenset({"g3"})) == 3
    assert index(uuids_denied=frozenset({"g0"})) == 1
    assert index(indices=frozenset({1, 5})) == 1
    assert index(modes=frozenset({"mig"})) == 2
    assert index(vendor="other") == 3
    assert index(uuids_allowed=frozenset({"g4", "g5"})) is None


def test_percent_is_of_each_device_and_rounds_down_to_a_mib():
    spec = ShareSpec(MemoryFraction(200), MemoryFraction(200), ComputeMilli(300), ComputeMilli(300))
    assert resolve(spec, 24576, None).memory_request == 4915
    assert resolve(spec, 81920, None).memory_request == 16384


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_device_without_known_memory_has_room_for_no_part_of_it(exclusive):
    part = MemoryFraction(1)
    spec = ShareSpec(part, part, ComputeMilli(1000), ComputeMilli(1000), exclusive)
    assert resolve(spec, 0, None).memory_request == 1
    for memory, placed in ((0, False), (1, True)):
        node, pod = a_node("n0", 1, memory), a_pod(a_claim(spec))
        assert (placing(a_fleet(node), pod) != [None]) is placed
        assert (OneNode(node, ()).place(pod, POLICIES["binpack"]) is not None) is placed


@pytest.mark.parametrize(
    ("tflops", "of", "milli"),
    [(104, 312, 333), (312, 312, 1000), (100, 125, 800), (0, 312, 0), (125.1, 125, 1001)],
)
def test_tflops_convert_by_the_model_and_n_equal_parts_of_a_device_fit_it(tflops, of, milli):
    amount = ComputeTflops(int(tflops * 1000))
    spec = ShareSpec(MemoryMiB(1), MemoryMiB(1), amount, amount)
    assert resolve(spec, 1000, of * 1000).compute_request == milli


def test_a_tiny_request_in_tflops_is_never_free():
    amount = ComputeTflops(250)
    assert resolve(ShareSpec(MemoryMiB(1), MemoryMiB(1), amount, amount), 1000, 989_000).compute_request == 1


def test_a_limit_is_capped_at_the_device():
    spec = ShareSpec(MemoryMiB(1000), MemoryMiB(99999), ComputeMilli(0), ComputeTflops(900_000))
    share = resolve(spec, 24576, 312_000)
    assert (share.memory_limit, share.compute_limit) == (24576, 1000)


def test_amounts_near_two_to_the_63_do_not_overflow_into_a_fit():
    assert placing(a_fleet(a_node("a")), a_pod(a_claim(a_share(2**62, 0)))) == [None]
