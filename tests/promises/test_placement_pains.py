"""What users of shared accelerators were promised and did not get, as tests of the allocator.

Each test is named after the promise; the thread in which users reported the break stands beside it.
"""

import random
from dataclasses import replace
from itertools import product

import pytest

from builders import a_claim, a_device, a_fleet, a_node, a_pod, a_share, whole
from tessera.allocator.explain import sentence
from tessera.allocator.ledger import Adopt, Ledger, Refused, Release, Reserve
from tessera.allocator.place import place
from tessera.allocator.plan import decide
from tessera.core.placement import Rejected
from tessera.core.request import ContainerKind
from tessera.core.share import ComputeMilli, MemoryFraction, ShareSpec
from tessera.policy.rank import POLICIES

BINPACK = POLICIES["binpack"]


def put(ledger, pod, policy=BINPACK):
    """Place and book; the placement, or None."""
    decision = place(ledger.snapshot(), pod, policy)
    if decision is None:
        return None
    ledger.apply(Adopt(decision.placement))
    return decision.placement


def uuids(placement):
    return {grant.uuid for grants in placement.grants.values() for grant in grants}


def test_devices_of_live_exclusive_pods_stay_disjoint_through_a_thousand_replacements():  # HAMi#1491
    chance = random.Random(1491)
    ledger, live = Ledger(a_fleet(a_node("a", 8))), {}
    for serial in range(1000):
        if len(live) == 4:
            gone = chance.choice(sorted(live))
            ledger.apply(Release(gone))
            del live[gone]
        pod = a_pod(a_claim(whole(), count=2), name=f"p{serial}")
        live[pod.uid] = uuids(put(ledger, pod))
        assert sum(map(len, live.values())) == len(set().union(*live.values()))


def test_a_card_held_exclusively_behind_an_init_container_is_not_shared_later():  # HAMi#2965
    pod = a_pod(
        a_claim(a_share(1024, 100), containers="fetch"),
        a_claim(whole(), containers="train"),
        kinds={"fetch": ContainerKind.INIT},
        name="a",
    )
    ledger = Ledger(a_fleet(a_node("a", 1)))
    assert put(ledger, pod) is not None
    refused = decide(ledger.snapshot(), a_pod(a_claim(a_share(20480, 220)), name="b"), BINPACK)
    assert isinstance(refused, Rejected)
    assert sentence(refused.groups[0].shortfalls[0]) == "1 device held exclusively by another pod"


def test_a_pod_of_three_containers_takes_three_slots():  # HAMi#2622
    ledger = Ledger(a_fleet(a_node("a", [a_device("g0", slots=4)])))
    three = a_pod(*(a_claim(a_share(1024, 100), containers=c) for c in "xyz"), name="three")
    one, other = (a_pod(a_claim(a_share(1024, 100)), name=n) for n in ("one", "other"))
    assert [put(ledger, pod) is not None for pod in (three, one, other)] == [True, True, False]


def test_more_than_the_largest_device_has_is_refused_and_the_largest_is_named():  # gpushare#218
    fleet = a_fleet(a_node("a", 2, 7168))
    refused = decide(Ledger(fleet).snapshot(), a_pod(a_claim(a_share(8192, 0))), BINPACK)
    assert isinstance(refused, Rejected)
    assert "asked 8,192 MiB, largest free 7,168 MiB" in sentence(refused.groups[0].shortfalls[0])


def test_room_on_other_cards_is_found_until_every_card_is_full():  # gpushare#188
    ledger = Ledger(a_fleet(a_node("a", 4, 23 * 1024)))
    placed = [put(ledger, a_pod(a_claim(a_share(10 * 1024, 0)), name=f"p{i}")) for i in range(9)]
    assert [p is not None for p in placed] == [True] * 8 + [False]


def test_a_percentage_of_memory_is_booked_as_the_memory_it_is():  # volcano#3465
    fifth = MemoryFraction(200)
    share = ShareSpec(fifth, fifth, ComputeMilli(0), ComputeMilli(1000))
    ledger = Ledger(a_fleet(a_node("a", 1, 24576)))
    placed = [put(ledger, a_pod(a_claim(share), name=f"p{i}")) for i in range(6)]
    assert [p is not None for p in placed] == [True] * 5 + [False]
    assert placed[0].charges[0].memory_mib == 4915


