"""Each dialect's patch, worked out by hand; what users may not bring; what is refused, and how it is said."""

import copy
import json

import pytest

from tessera.core.request import Dialect
from tessera.runtime.kube.patch import json_patch
from tessera.wire.kube.jsonpatch import pointer
from tessera.wire.kube.review import Outcome
from tessera.wire.kube.verdict import Privileged, Profile
from wire.kube.reviews import admission, admitted, ask, denied, tickets_of
from wire.objects import container, pod, served, workload

REQUEST = "/metadata/annotations/tessera.dev~1request"
SCHEDULER = {"op": "add", "path": "/spec/schedulerName", "value": "tessera-scheduler"}
LABEL = {"op": "add", "path": "/metadata/labels", "value": {"tessera.dev/managed": "true"}}
ROUND = "goes round the scheduler, so that nobody hands out a device"
INSTEAD = "use nodeSelector kubernetes.io/hostname: n1 instead"
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}


def ticket(key, quantity, place=0, containers="containers"):
    path = f"/spec/{containers}/{place}/resources"
    return [
        {"op": "add", "path": f"{path}/{side}/tessera.dev~1ticket-{key}", "value": quantity}
        for side in ("limits", "requests")
    ]


def test_hamis_pod_keeps_its_resources_and_gets_request_label_scheduler_and_ticket():
    given = served(pod(container(limits=HAMI), labels={"app": "a"}, annotations={"team": "x"}))
    found = ask(given, admission(start=5))
    request = (
        '{"v":1,"claims":[{"containers":["main"],"count":1,"share":{"memory":{"mib":4000},"compute":{"milli":300}}}],'
        '"dialect":"hami","constraints":{"vendor":"NVIDIA"}}'
    )
    assert found.patch == [
        {"op": "add", "path": REQUEST, "value": request},
        {"op": "add", "path": "/metadata/labels/tessera.dev~1managed", "value": "true"},
        SCHEDULER,
        *ticket("0", "6"),  # number 5: the sixth of the first resource
    ]
    assert found.warnings == []
    assert (found.answer.outcome, found.answer.dialect) == (Outcome.PATCHED, Dialect.HAMI)
    stored = admitted(given, admission(start=5))
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "4k",
        "nvidia.com/gpucores": "30",
        "tessera.dev/ticket-0": "6",
    }


def test_text_of_a_user_that_looks_like_a_blank_for_a_ticket_stays_as_it_is():
    given = served(pod(container(limits=HAMI), annotations={"nvidia.com/use-gputype": "A#1,B@2"}))
    by = admission(start=37)
    ask(given, by)
    found = ask(given, by)  # the second of its content, so from what is remembered
    (request,) = (op["value"] for op in found.patch if op["path"] == REQUEST)
    models = json.loads(request)["constraints"]["modelsAllowed"]
    assert [model["pattern"] for model in models] == ["A#1", "B@2"]
    assert found.patch[-2:] == ticket("1", "7")  # number 38: the seventh of the second resource


def test_our_own_dialect_on_an_init_container_and_a_container_without_metadata_maps():
    own = {"tessera.dev/memory": "8Gi", "tessera.dev/compute": "25"}
    given = served(pod(container("app"), init=[container("prepare", limits=own)]))
    given["metadata"] = {"generateName": "job-"}
    found = ask(given, admission(start=511))
    request = (
        '{"v":1,"claims":[{"containers":["prepare"],"count":1,'
        '"share":{"memory":{"mib":8192},"compute":{"milli":250}}}]}'
    )
    assert found.patch == [
        {"op": "add", "path": "/metadata/annotations", "value": {"tessera.dev/request": request}},
        LABEL,
        SCHEDULER,
        *ticket("f", "32", containers="initContainers"),  # number 511, the last
    ]
    assert found.answer.about == "Pod/team/job-*"


