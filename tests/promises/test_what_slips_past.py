"""What slips past implementers, one section per line of the design's list, as far as one machine has it.

Line 10 (inside the process: remapped device numbers, raw clone, fork without exec, the driver's own codes) is
tested in C, where it happens: limiter/test/test_limiter_*.c.
"""

from dataclasses import replace

import pytest

from builders import a_claim, a_device, a_fleet, a_node, a_pod, a_share, whole
from tessera.allocator.ledger import Adopt, Booked, Commit, Expire, Ledger, Overcommitted, Release, Reserve
from tessera.allocator.place import place
from tessera.allocator.suggest import suggest
from tessera.core.request import Constraints, ModelRule
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.policy.rank import POLICIES
from tessera.wire.manifests import read_manifests


def placement(ledger, pod):
    found = place(ledger.snapshot(), pod, POLICIES["binpack"])
    return found.placement if found else None


def small(name="p", uid=None, memory=1000):
    return replace(a_pod(a_claim(a_share(memory, 100)), name=name), uid=uid or name)


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: p, annotations: {{{annotations}}}}}
spec:
  containers:
  - name: main
    image: main
    resources: {{limits: {{nvidia.com/gpu: {gpu}, nvidia.com/gpumem: {memory}, nvidia.com/gpucores: {cores}}}}}
