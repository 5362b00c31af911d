"""The allocation annotation: read back exactly, and believed only of the pod and node that it was written for."""

import json

import pytest

from tessera.core.placement import Charge, Grant, Placement
from tessera.core.share import Share
from tessera.wire.kube.allocation import decode_allocation, encode_allocation

SHARE = Share(memory_request=8000, memory_limit=9000, compute_request=250, compute_limit=500)
PLACEMENT = Placement(
    pod_uid="uid-1",
    pod_key="ns/p",
    node="n1",
    grants={"main": (Grant("GPU-a", 0, "A100", SHARE),), "side": (Grant("GPU-b", 1, "A100", SHARE),)},
    charges=(Charge("GPU-a", 8000, 250, 1, False), Charge("GPU-b", 8000, 250, 2, True)),
)
TEXT = encode_allocation(PLACEMENT, {"main": 3, "side": 511})


def decoded(text: str, *, uid: str = "uid-1", node: str = "n1"):
    return decode_allocation(text, uid=uid, key="ns/p", node=node)


def test_what_is_written_is_read_back():
    allocation = decoded(TEXT)
    assert allocation.placement == PLACEMENT
    assert allocation.tickets == {"main": 3, "side": 511}


def test_the_text_as_a_person_reads_it():
    one = Placement("u", "ns/p", "n", {"c": (Grant("G", 0, "T4", SHARE),)}, (Charge("G", 8000, 250, 1, False),))
    assert json.loads(encode_allocation(one, {"c": 7})) == {
        "v": 1,
        "pod": "u",
        "node": "n",
        "containers": {
            "c": [{"uuid": "G", "index": 0, "model": "T4", "memory": [8000, 9000], "compute": [250, 500]}]
        },
        "charges": [{"uuid": "G", "memory": 8000, "compute": 250}],
        "tickets": {"c": 7},
    }


def changed(**parts: object) -> str:
    return json.dumps(json.loads(TEXT) | parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no allocation"),
        ("{}", "is no allocation"),
        (changed(v=2), "of version 2; version 1 is read"),
        (changed(pod="uid-2"), "belongs to the pod with uid uid-2, not to uid-1"),
        (changed(node="n2"), "is for node n2, not n1"),
        (changed(charges=[]), "charges other devices than it grants"),
        (changed(containers={}), "charges other devices than it grants"),
        (changed(containers={}, charges=[]), "charges other devices than it grants"),
        (
            changed(
                charges=[
                    {"uuid": "GPU-a", "memory": -1, "compute": 0},
                    {"uuid": "GPU-b", "memory": 1, "compute": 0},
                ]
            ),
            "less than nothing",
        ),
    ],
)
def test_what_is_not_believed_says_why(text, message):
    with pytest.raises(ValueError, match=message):
        decoded(text)