def test_tensor_fusions_injected_containers_get_a_ticket_each_and_a_request_together():
    annotations = {
        "tensor-fusion.ai/vram-request": "4Gi",
        "tensor-fusion.ai/vram-limit": "8Gi",
        "tensor-fusion.ai/tflops-request": "10",
        "tensor-fusion.ai/inject-container": "a,b",
    }
    given = served(
        pod(
            container("a"),
            container("plain"),
            container("b", limits={"cpu": "1"}),
            annotations=annotations,
            labels={"tensor-fusion.ai/enabled": "true"},
            schedulerName="tensor-fusion-scheduler",
        )
    )
    del given["spec"]["containers"][0]["resources"]
    found = ask(given, admission(start=31))
    request = (
        '{"v":1,"claims":[{"containers":["a","b"],"count":1,"share":{"memory":{"mib":4096},'
        '"compute":{"milliTflops":10000},"memoryLimit":{"mib":8192}}}],'
        '"dialect":"tensor-fusion","constraints":{"modes":["shared"]}}'
    )
    assert found.patch == [
        {"op": "add", "path": REQUEST, "value": request},
        {"op": "add", "path": "/metadata/labels/tessera.dev~1managed", "value": "true"},
        SCHEDULER,
        {
            "op": "add",
            "path": "/spec/containers/0/resources",
            "value": {side: {"tessera.dev/ticket-0": "32"} for side in ("limits", "requests")},
        },
        *ticket("1", "1", place=2),
    ]


@pytest.mark.parametrize("name", ["", "default-scheduler", "hami-scheduler", "tensor-fusion-scheduler"])
def test_a_pod_of_no_scheduler_in_particular_gets_ours(name):
    stored = admitted(pod(container(limits=HAMI), schedulerName=name))
    assert stored["spec"]["schedulerName"] == "tessera-scheduler"


def test_the_scheduler_is_left_alone_where_tessera_runs_as_the_default_one():
    by = admission(scheduler_name="default-scheduler")
    found = ask(pod(container(limits=HAMI), schedulerName="default-scheduler"), by)
    assert [op["path"] for op in found.patch if "scheduler" in op["path"]] == []


def test_whole_devices_of_another_scheduler_are_its_own_but_shares_are_refused():
    whole = pod(container(limits={"nvidia.com/gpu": "2"}), schedulerName="volcano")
    found = ask(whole)
    assert found.answer.outcome is Outcome.UNCHANGED
    assert "spec.schedulerName: places this pod" in found.warnings[0]
    share = pod(container(limits=HAMI), schedulerName="volcano")
    assert denied(share).startswith("spec.schedulerName: cannot hand out a share of a device (got 'volcano')")


@pytest.mark.parametrize(
    "plain",
    [
        pod(container()),
        pod(container(limits={"cpu": "1", "nvidia.com/mig-1g.5gb": "1"})),
        pod(container(limits=HAMI), labels={"hami.io/webhook": "ignore"}),
        pod(
            container(),
            annotations={"tensor-fusion.ai/vram-request": "1Gi"},
            labels={"tensor-fusion.ai/enabled": "false"},
        ),
        pod(container(limits={"nvidia.com/gpu": "0"})),
    ],
)
def test_a_pod_that_asks_for_nothing_of_ours_is_left_as_it_is(plain):
    found = ask(plain)
    assert (found.patch, found.answer.outcome) == ([], Outcome.UNCHANGED)


# what users may not bring


def test_records_in_a_manifest_are_taken_away_and_told():
    forged = {"tessera.dev/allocation": "{}", "tessera.dev/request": "{}", "tessera.dev/ticket": "7"}
    found = ask(pod(container(limits=HAMI), annotations=forged))
    assert {(op["op"], op["path"]) for op in found.patch} >= {
        ("remove", "/metadata/annotations/tessera.dev~1allocation"),
        ("remove", "/metadata/annotations/tessera.dev~1ticket"),
        ("add", REQUEST),
    }
    assert [warning.partition(":")[0] for warning in found.warnings] == [
        "annotations[tessera.dev/allocation]",
        "annotations[tessera.dev/request]",
    ]


def test_records_are_taken_away_from_a_pod_that_asks_for_nothing_too():
    forged = pod(
        container(limits={"tessera.dev/ticket-3": "4", "cpu": "1"}),
        annotations={"tessera.dev/request": "{}"},
        labels={"tessera.dev/managed": "true"},
    )
    assert admitted(forged) == pod(container(limits={"cpu": "1"}), annotations={}, labels={})
    assert len(ask(forged).warnings) == 3


def test_a_ticket_written_by_hand_is_replaced():
    written = pod(container(limits=HAMI | {"tessera.dev/ticket-a": "3"}))
    found = ask(written, admission(start=0))
    assert tickets_of(admitted(written, admission(start=0))) == {"main": {"tessera.dev/ticket-0": "1"}}
    assert found.warnings == [
        "containers[main].resources.limits[tessera.dev/ticket-a]: is written by Tessera only and was taken away; "
        "leave it out"
    ]


