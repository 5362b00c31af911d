"""Laws of admission: what is written is what was read, twice is as once, and nothing that arrives breaks it."""

import copy
import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tessera.core.ticket import ticket_of
from tessera.wire.dialects import read_pod
from tessera.wire.fields import Findings
from tessera.wire.kube.admission import decode_new_pod, decode_review, render_warnings
from tessera.wire.kube.form import Reader
from tessera.wire.kube.jsonpatch import encode_patch
from tessera.wire.kube.mutation import Tickets, mutate
from tessera.wire.kube.podview import bears_records, decode_pod, forgeable
from tessera.wire.kube.request import decode_request
from tessera.wire.kube.verdict import Options
from tessera.wire.podspec import read_spec
from wire.kube.reviews import admission, admitted, ask, review_of, tickets_of
from wire.objects import container, pod, served, workload

SOUND = st.sampled_from(["1", "2", "50", "100"])
QUANTITIES = SOUND | SOUND | st.sampled_from(["0", "4k", "512Mi", "8Gi", "1500m", "-1", "many", ""])
HAMI = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage")
NATIVE = ("tessera.dev/gpu", "tessera.dev/memory-percent", "tessera.dev/compute")
OTHERS = ("cpu", "tessera.dev/ticket-0", "tessera.dev/ticket-9", "cambricon.com/mlu")
PALETTES = st.sampled_from([HAMI + OTHERS, NATIVE + OTHERS, OTHERS[:1], HAMI + NATIVE + OTHERS])
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        ["tessera.dev/request", "tessera.dev/allocation", "tessera.dev/model", "tensor-fusion.ai/vram-request",
         "tensor-fusion.ai/gpu-count", "tensor-fusion.ai/inject-container", "nvidia.com/use-gputype", "team"]
    ),
    st.sampled_from(["1", "2", "4Gi", "a", "a,b", "A100", "{}", ""]),
    max_size=3,
)  # fmt: skip
LABELS = st.dictionaries(
    st.sampled_from(["tensor-fusion.ai/enabled", "tessera.dev/managed", "app"]),
    st.sampled_from(["true", "false"]),
    max_size=2,
)


@st.composite
def pods(draw):
    """A pod of up to four containers, sound or not, in any dialect or several, with or without forged records."""
    sides = st.none() | st.dictionaries(st.sampled_from(draw(PALETTES)), QUANTITIES, max_size=3)
    names = draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(1, 4))]
    apps = draw(st.integers(1, len(names)))
    made = [container(name, draw(sides)) for name in names]
    for sidecar in draw(st.lists(st.sampled_from(made[apps:] or [{}]), max_size=2)):
        sidecar["restartPolicy"] = "Always"
    scheduler = draw(st.sampled_from(["default-scheduler", "tessera-scheduler", "other"]))
    annotations = draw(st.just({}) | ANNOTATIONS)
    found = pod(
        *made[:apps], init=made[apps:], annotations=annotations, labels=draw(LABELS), schedulerName=scheduler
    )
    for key in ("annotations", "labels"):
        if not found["metadata"][key] and draw(st.booleans()):
            del found["metadata"][key]
    return served(found) if draw(st.booleans()) and sound(found) else found


def sound(found):
    """Whether the API server would take all quantities."""
    texts = [
        q for c in found["spec"]["containers"] for side in c.get("resources", {}).values() for q in side.values()
    ]
    return not {"many", ""} & {*texts}


def read_directly(given):
    """The request as its dialect reads it, from a pod without what only Tessera writes."""
    clean = copy.deepcopy(given)
    metadata = clean["metadata"]
    metadata["annotations"] = {k: v for k, v in (metadata.get("annotations") or {}).items() if not forgeable(k)}
    for one in (*clean["spec"].get("initContainers", ()), *clean["spec"]["containers"]):
        for side in (one.get("resources") or {}).values():
            for name in [name for name in side if name.startswith("tessera.dev/ticket")]:
                del side[name]
    return read_pod(read_spec(metadata, clean["spec"], None, Findings()).text)


