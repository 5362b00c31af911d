"""Pods of several containers, as users suffer from them: who holds what is told by name, never by position."""

import itertools
import json

import pytest

from tessera.core.request import ContainerKind
from tessera.wire.kube.request import decode_request
from wire.kube.reviews import admission, admitted, tickets_of
from wire.objects import container, pod, served

SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
COUNTS = list(itertools.product(range(3), range(3), range(1, 4)))


def request_of(stored):
    return decode_request(stored["metadata"]["annotations"]["tessera.dev/request"])[0]


@pytest.mark.parametrize(("inits", "sidecars", "apps"), COUNTS)
def test_row_75_each_container_that_asks_gets_its_share_and_no_other(inits, sidecars, apps):
    kinds = [ContainerKind.SIDECAR] * sidecars + [ContainerKind.INIT] * inits + [ContainerKind.APP] * apps
    names = [f"{kind.value}-{place}" for place, kind in enumerate(kinds)]
    for asking in itertools.product((False, True), repeat=len(kinds)):
        made = [
            container(name, SHARE if asks else {"cpu": "1"})
            | ({"restartPolicy": "Always"} if kind is ContainerKind.SIDECAR else {})
            for name, kind, asks in zip(names, kinds, asking, strict=True)
        ]
        before = inits + sidecars
        stored = admitted(served(pod(*made[before:], init=made[:before])))
        holders = [name for name, asks in zip(names, asking, strict=True) if asks]
        assert list(tickets_of(stored)) == holders
        if holders:
            assert [claim.containers for claim in request_of(stored).claims] == [(name,) for name in holders]


def test_row_76_two_pods_with_a_device_in_an_init_container_hold_different_tickets():
    given = served(pod(container("app"), init=[container("prepare", SHARE)]))
    by = admission(start=100)
    first, second = (tickets_of(admitted(given, by)) for _ in range(2))
    assert first == {"prepare": {"tessera.dev/ticket-3": "5"}}  # number 100 = 3 x 32 + 4
    assert second == {"prepare": {"tessera.dev/ticket-3": "6"}}


def test_row_77_a_device_of_another_vendor_stays_with_its_own_plugin():
    stored = admitted(served(pod(container("c0", SHARE), container("c1", {"kunlunxin.com/xpu": "1"}))))
    assert list(tickets_of(stored)) == ["c0"]
    assert stored["spec"]["containers"][1]["resources"]["limits"] == {"kunlunxin.com/xpu": "1"}


def test_row_78_a_container_in_the_middle_that_asks_for_nothing_is_untouched():
    given = served(pod(container("c0", SHARE), container("c1"), container("c2", SHARE)))
    stored = admitted(given)
    assert stored["spec"]["containers"][1] == given["spec"]["containers"][1]
    assert list(tickets_of(stored)) == ["c0", "c2"]


def test_rows_80_and_81_two_containers_may_share_a_device_and_both_are_counted():
    request = request_of(admitted(served(pod(container("c0", SHARE), container("c1", SHARE)))))
    assert [(claim.containers, claim.count) for claim in request.claims] == [(("c0",), 1), (("c1",), 1)]
    assert not request.constraints.distinct_devices


def test_row_82_the_request_leaves_the_overlap_of_init_containers_to_the_pods_own_order():
    """The record names containers; what they are and when they run stands in the spec, which nobody can change."""
    made = [container("first", SHARE), container("side", SHARE) | {"restartPolicy": "Always"}]
    stored = admitted(served(pod(container("app", SHARE), init=made)))
    record = json.loads(stored["metadata"]["annotations"]["tessera.dev/request"])
    assert [claim["containers"] for claim in record["claims"]] == [["first"], ["side"], ["app"]]
    assert [one["name"] for one in stored["spec"]["initContainers"]] == ["first", "side"]