@pytest.mark.parametrize(
    "wrong", [{"tessera.dev/ticket-0": "33"}, {"tessera.dev/ticket-0": "0"}, {"tessera.dev/ticket-z": "1"},
              {"tessera.dev/ticket-0": "1", "tessera.dev/ticket-1": "1"}, {"tessera.dev/ticket-0": "1k"}]
)  # fmt: skip
def test_a_ticket_that_is_none_is_replaced_even_on_a_pod_that_was_admitted(wrong):
    stored = admitted(served(pod(container(limits=HAMI))), admission(start=9))
    for side in ("limits", "requests"):
        del stored["spec"]["containers"][0]["resources"][side]["tessera.dev/ticket-0"]
        stored["spec"]["containers"][0]["resources"][side] |= wrong
    assert tickets_of(admitted(stored, admission(start=40))) == {"main": {"tessera.dev/ticket-1": "9"}}


def with_tickets(obj, **by_container):
    """``obj`` with these tickets (resource, limit, request) in place of its own."""
    obj = copy.deepcopy(obj)
    for one in obj["spec"]["containers"]:
        resource, *quantities = by_container[one["name"]]
        for side, quantity in zip(("limits", "requests"), quantities, strict=True):
            kept = {k: v for k, v in one["resources"][side].items() if not k.startswith("tessera.dev/ticket")}
            one["resources"][side] = kept | {resource: quantity}
    return obj


def test_a_sound_ticket_on_a_pod_that_was_never_admitted_is_replaced_and_told():
    """As on a copy of another pod: two that bring the same ticket would wait for each other."""
    brought = with_tickets(served(pod(container(limits=HAMI))), main=("tessera.dev/ticket-3", "4", "4"))
    assert tickets_of(admitted(brought, admission(start=0))) == {"main": {"tessera.dev/ticket-0": "1"}}
    assert len(ask(brought).warnings) == 2  # its limit and its request
    copied = admitted(served(pod(container(limits=HAMI))), admission(start=99))
    del copied["metadata"]["labels"]  # kubectl debug --copy-to keeps the annotations and drops the labels
    assert tickets_of(admitted(copied, admission(start=0))) == {"main": {"tessera.dev/ticket-0": "1"}}


@pytest.mark.parametrize(
    ("first", "second", "after"),
    [
        (("tessera.dev/ticket-3", "4", "4"), ("tessera.dev/ticket-3", "4", "4"), "tessera.dev/ticket-1"),
        (("tessera.dev/ticket-3", "4", "4"), ("tessera.dev/ticket-3", "5", "6"), "tessera.dev/ticket-1"),
    ],
)
def test_of_two_containers_with_one_ticket_or_half_a_ticket_the_second_gets_a_new_one(first, second, after):
    stored = admitted(served(pod(container("a", HAMI), container("b", HAMI))), admission(start=0))
    again = ask(with_tickets(stored, a=first, b=second), admission(start=32))
    assert again.warnings == []  # somebody between us and us did it, not the user
    mended = json_patch(with_tickets(stored, a=first, b=second), again.patch)
    assert tickets_of(mended) == {"a": {"tessera.dev/ticket-3": "4"}, "b": {after: "1"}}


def test_a_key_is_escaped_in_a_path():
    assert pointer("metadata", "annotations", "a~b/c", 0) == "/metadata/annotations/a~0b~1c/0"


# reinvocation


def test_a_second_review_changes_nothing_whoever_makes_it():
    stored = admitted(served(pod(container(limits=HAMI), container("b", limits=HAMI))), admission(start=7))
    again = ask(stored, admission(start=300))
    assert (again.patch, again.warnings, again.answer.outcome) == ([], [], Outcome.UNCHANGED)


def test_a_container_that_was_added_between_two_reviews_gets_a_ticket_and_the_others_keep_theirs():
    stored = admitted(served(pod(container(limits=HAMI))), admission(start=7))
    stored["spec"]["containers"].append(container("late", limits=HAMI, requests=HAMI))
    again = admitted(stored, admission(start=7))  # the same start: 7 is taken by the first container
    assert tickets_of(again) == {"main": {"tessera.dev/ticket-0": "8"}, "late": {"tessera.dev/ticket-0": "9"}}
    claims = json.loads(again["metadata"]["annotations"]["tessera.dev/request"])["claims"]
    assert [claim["containers"] for claim in claims] == [["main"], ["late"]]