@given(pods(), st.integers(0, 511))
def test_what_is_written_is_what_was_read_and_a_second_review_changes_nothing(given, start):
    first = ask(given, admission(start))
    assume(first.response["allowed"])
    stored = admitted(given, admission(start))
    reading = read_directly(given)
    text = (stored["metadata"].get("annotations") or {}).get("tessera.dev/request")
    other = given["spec"]["schedulerName"] == "other"
    if reading.request is None or other:
        assert text is None
        assert tickets_of(stored) == {}
    else:
        assert decode_request(text) == (reading.request, reading.dialect)
    again = ask(stored, admission(start + 1))
    assert again.patch == []
    assert set(again.warnings) <= set(first.warnings)


@given(pods(), st.integers(0, 511))
def test_each_container_of_a_claim_holds_one_ticket_of_its_own_and_keeps_what_it_had(given, start):
    assume(ask(given, admission(start)).patch)
    stored = admitted(given, admission(start))
    text = stored["metadata"].get("annotations", {}).get("tessera.dev/request")
    holders = {name for claim in decode_request(text)[0].claims for name in claim.containers} if text else set()
    tickets = tickets_of(stored)
    assert tickets.keys() == holders
    numbers = {ticket_of(k, int(v)).number for found in tickets.values() for k, v in found.items()}
    assert len(numbers) == len(holders)
    assert without_records(stored) == without_records(given)


def without_records(obj):
    """A pod as the user meant it: without records, tickets, empty maps and the scheduler's name."""
    if isinstance(obj, list):
        return [without_records(item) for item in obj]
    if not isinstance(obj, dict):
        return obj
    kept = {
        key: without_records(value)
        for key, value in obj.items()
        if not forgeable(key) and key not in ("tessera.dev/managed", "schedulerName")
    }
    return {key: value for key, value in kept.items() if value != {}}


@given(st.lists(pods(), min_size=1, max_size=6))
def test_what_is_remembered_is_what_would_be_read(many):
    warm = admission()
    for one in many:
        ask(one, warm)
    for one in many:
        cold, known = ask(one), ask(one, warm)
        assert (known.answer.outcome, known.answer.dialect) == (cold.answer.outcome, cold.answer.dialect)
        assert known.response.get("status") == cold.response.get("status")
        assert [(op["op"], op["path"].partition("ticket-")[0]) for op in known.patch] == [
            (op["op"], op["path"].partition("ticket-")[0]) for op in cold.patch
        ]


@given(pods(), st.integers(0, 511))
def test_a_form_filled_in_is_the_patch_worked_out(given, start):
    view = decode_pod(json.dumps(given).encode())
    verdict, form = Reader(Options()).read(view, None)
    assert (form is None) == bool(verdict.errors or bears_records(view))
    assume(form is not None)
    operations, findings = mutate(view, verdict, Tickets(start), Options())
    assert form.fill(Tickets(start)) == encode_patch(operations)
    assert form.warnings == render_warnings((*verdict.warnings, *findings.found))


@pytest.mark.parametrize(("containers", "kept"), [(2, True), (80, False)])
def test_a_form_is_kept_unless_it_is_so_long_that_many_would_fill_the_memory(containers, kept):
    names = [f"c{n}" for n in range(containers)]
    given = served(pod(*(container(name, limits={"tessera.dev/memory": "1Gi"}) for name in names)))
    view, reader = decode_pod(json.dumps(given).encode()), Reader(Options())
    (_, first), (_, second) = reader.read(view, None), reader.read(view, None)
    assert first.fill(Tickets(3)) == second.fill(Tickets(3))
    assert (first is second) == kept
    assert (first.size <= 16 * 1024) == kept
    assert first.size < len(first.fill(Tickets(0))) < first.size + 5 * containers


