"""The extender protocol: what kube-scheduler writes is read, whatever it leaves out; other bodies are errors."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.request import Container, ContainerKind
from tessera.wire.kube.extender import (
    BindArgs,
    NodeNames,
    containers_of,
    decode_bind,
    decode_candidates,
    decode_filter,
    devices_asked,
    encode_binding,
    encode_error,
    encode_kept,
    encode_refused,
    tickets_of,
)
from tessera.wire.kube.objects import KubePod


def a_pod(*containers: dict[str, object], init: list[dict[str, object]] | None = None) -> KubePod:
    spec = {"containers": list(containers), **({"initContainers": init} if init else {})}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, KubePod)


def asking(name: str = "c", *, policy: str = "", **amounts: str) -> dict[str, object]:
    limits = {key.replace("__", "/").replace("_", "."): value for key, value in amounts.items()}
    return {"name": name, "resources": {"limits": limits}, **({"restartPolicy": policy} if policy else {})}


def test_a_filter_call_is_read() -> None:
    body = json.dumps(
        {
            "Pod": {"metadata": {"name": "p", "uid": "u", "managedFields": [{}]}, "spec": {"containers": []}},
            "Nodes": None,
            "NodeNames": ["a", "b"],
        }
    ).encode()
    args = decode_filter(body)
    assert (args.pod.metadata.uid, list(args.names)) == ("u", ["a", "b"])
    assert (decode_candidates(body).uid, list(decode_candidates(body).names)) == ("u", ["a", "b"])


def test_what_go_leaves_null_is_nothing() -> None:
    meta = b'{"name":"p","labels":null,"annotations":null}'
    body = b'{"Pod":{"metadata":' + meta + b',"spec":{"containers":null}},"NodeNames":[]}'
    with pytest.raises(ValueError, match="is no filter call"):
        decode_filter(body)
    args = decode_filter(body.replace(b'"containers":null', b'"initContainers":null'))
    assert args.pod.metadata.labels is None
    assert list(args.names) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is no filter call"),
        (b"[]", "is no filter call"),
        (b'{"NodeNames":["a"]}', "without a pod"),
        (b'{"Pod":{"metadata":{}},"Nodes":{"items":[]},"NodeNames":null}', "nodeCacheCapable"),
        (b'{"Pod":{"metadata":{}},"NodeNames":{"a":1}}', "is no filter call"),
    ],
)
@pytest.mark.parametrize("decode", [decode_filter, decode_candidates])
def test_what_is_no_filter_call_is_said(decode: object, body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(body)  # type: ignore[operator]


def test_a_bind_call_needs_all_four() -> None:
    full = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "x"}
    assert decode_bind(json.dumps(full).encode()) == BindArgs("p", "n", "u", "x")
    for missing in full:
        with pytest.raises(ValueError, match="without"):
            decode_bind(json.dumps({k: v for k, v in full.items() if k != missing}).encode())


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps({"Pod": value, "NodeNames": value, "PodUID": value}).encode()
    )
)
def test_no_body_breaks_a_decoder(body: bytes) -> None:
    for decode in (decode_filter, decode_candidates, decode_bind):
        with suppress(ValueError):  # and nothing else
            assert decode(body)


def test_answers_are_what_go_reads() -> None:
    assert json.loads(encode_kept(("a",))) == {"NodeNames": ["a"]}
    assert json.loads(encode_refused({"a": "no"})) == {"FailedAndUnresolvableNodes": {"a": "no"}, "NodeNames": []}
    assert json.loads(encode_error("later")) == {"Error": "later"}


def test_a_binding_names_uid_and_node_and_carries_its_annotations() -> None:
    assert json.loads(encode_binding(BindArgs("p", "n", "u", "x"), {"k": "v"})) == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"k": "v"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "x"},
    }


def test_containers_come_in_the_order_of_their_lives() -> None:
    pod = a_pod({"name": "app"}, init=[{"name": "i"}, {"name": "s", "restartPolicy": "Always"}])
    assert containers_of(pod) == (
        Container("i", ContainerKind.INIT),
        Container("s", ContainerKind.SIDECAR),
        Container("app", ContainerKind.APP),
    )


def test_tickets_are_read_by_container() -> None:
    pod = a_pod(asking("a", tessera_dev__ticket0="1"), init=[asking("i")])
    pod = msgspec.convert(
        {
            "metadata": {},
            "spec": {
                "initContainers": [{"name": "i", "resources": {"limits": {"tessera.dev/ticket-0": "1"}}}],
                "containers": [
                    {"name": "a", "resources": {"requests": {"tessera.dev/ticket-f": "32"}}},
                    {"name": "b", "resources": {"limits": {"cpu": "1"}}},
                ],
            },
        },
        KubePod,
    )
    assert tickets_of(pod) == {"i": 0, "a": 511}


@pytest.mark.parametrize(
    "amounts",
    [
        [{"tessera.dev/ticket-0": "33"}],
        [{"tessera.dev/ticket-0": "0"}],
        [{"tessera.dev/ticket-g": "1"}],
        [{"tessera.dev/ticket-0": "1", "tessera.dev/ticket-1": "1"}],
        [{"tessera.dev/ticket-0": "5"}, {"tessera.dev/ticket-0": "5"}],
    ],
)
def test_tickets_that_admission_does_not_write_are_an_error(amounts: list[dict[str, str]]) -> None:
    containers = [{"name": f"c{i}", "resources": {"limits": a}} for i, a in enumerate(amounts)]
    with pytest.raises(ValueError, match="ticket"):
        tickets_of(a_pod(*containers))


@pytest.mark.parametrize(
    ("containers", "init", "devices"),
    [
        ([asking("a", x__gpu="1"), asking("b", x__gpu="2")], None, 3),
        ([asking("a", x__gpu="1")], [asking("i", x__gpu="4")], 4),
        ([asking("a", x__gpu="1")], [asking("s", policy="Always", x__gpu="2"), asking("i", x__gpu="2")], 4),
        ([asking("a", x__gpu="3")], [asking("i", x__gpu="2"), asking("s", policy="Always", x__gpu="2")], 5),
        ([asking("a", x__gpu="1k")], None, 1000),
        ([asking("a", x__gpu="-1"), asking("b", x__gpu="nonsense"), asking("c")], None, 0),
    ],
)
def test_whole_devices_are_counted_at_the_pods_peak(
    containers: list[dict[str, object]], init: list[dict[str, object]] | None, devices: int
) -> None:
    assert devices_asked(a_pod(*containers, init=init), frozenset({"x/gpu"})) == devices


def test_a_name_is_found_among_the_names_only_whole() -> None:
    names = NodeNames(b'["node-1","node-10","b.node-2"]')
    assert [name in names for name in ("node-1", "node-10", "node-2", "node-", "b.node-2", "")] == [
        True, True, False, False, True, False,
    ]  # fmt: skip
    assert (len(names), list(names), names[1]) == (3, ["node-1", "node-10", "b.node-2"], "node-10")


def test_names_that_are_no_list_of_names_are_told_when_they_are_gone_through() -> None:
    with pytest.raises(ValueError, match="is no filter call"):
        list(NodeNames(b"[1]"))