"""


def read(gpu="1", memory="4000", cores="30", annotations=""):
    text = POD.format(gpu=gpu, memory=memory, cores=cores, annotations=annotations)
    return read_manifests([("pod.yaml", text)], [])


# 1. The API server rewrites quantities before anybody sees them.


@pytest.mark.parametrize(
    ("written", "rewritten"), [("4000", "4k"), ("4096000m", "4096"), ("2e3", "2k"), ("3072", "3072")]
)
def test_1_a_quantity_means_the_same_as_the_api_server_hands_it_out(written, rewritten):
    def request(memory):
        (planned,) = read(memory=memory).pods
        return planned.pod.request

    assert request(written) == request(rewritten)


# 2. An init container overlaps only with the sidecars declared before it: tests/core/test_request.py, and
#    test_the_order_of_init_containers_and_sidecars_decides_the_peak in tests/allocator/test_place.py.

# 3. Users write pod annotations: a decision record that comes in with a manifest is untrusted.


@pytest.mark.parametrize("key", ["request", "allocation", "ticket"])
def test_3_a_decision_record_in_a_manifest_is_refused(key):
    found = read(annotations=f'tessera.dev/{key}: "{{}}"')
    assert not found.pods
    (problem,) = found.problems
    assert problem.field == f"annotations[tessera.dev/{key}]"


# 4. Identity is the uid.


def test_4_a_pod_recreated_under_its_name_is_another_holder():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    ledger.apply(Adopt(placement(ledger, small("p", uid="first"))))
    ledger.apply(Adopt(placement(ledger, small("p", uid="second"))))
    ledger.apply(Release("first"))
    assert set(ledger.entries) == {"second"}
    assert int(ledger.snapshot().usage.memory.sum()) == 1000


def test_4_uids_that_differ_in_the_last_character_only_are_two():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    for uid in ("0a1b-1", "0a1b-2"):
        ledger.apply(Adopt(placement(ledger, small(uid=uid))))
    ledger.apply(Release("0a1b-1"))
    assert set(ledger.entries) == {"0a1b-2"}


def test_4_device_uuids_that_differ_in_the_last_character_only_are_two():
    fleet = a_fleet(a_node("a", [a_device("GPU-1a"), a_device("GPU-1b", index=1)]))
    pod = a_pod(a_claim(a_share(1, 1)), constraints=Constraints(uuids_allowed=frozenset({"GPU-1b"})))
    assert placement(Ledger(fleet), pod).grants["main"][0].uuid == "GPU-1b"


# 5. Inventory shrinks, changes identity and is replaced under running pods; nodes leave and come back.


def test_5_a_device_that_shrank_under_its_holders_is_reported_and_takes_nobody_new():
    before = Ledger(a_fleet(a_node("a", 1, 24576)))
    fact = placement(before, small(memory=20000))
    after = Ledger(a_fleet(a_node("a", 1, 16384)))
    assert after.apply(Adopt(fact)) == (Booked("p"), Overcommitted("p", ("a-0",)))
    assert placement(after, small("new", memory=1)) is None


def test_5_a_node_that_leaves_and_comes_back_finds_its_holders_charged_again():
    fleet, without = a_fleet(a_node("a", 1)), a_fleet(a_node("b", 1))
    facts = [placement(Ledger(fleet), small())]
    assert int(Ledger.rebuilt(without, facts).snapshot().usage.memory.sum()) == 0
    assert int(Ledger.rebuilt(fleet, facts).snapshot().usage.memory.sum()) == 1000


def test_5_a_replaced_device_starts_empty():
    old = a_fleet(a_node("a", [a_device("old")]))
    facts = [placement(Ledger(old), a_pod(a_claim(whole())))]
    ledger = Ledger.rebuilt(a_fleet(a_node("a", [a_device("new")])), facts)
    assert placement(ledger, a_pod(a_claim(whole()), name="next")) is not None


# 6. A joint plan respects whatever else makes a node unusable. (Gangs, preemption and draining are to come; what
#    is planned on changed requests today are suggestions.)


def test_6_a_suggestion_never_points_at_a_node_that_could_not_take_the_pod_anyway():
    nodes = [
        a_node("cordoned", [a_device("x", model="H100")], cordoned=True),
        a_node("full", [a_device("y", model="H100")], max_pods=0),
        a_node("good", [a_device("z", model="H100")]),
    ]
    pod = a_pod(a_claim(a_share(1, 1)), constraints=Constraints(models_allowed=(ModelRule("A100"),)))
    assert {s.nodes for s in suggest(Ledger(a_fleet(*nodes)).snapshot(), pod)} == {("good",)}


# 7. The normal end of life.


def test_7_a_holder_that_ended_may_end_again_and_may_come_back():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    fact = placement(ledger, small())
    for _ in range(3):
        ledger.apply(Reserve(fact))
        ledger.apply(Commit("p"))
        ledger.apply(Release("p"))
        ledger.apply(Release("p"))
    assert not ledger.entries
    assert int(ledger.snapshot().usage.memory.sum()) == 0


# 8. Numeric edges.


def test_8_sums_that_fit_where_no_single_device_does_are_refused():
    fleet = a_fleet(a_node("a", 4, 8192))
    assert placement(Ledger(fleet), small(memory=8193)) is None
    assert placement(Ledger(fleet), small(memory=8192)) is not None


def test_8_percent_of_unlike_devices_is_of_each():
    devices = [a_device("small", 16384), a_device("large", 81920, index=1)]
    half = MemoryFraction(500)
    share = ShareSpec(half, half, ComputeMilli(100), ComputeMilli(100))
    granted = placement(Ledger(a_fleet(a_node("a", devices))), a_pod(a_claim(share, count=2))).grants["main"]
    assert {g.uuid: g.share.memory_request for g in granted} == {"small": 8192, "large": 40960}


@pytest.mark.parametrize("memory", ['"4000"', "4000", "4000.0", '"4k"'])
def test_8_a_number_written_as_text_is_the_number(memory):
    (planned,) = read(memory=memory).pods
    assert planned.pod.request.claims[0].share.memory_request.mib == 4000


@pytest.mark.parametrize("memory", ["-1", '"-4k"', '".nan"', ".inf", '"9e99"', '"12 GiB"', '""', "true"])
def test_8_what_is_no_amount_of_memory_is_a_problem_and_nothing_is_planned(memory):
    found = read(memory=memory)
    assert found.problems
    assert not found.pods


# 9. Clocks.


def test_9_a_clock_that_jumps_back_ends_no_reservation_and_one_that_jumps_forward_ends_it_once():
    ledger = Ledger(a_fleet(a_node("a", 1)))
    ledger.apply(Reserve(placement(ledger, small()), expires=1000.0))
    assert ledger.apply(Expire(-1e9)) == ()
    assert len(ledger.apply(Expire(1e12))) == 1
    assert ledger.apply(Expire(1e12)) == ()
