"""Soft preferences: read from a pod as its users write them, weighed as kube-scheduler weighs them."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from scheduler.world import GIB, a_pod, a_state, place, run_pod, share
from tessera.policy.soft import Match, NodeTerm, Operator, PodTerm, Selector, Spread, Wishes, bonuses
from tessera.scheduler.offers import FULL
from tessera.scheduler.population import Population
from tessera.wire.kube.objects import KubePod
from tessera.wire.kube.wishes import wishes_of

SOFT = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"}
IS_WEB = Selector(frozenset({"team"}), (Match("app", Operator.IN, ("web",)),))


def kube(spec: Mapping[str, Any]) -> KubePod:
    meta = {"name": "p", "namespace": "team", "labels": {"app": "web"}}
    return msgspec.convert({"metadata": meta, "spec": spec}, KubePod)


def view(nodes: Mapping[str, Mapping[str, str]], pods: Mapping[str, tuple[str, str]]) -> Population:
    found = Population()
    for name, labels in nodes.items():
        found.set_node(name, labels)
    for uid, (node, app) in pods.items():
        found.put(uid, node, "team", (("app", app),))
    return found


def test_a_pod_without_preferences_has_none() -> None:
    assert wishes_of(kube({})) is None
    assert wishes_of(kube({"affinity": {"nodeAffinity": {"required": {}}}})) is None


def test_every_kind_of_preference_is_read() -> None:
    term = {"weight": 5, "preference": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}}
    spec = {
        "affinity": {
            "nodeAffinity": {SOFT: [term]},
            "podAffinity": {SOFT: [{"weight": 7, "podAffinityTerm": WEB}]},
            "podAntiAffinity": {SOFT: [{"weight": 9, "podAffinityTerm": {**WEB, "namespaceSelector": {}}}]},
        },
        "topologySpreadConstraints": [
            {**WEB, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"},
            {**WEB, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
        ],
    }
    everywhere = Selector(None, IS_WEB.matches)
    assert wishes_of(kube(spec)) == Wishes(
        nodes=(NodeTerm(5, (Match("k", Operator.IN, ("v",)),)),),
        pods=(PodTerm(7, "zone", IS_WEB), PodTerm(-9, "zone", everywhere)),
        spreads=(Spread("zone", IS_WEB),),
    )


@pytest.mark.parametrize(
    "term",
    [
        {"topologyKey": "zone"},
        {**WEB, "namespaceSelector": {"matchLabels": {"a": "b"}}},
        {"labelSelector": {}, "topologyKey": 3},
    ],
)
def test_a_term_that_is_not_understood_is_left_out(term: dict[str, Any]) -> None:
    assert wishes_of(kube({"affinity": {"podAffinity": {SOFT: [{"weight": 1, "podAffinityTerm": term}]}}})) is None


def test_match_label_keys_mean_the_pods_own_values() -> None:
    term = {"labelSelector": {}, "topologyKey": "zone", "matchLabelKeys": ["app", "absent"]}
    found = wishes_of(kube({"affinity": {"podAffinity": {SOFT: [{"weight": 1, "podAffinityTerm": term}]}}}))
    assert found is not None
    assert found.pods == (PodTerm(1, "zone", IS_WEB),)


@pytest.mark.parametrize(
    ("operator", "values", "labels", "holds"),
    [
        ("In", ("a", "b"), {"k": "b"}, True),
        ("In", ("a",), {}, False),
        ("NotIn", ("a",), {}, True),
        ("NotIn", ("a",), {"k": "a"}, False),
        ("Exists", (), {"k": ""}, True),
        ("DoesNotExist", (), {"k": ""}, False),
        ("Gt", ("5",), {"k": "6"}, True),
        ("Gt", ("5",), {"k": "5"}, False),
        ("Lt", ("5",), {"k": "4"}, True),
        ("Lt", ("5",), {"k": "four"}, False),
        ("Gt", (), {"k": "6"}, False),
        ("Gt", ("5",), {}, False),
    ],
)
def test_operators_hold_as_in_kubernetes(
    operator: str, values: tuple[str, ...], labels: dict[str, str], holds: bool
) -> None:
    assert Match("k", Operator(operator), values).holds(labels) is holds


def test_the_node_that_meets_most_weight_gets_100_points_twice() -> None:
    wishes = Wishes(
        nodes=(
            NodeTerm(30, (Match("disk", Operator.IN, ("ssd",)),)),
            NodeTerm(10, (Match("zone", Operator.EXISTS),)),
        )
    )
    world = view({"a": {"disk": "ssd", "zone": "x"}, "b": {"zone": "x"}, "c": {}}, {})
    assert bonuses(wishes, ["a", "b", "c"], world) == {"a": 2 * 100 * 20_000, "b": 2 * 25 * 20_000}


def test_affinity_draws_to_the_domain_with_most_and_anti_affinity_away_from_it() -> None:
    nodes = {"a": {"zone": "x"}, "b": {"zone": "x"}, "c": {"zone": "y"}, "d": {"zone": "z"}}
    world = view(nodes, {"1": ("a", "web"), "2": ("b", "web"), "3": ("c", "web"), "4": ("d", "db")})
    draws = Wishes(pods=(PodTerm(10, "zone", IS_WEB),))
    assert bonuses(draws, ["a", "b", "c", "d"], world) == {"a": 4_000_000, "b": 4_000_000, "c": 2_000_000}
    keeps_away = Wishes(pods=(PodTerm(-10, "zone", IS_WEB),))
    assert bonuses(keeps_away, ["a", "b", "c", "d"], world) == {"d": 4_000_000, "c": 2_000_000}


def test_spreading_draws_to_the_emptiest_domain_and_not_outside_of_all() -> None:
    nodes = {"a": {"zone": "x"}, "b": {"zone": "y"}, "c": {"zone": "z"}, "d": {}}
    world = view(nodes, {"1": ("a", "web"), "2": ("a", "web"), "3": ("b", "web")})
    wishes = Wishes(spreads=(Spread("zone", IS_WEB),))
    assert bonuses(wishes, ["a", "b", "c", "d"], world) == {"b": 2_000_000, "c": 4_000_000}


def test_spreading_over_empty_domains_prefers_none_of_them() -> None:
    world = view({"a": {"zone": "x"}, "b": {"zone": "y"}, "d": {}}, {})
    assert bonuses(Wishes(spreads=(Spread("zone", IS_WEB),)), ["a", "b", "d"], world) == {
        "a": 4_000_000,
        "b": 4_000_000,
    }


def test_counts_follow_pods_that_come_move_and_go() -> None:
    world = view({}, {"1": ("a", "web")})
    assert world.counts(IS_WEB) == {"a": 1}
    world.put("2", "a", "team", (("app", "web"),))
    world.put("3", "a", "other", (("app", "web"),))
    world.put("1", "b", "team", (("app", "web"),))
    assert world.counts(IS_WEB) == {"a": 1, "b": 1}
    world.drop("1")
    world.drop("never seen")
    assert world.counts(IS_WEB) == {"a": 1}


def anti_affine(name: str) -> Any:
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {SOFT: [{"weight": 1, "podAffinityTerm": term}]}}
    return a_pod(name, share(GIB), labels={"app": "web"}, spec={"affinity": affinity})


def test_pods_that_keep_apart_go_to_different_nodes_although_packing_would_join_them() -> None:
    state = a_state({"n0": 1, "n1": 1, "n2": 1})
    for node in ("n0", "n1", "n2"):
        state.saw_node(node, {"kubernetes.io/hostname": node}, FULL)
    run_pod(state, a_pod("filler", share(2 * GIB)), ["n1"])
    nodes = [place(state, anti_affine(f"p{i}")) for i in range(3)]
    assert nodes[0] == "n1"
    assert sorted(nodes, key=str) == ["n0", "n1", "n2"]


def test_a_preference_never_makes_a_pod_wait() -> None:
    state = a_state({"n0": 1})
    state.saw_node("n0", {"kubernetes.io/hostname": "n0"}, FULL)
    assert [place(state, anti_affine(f"p{i}")) for i in range(3)] == ["n0"] * 3
