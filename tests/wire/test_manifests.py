import json

import yaml

from tessera.core.request import Dialect
from tessera.wire.manifests import read_manifests
from wire.objects import container, pod, read, workload

GPU = pod(container(limits={"tessera.dev/gpu": 1}))
POD = yaml.safe_dump(GPU)


def owned(raw, kind, name):
    raw["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return raw


def test_the_same_name_in_two_files_is_two_pods_with_uids_of_their_own():
    found = read_manifests([("a.yaml", POD), ("b.yaml", POD)])
    assert found.problems == ()
    assert [(p.source, p.pod.uid) for p in found.pods] == [
        ("a.yaml", "Pod/default/p@a.yaml"),
        ("b.yaml", "Pod/default/p@b.yaml"),
    ]


def test_the_same_name_twice_in_one_file_is_a_problem():
    found = read_manifests([("a.yaml", f"{POD}---\n{POD}")])
    (problem,) = found.problems
    assert (problem.source, problem.object) == ("a.yaml", "Pod/default/p")
    assert "twice in this file" in problem.message


def test_what_stands_twice_is_still_read_for_what_else_is_wrong_with_it():
    wrong = POD.replace("tessera.dev/gpu: 1", "tessera.dev/gpu: -1")
    assert wrong != POD
    messages = [problem.message for problem in read_manifests([("a.yaml", f"{POD}---\n{wrong}")]).problems]
    assert len(messages) == 2
    assert "twice in this file" in messages[0]


def test_equal_names_of_other_kinds_or_namespaces_are_different_objects():
    other = pod(container(), namespace="other")
    assert read(GPU, other, workload("Deployment", name="p")).problems == ()


def test_the_same_uid_on_two_pods_is_a_problem():
    one = pod(container(), name="a")
    two = pod(container(), name="b")
    one["metadata"]["uid"] = two["metadata"]["uid"] = "u"
    (problem,) = read(one, two).problems
    assert (problem.object, problem.value) == ("Pod/default/b", "u")


def test_what_another_object_of_the_file_makes_is_planned_once():
    deployment = workload("Deployment", {"replicas": 1}, template=GPU)
    replicas = owned(workload("ReplicaSet", template=GPU, name="web-7f"), "Deployment", "web")
    running = owned(pod(container(), name="web-7f-x"), "ReplicaSet", "web-7f")
    found = read(running, replicas, deployment)
    assert [p.pod.name for p in found.pods] == ["web-0"]
    assert [(s.kind, s.name) for s in found.skipped] == [("Pod", "web-7f-x"), ("ReplicaSet", "web-7f")]
    assert "Deployment/default/web" in found.skipped[1].why


def test_what_an_absent_object_made_is_planned_itself():
    assert len(read(owned(pod(container(), name="x"), "ReplicaSet", "gone")).pods) == 1


def test_lists_of_every_kind_are_unfolded():
    bare = {key: GPU[key] for key in ("metadata", "spec")}
    typed = {"apiVersion": "v1", "kind": "PodList", "items": [bare]}
    found = read_manifests([("a", json.dumps(typed)), ("b", json.dumps({"kind": "List", "items": [typed]}))])
    assert [p.object for p in found.pods] == ["Pod/default/p", "Pod/default/p"]
    assert read_manifests([("a", '{"kind": "PodList", "apiVersion": "v1", "items": null}')]).pods == ()


def test_generated_names_are_told_apart():
    one = pod(container())
    one["metadata"] = {"generateName": "run-"}
    assert [p.pod.name for p in read(one, one).pods] == ["run-0", "run-1"]


def test_objects_without_pods_are_named_as_skipped():
    found = read_manifests(
        [("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\n- a\n---\nx: 1\n---\nhi\n")]
    )
    assert [(s.kind, s.name) for s in found.skipped] == [("", ""), ("", ""), ("", ""), ("Service", "s")]
    assert "is a list (line 5)" in found.skipped[0].why
    assert "has no kind (line 7)" in found.skipped[1].why
    assert found.problems == ()


def test_a_broken_file_does_not_hide_the_others():
    found = read_manifests([("a.yaml", "a: ["), ("b.yaml", POD)])
    assert [problem.source for problem in found.problems] == ["a.yaml"]
    assert len(found.pods) == 1


def test_an_invalid_object_is_reported_once_with_its_pods_counted():
    bad = pod(container(limits={"nvidia.com/gpu": -1, "nvidia.com/gpumem": "x"}))
    found = read(workload("Deployment", {"replicas": 3}, template=bad), GPU)
    (invalid,) = found.invalid
    assert (invalid.object, invalid.name, invalid.namespace) == ("Deployment/default/web", "web", "default")
    assert (invalid.dialect, invalid.pods, len(invalid.problems)) == (Dialect.HAMI, 3, 2)
    assert found.problems == invalid.problems
    assert len(found.pods) == 1


def test_a_problem_names_file_object_field_and_value():
    (problem,) = read(pod(container(limits={"nvidia.com/gpumem": "4gb"}))).problems
    assert str(problem).startswith("f.yaml: Pod/default/p: containers[main].resources.limits[nvidia.com/gpumem]: ")
    assert "'4gb'" in str(problem)


def test_pods_of_equal_content_come_to_the_same_whatever_was_read_before():
    many = [pod(container(limits={"tessera.dev/gpu": n % 3 + 1}), name=f"p{n}") for n in range(9)]
    together = read(*many).pods
    alone = [read(each).pods[0] for each in many]
    assert list(together) == alone


def test_pods_that_differ_beside_their_containers_only_are_not_taken_for_each_other():
    plain = pod(container(), name="a")
    over = pod(container(), name="b", overhead={"cpu": 1})
    whole = pod(container(), name="c", resources={"requests": {"cpu": 2}})
    assert [p.pod.cpu_milli for p in read(plain, over, whole).pods] == [0, 1000, 2000]


def test_an_integer_and_a_boolean_of_equal_value_are_not_taken_for_each_other():
    one, true = (
        pod(container(limits={"tessera.dev/gpu": 1}), name="a"),
        pod(container(limits={"tessera.dev/gpu": True}), name="b"),
    )
    found = read(one, true)
    assert [p.pod.name for p in found.pods] == ["a"]
    assert [invalid.name for invalid in found.invalid] == ["b"]


def test_the_order_of_the_input_is_the_order_of_the_pods():
    many = [pod(container(), name=f"p{n}") for n in (3, 1, 2)]
    assert [p.pod.name for p in read(*many).pods] == ["p3", "p1", "p2"]


def test_no_input_is_no_pods():
    assert read_manifests([]).pods == ()
    assert read_manifests([("a", ""), ("b", "---\n# nothing\n")]).problems == ()