def test_spread_takes_the_least_used_pair_whatever_its_numa_node():  # HAMi#1006
    devices = [a_device(f"g{i}", index=i, numa=i // 2) for i in range(4)]
    ledger = Ledger(a_fleet(a_node("a", devices)))
    busy = a_pod(a_claim(a_share(1024, 900)), name="busy")
    spread = POLICIES["spread"]
    assert uuids(put(ledger, busy, spread)) == {"g0"}
    assert uuids(put(ledger, a_pod(a_claim(a_share(1024, 900)), name="busy2"), spread)) == {"g1"}
    assert uuids(put(ledger, a_pod(a_claim(a_share(1024, 100), count=2), name="two"), spread)) == {"g2", "g3"}


def test_three_concurrent_halves_of_one_card_end_with_exactly_two_bound():  # volcano#3616
    ledger = Ledger(a_fleet(a_node("a", 1, 24576)))
    stale = ledger.snapshot()
    decisions = [place(stale, a_pod(a_claim(a_share(12288, 0)), name=f"p{i}"), BINPACK) for i in range(3)]
    effects = [ledger.apply(Reserve(d.placement)) for d in decisions if d]
    assert [any(isinstance(e, Refused) for e in es) for es in effects] == [False, False, True]


COMBINATIONS = [
    (inits, sides, apps, mask)
    for inits, sides, apps in product(range(3), range(3), range(1, 4))
    for mask in product((False, True), repeat=inits + sides + apps)
    if any(mask)
]


def containers_of(inits, sides, apps):
    names = [f"i{i}" for i in range(inits)] + [f"s{i}" for i in range(sides)] + [f"a{i}" for i in range(apps)]
    kinds = {f"i{i}": ContainerKind.INIT for i in range(inits)} | {
        f"s{i}": ContainerKind.SIDECAR for i in range(sides)
    }
    return names, kinds


@pytest.mark.parametrize("shape", sorted({c[:3] for c in COMBINATIONS}), ids=lambda s: "i{}s{}a{}".format(*s))
def test_each_container_of_any_shape_of_pod_gets_its_own_devices_and_no_other_gets_any(shape):  # HAMi#1667, #698
    """Container k asks for k + 1 MiB, so that a grant to the wrong container shows in its size."""
    names, kinds = containers_of(*shape)
    for mask in (c[3] for c in COMBINATIONS if c[:3] == shape):
        asking = [n for n, wants in zip(names, mask, strict=True) if wants]
        claims = [a_claim(a_share(names.index(n) + 1, 10), containers=n) for n in asking]
        placement = put(Ledger(a_fleet(a_node("a", 2))), a_pod(*claims, kinds=kinds))
        assert {n: [g.share.memory_request for g in gs] for n, gs in placement.grants.items()} == {
            n: [names.index(n) + 1] for n in asking
        }


def test_two_pods_with_a_device_only_in_an_init_container_each_get_their_own_limit():  # HAMi#2640
    ledger = Ledger(a_fleet(a_node("a", 1)))
    placed = [
        put(ledger, a_pod(a_claim(a_share(m, 100), containers="i"), kinds={"i": ContainerKind.INIT}, name=f"p{m}"))
        for m in (3000, 5000)
    ]
    assert [p.grants["i"][0].share.memory_limit for p in placed] == [3000, 5000]


def test_a_pod_with_two_kinds_of_device_gives_each_container_its_own_kind():  # HAMi#2335
    devices = [a_device("gpu", index=0), a_device("xpu", index=1, vendor="kunlun")]
    wanted = {"c0": "nvidia", "c1": "kunlun"}
    claims = [replace(a_claim(a_share(1000, 100), containers=c), vendor=v) for c, v in wanted.items()]
    for order in (claims, claims[::-1]):
        placement = put(Ledger(a_fleet(a_node("a", devices))), a_pod(*order))
        assert {c: [g.uuid for g in gs] for c, gs in placement.grants.items()} == {"c0": ["gpu"], "c1": ["xpu"]}


def test_two_containers_of_one_pod_can_share_one_card():  # NDP#1690
    pod = a_pod(a_claim(a_share(6144, 250), containers="x"), a_claim(a_share(6144, 250), containers="y"))
    placement = put(Ledger(a_fleet(a_node("a", [a_device("g0", slots=4)]))), pod)
    assert uuids(placement) == {"g0"}


def test_what_is_booked_is_the_sum_over_all_containers():  # PR TF#535, gpushare#219
    pod = a_pod(*(a_claim(a_share(1000 * (i + 1), 100), containers=f"c{i}") for i in range(3)))
    (charge,) = put(Ledger(a_fleet(a_node("a", 1))), pod).charges
    assert (charge.memory_mib, charge.compute_milli, charge.slots) == (6000, 300, 3)


@pytest.mark.parametrize(
    ("order", "peak"),
    [
        # sidecar 3000 first: init 5000 + 3000 = 8000; apps 4000 + 3000 = 7000
        (("side", "init", "app"), 8000),
        # sidecar after the init container: init alone 5000; apps 4000 + 3000 = 7000
        (("init", "side", "app"), 7000),
    ],
)
def test_the_peak_counts_an_init_container_with_the_sidecars_before_it_only(order, peak):  # PR HAMi#1773
    memory = {"side": 3000, "init": 5000, "app": 4000}
    pod = a_pod(
        *(a_claim(a_share(memory[c], 0), containers=c) for c in order),
        kinds={"side": ContainerKind.SIDECAR, "init": ContainerKind.INIT},
    )
    (charge,) = put(Ledger(a_fleet(a_node("a", 1))), pod).charges
    assert charge.memory_mib == peak


def test_sixty_four_quarters_on_eight_cards_fill_them_exactly():  # KAI#2153
    ledger = Ledger(a_fleet(a_node("a", 8)))
    placed = [put(ledger, a_pod(a_claim(a_share(6144, 250)), name=f"p{i}")) for i in range(64)]
    assert sum(p is not None for p in placed) == 32
    usage = ledger.snapshot().usage
    assert (usage.memory.tolist(), usage.compute.tolist()) == ([24576] * 8, [1000] * 8)
    assert isinstance(decide(ledger.snapshot(), a_pod(a_claim(a_share(1, 1))), BINPACK), Rejected)