def test_a_dry_run_is_answered_like_any_other():
    given = served(pod(container(limits=HAMI)))
    assert ask(given, admission(start=3), dryRun=True).patch == ask(given, admission(start=3)).patch


# refusals


def test_a_refusal_names_everything_that_is_wrong():
    wrong = pod(
        container("a", limits={"nvidia.com/gpumem-percentage": "120"}),
        container("b", limits=HAMI, securityContext={"privileged": True}),
        nodeName="n1",
        annotations={"nvidia.com/numa-bind": "perhaps"},
    )
    first, *lines = denied(wrong).split("\n")
    assert first == "3 problems:"  # whose share the privileged container would get past is not known yet
    assert lines == [
        "containers[a].resources.limits[nvidia.com/gpumem-percentage]: is more than 100 percent of a device "
        "(got '120'); write 1 to 100",
        'annotations[nvidia.com/numa-bind]: is not a boolean (got \'perhaps\'); write "true" or "false"',
        f"spec.nodeName: {ROUND} (got 'n1'); {INSTEAD}",
    ]


def test_a_pod_that_goes_round_the_scheduler_is_refused():
    assert denied(pod(container(limits=HAMI), nodeName="n1")) == f"spec.nodeName: {ROUND} (got 'n1'); {INSTEAD}"


def test_two_dialects_at_once_are_refused():
    both = pod(container(limits=HAMI | {"tessera.dev/memory": "1Gi"}))
    assert "asks for devices in 2 dialects at once: native, hami" in denied(both)


def test_a_profile_that_does_not_exist_is_refused_by_name():
    named = pod(
        container(),
        annotations={"tensor-fusion.ai/workload-profile": "small"},
        labels={"tensor-fusion.ai/enabled": "true"},
    )
    assert denied(named) == (
        "annotations[tensor-fusion.ai/workload-profile]: names a WorkloadProfile that is not in the pod's "
        "namespace (got 'small'); create it first, or correct the name"
    )
    asked = []
    known = admission(
        profiles=lambda *place: asked.append(place) or Profile((("vram-request", "2Gi"), ("gpu-count", "1")))
    )
    record = json.loads(admitted(named, known)["metadata"]["annotations"]["tessera.dev/request"])
    assert record["claims"][0]["share"]["memory"] == {"mib": 2048}
    assert asked == [("team", "small")]


def test_a_message_of_many_problems_stays_within_what_a_person_reads():
    wrong = pod(*(container(f"c{n}", limits={"nvidia.com/gpumem": "-1"}) for n in range(200)))
    message = denied(wrong)
    assert len(message.encode()) <= 4096
    assert message.startswith("200 problems:\n")
    shown = message.count("\n") - 1
    assert message.endswith(f"and {200 - shown} more")


def test_warnings_stay_within_what_the_api_server_hands_on():
    odd = pod(
        *(container(f"c{n}", limits={"nvidia.com/gpu": "1", "nvidia.com/priority": "1"}) for n in range(60)),
        annotations={"hami.io/gpu-scheduler-policy": "ä" * 300},
    )
    warnings = ask(odd).warnings
    assert all(len(warning.encode()) <= 256 for warning in warnings)
    assert sum(len(warning.encode()) for warning in warnings) <= 4096
    assert warnings[-1].startswith("and ")


# what exists


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"annotations": {"tessera.dev/allocation": "{}"}}, "annotations[tessera.dev/allocation]"),
        ({"annotations": {"tessera.dev/request": "a"}}, {}, "annotations[tessera.dev/request]"),
        ({"labels": {"tessera.dev/managed": "true"}}, {"labels": {}}, "labels[tessera.dev/managed]"),
    ],
)
def test_records_of_a_pod_that_exists_cannot_be_changed(before, after, told):
    old, new = ({**pod(container()), "metadata": {"name": "p", **meta}} for meta in (before, after))
    assert denied(new, operation="UPDATE", old=old).startswith(f"{told}: is written by Tessera only")


def test_anything_else_of_a_pod_that_exists_can_be_changed():
    old = admitted(served(pod(container(limits=HAMI))))
    new = {**old, "metadata": old["metadata"] | {"labels": old["metadata"]["labels"] | {"a": "b"}}}
    assert ask(new, operation="UPDATE", old=old).answer.outcome is Outcome.UNCHANGED