@given(pods())
def test_a_pod_brings_records_exactly_where_something_of_it_is_ours_to_write(given):
    annotations = given["metadata"].get("annotations") or {}
    sides = [
        names
        for c in (*given["spec"].get("initContainers", ()), *given["spec"]["containers"])
        for names in (c.get("resources") or {}).values()
    ]
    forged = {"tessera.dev/request", "tessera.dev/allocation"} & annotations.keys()
    tickets = [name for names in sides for name in names if name.startswith("tessera.dev/ticket")]
    assert bears_records(decode_pod(json.dumps(given).encode())) == bool(forged or tickets)


@given(pods())
def test_a_new_pod_read_in_one_pass_is_the_pod_read_in_two(given):
    body = review_of(given, name="p", subResource="")
    asked, view = decode_new_pod(body)
    review = decode_review(body)
    assert view == decode_pod(review.object)
    for field in ("uid", "kind", "operation", "namespace", "name", "sub_resource"):
        assert getattr(asked, field) == getattr(review, field)


# bad input

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["metadata", "spec", "containers", "initContainers", "resources", "limits", "name", "env",
                         "annotations", "labels", "template", "nvidia.com/gpu", "volumes", "hostPath", "path"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON, st.sampled_from(["Pod", "Deployment", "CronJob", "Node", ""]), st.sampled_from(["CREATE", "UPDATE"]))
def test_row_79_whatever_stands_in_an_object_is_answered(inner, kind, operation):
    obj = {"apiVersion": "v1", "kind": kind}
    body = json.loads(review_of(obj, operation))
    body["request"]["object"] = body["request"]["oldObject"] = inner
    answer = admission().review(json.dumps(body).encode())
    assert_one_pass_agrees(json.dumps(body).encode())
    assert json.loads(answer.body)["response"]["uid"] == body["request"]["uid"]


def assert_one_pass_agrees(body):
    """What one pass makes of a body is what two passes make of it; it may leave it to them."""
    found = decode_new_pod(body)
    review = decode_review(body)
    if found is not None:
        assert (review.kind.kind, review.operation, review.sub_resource) == ("Pod", "CREATE", "")
        assert found[1] == decode_pod(review.object)


@pytest.mark.parametrize(
    ("obj", "more"),
    [
        (pod(container()), {"operation": "UPDATE"}),
        (pod(container()), {"subResource": "ephemeralcontainers"}),
        (workload("Deployment"), {}),
        (pod(container()) | {"spec": {"containers": "none"}}, {}),
    ],
    ids=["update", "subresource", "workload", "wrong"],
)
def test_one_pass_is_for_sound_new_pods_alone(obj, more):
    assert decode_new_pod(review_of(obj, **more)) is None


def test_one_pass_leaves_a_missing_pod_and_another_version_to_two():
    body = review_of(pod(container()))
    assert decode_new_pod(body) is not None
    assert decode_new_pod(body.replace(b"admission.k8s.io/v1", b"admission.k8s.io/v2")) is None
    asked = json.loads(body)
    asked["request"]["object"] = None
    assert decode_new_pod(json.dumps(asked).encode()) is None


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":"\xff","kind":{},"operation":"CREATE"}}')
def test_what_is_no_review_is_a_value_error_and_nothing_else(body):
    with pytest.raises(ValueError, match="is no AdmissionReview"):
        decode_review(body)


def test_a_review_of_another_version_is_refused_by_name():
    body = review_of(pod(container())).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1")
    with pytest.raises(ValueError, match=r"is an AdmissionReview of admission[.]k8s[.]io/v1beta1"):
        decode_review(body)


def test_an_object_that_cannot_be_read_is_refused_with_what_is_wrong():
    found = ask({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": 3}})
    assert not found.response["allowed"]
    assert found.message.startswith("the object is no pod: Expected `array | null`, got `int`")


def test_a_pod_whose_text_is_not_ascii_is_read():
    given = served(pod(container("главный", {"nvidia.com/gpumem": "1"}), annotations={"ключ": "значение"}))
    assert list(tickets_of(admitted(given))) == ["главный"]