# templates


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"])
def test_a_template_is_never_refused_and_tells_what_its_pods_would_be_refused_for(kind):
    wrong = pod(container(limits={"nvidia.com/gpumem-percentage": "120", "tessera.dev/ticket-0": "1"}))
    obj = workload(kind, template=wrong, group="batch/v1" if "Job" in kind else "apps/v1")
    if kind == "CronJob":
        obj["spec"] = {"jobTemplate": {"spec": obj["spec"]}}
    found = ask(obj)
    assert found.response["allowed"]
    assert found.patch == []
    assert found.answer.outcome is Outcome.TOLD
    assert found.warnings[0].startswith(
        "its pods: containers[main].resources.limits[nvidia.com/gpumem-percentage]:"
    )
    assert "start one after the other" in found.warnings[1]


@pytest.mark.parametrize("spec", [{}, {"template": 3}, {"template": {"spec": {"containers": "none"}}}])
def test_a_template_that_cannot_be_read_is_not_ours_to_judge(spec):
    found = ask(workload("Deployment") | {"spec": spec})
    assert (found.response["allowed"], found.warnings, found.answer.outcome) == (True, [], Outcome.TOLD)


# row 33 and row 21 of the users' pains


def test_row_33_a_privileged_container_with_a_fraction_is_refused_or_marked_by_choice():
    naked = pod(container(limits=HAMI, securityContext={"privileged": True}))
    assert denied(naked) == (
        "containers[main].securityContext.privileged: lets the container reach every device of the node, so that "
        "its share cannot be enforced (got 'true'); drop the privilege, or ask for whole devices"
    )
    told = ask(naked, admission(privileged=Privileged.WARN))
    assert told.response["allowed"]
    assert [w for w in told.warnings if "reach every device of the node" in w]
    whole = pod(container(limits={"nvidia.com/gpu": "1"}, securityContext={"privileged": True}))
    assert [w for w in ask(whole).warnings if "reach every device of the node" in w]


def test_row_33_what_else_lets_a_pod_past_its_share_is_told():
    open_pod = pod(
        container(limits=HAMI, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        container("helper", securityContext={"privileged": True}),
        hostPID=True,
        hostIPC=True,
        shareProcessNamespace=True,
        volumes=[
            {"name": "a", "hostPath": {"path": "/dev"}},
            {"name": "b", "hostPath": {"path": "/"}},
            {"name": "c", "hostPath": {"path": "/var/run/tessera/regions"}},
            {"name": "d", "hostPath": {"path": "/srv/data"}},
            {"name": "e", "emptyDir": {}},
        ],
    )
    fields = [warning.partition(":")[0] for warning in ask(open_pod).warnings]
    assert fields == [
        "spec.hostPID",
        "spec.hostIPC",
        "spec.shareProcessNamespace",
        "spec.volumes[].hostPath",
        "spec.volumes[].hostPath",
        "spec.volumes[].hostPath",
        "containers[main].env[NVIDIA_VISIBLE_DEVICES]",
        "containers[helper].securityContext.privileged",
    ]


@pytest.mark.parametrize(
    ("given", "field", "remedy"),
    [
        (pod(container(limits={"nvidia.com/gpu": "1"})), "containers[main].resources.limits[nvidia.com/gpu]",
         "add nvidia.com/gpumem to share it"),
        (pod(container(limits={"tessera.dev/gpu": "1"})), "containers[main].resources.limits[tessera.dev/gpu]",
         "add tessera.dev/memory to share it"),
        (pod(container(), annotations={"tensor-fusion.ai/gpu-count": "1"},
             labels={"tensor-fusion.ai/enabled": "true"}),
         "annotations", "add annotations[tensor-fusion.ai/vram-request] to share it"),
    ],
)  # fmt: skip
def test_row_21_leaving_out_memory_means_the_whole_device_and_says_so(given, field, remedy):
    message = "asks for no memory, and so for the whole of each device"
    assert ask(given).warnings == [f"{field}: {message}; {remedy}"]


@pytest.mark.parametrize(
    "chosen",
    [
        pod(container(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"})),
        pod(container(limits={"tessera.dev/memory-percent": "100"})),
        pod(
            container(),
            annotations={"tensor-fusion.ai/dedicated-gpu": "true"},
            labels={"tensor-fusion.ai/enabled": "true"},
        ),
    ],
)
def test_row_21_who_asks_for_all_of_it_is_told_nothing(chosen):
    assert ask(chosen).warnings == []
