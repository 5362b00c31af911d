import pytest

from tessera.core.request import Container, ContainerKind
from wire.objects import container, errors, planned, pod, read, served, workload

GPU = pod(container(limits={"tessera.dev/gpu": 1}))


def names(*objects, nodes=()):
    found = read(*objects, nodes=nodes)
    assert not found.problems, [str(problem) for problem in found.problems]
    return [each.pod.name for each in found.pods]


def why(*objects, nodes=()):
    (skipped,) = read(*objects, nodes=nodes).skipped
    return skipped.why


def cron(spec=None, **job):
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": GPU["spec"]}, **job}}} | (spec or {}),
    }


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("Deployment", "apps/v1"),
        ("Deployment", "extensions/v1beta1"),
        ("StatefulSet", "apps/v1"),
        ("ReplicaSet", "apps/v1"),
        ("ReplicationController", "v1"),
    ],
)
def test_replicas_make_pods_with_readable_names(kind, group):
    assert names(workload(kind, {"replicas": 3}, template=GPU, group=group)) == ["web-0", "web-1", "web-2"]
    assert names(workload(kind, template=GPU, group=group)) == ["web-0"]
    assert names(workload(kind, {"replicas": None}, template=GPU, group=group)) == ["web-0"]


def test_a_statefulset_counts_from_its_first_ordinal():
    assert names(workload("StatefulSet", {"replicas": 2, "ordinals": {"start": 5}}, template=GPU)) == [
        "web-5",
        "web-6",
    ]


@pytest.mark.parametrize(
    ("spec", "count"),
    [({}, 1), ({"parallelism": 3}, 3), ({"parallelism": 3, "completions": 2}, 2), ({"completions": 4}, 1)],
)
def test_a_job_runs_as_many_pods_as_it_may_at_a_time(spec, count):
    assert len(names(workload("Job", spec, template=GPU, group="batch/v1"))) == count


def test_a_cronjob_is_one_run():
    assert names(cron(parallelism=2)) == ["nightly-0", "nightly-1"]


def test_what_is_suspended_makes_no_pods():
    assert why(cron({"suspend": True})) == "is suspended"
    assert why(workload("Job", {"suspend": True}, template=GPU, group="batch/v1")) == "is suspended"


def test_no_replicas_make_no_pods():
    assert why(workload("Deployment", {"replicas": 0})) == "has no replicas"


def test_a_daemonset_makes_a_pod_on_each_node_that_it_matches():
    template = pod(container(limits={"tessera.dev/gpu": 1}), nodeSelector={"gpu": "on"})
    nodes = [("n1", {"gpu": "on"}), ("n2", {}), ("n3", {"gpu": "on", "zone": "a"})]
    found = read(workload("DaemonSet", template=template), nodes=nodes).pods
    assert [(p.pod.name, p.pod.node_name) for p in found] == [("web-n1", "n1"), ("web-n3", "n3")]
    assert why(workload("DaemonSet", template=template), nodes=[("n2", {})]) == "matches no node"


@pytest.mark.parametrize("value", [-1, "2", 1.5, True, [1]])
def test_a_count_that_is_none_is_a_problem(value):
    assert "spec.replicas" in errors(workload("Deployment", {"replicas": value}))[0]


def test_a_count_beyond_reason_is_a_problem():
    assert "more than 100,000 pods" in errors(workload("Deployment", {"replicas": 10**9}))[0]


def test_a_kind_of_the_same_name_from_another_group_is_not_ours():
    assert why(workload("Job", group="batch.volcano.sh/v1alpha1")) == (
        "makes no pods that can be planned (batch.volcano.sh)"
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_finished_holds_nothing(phase):
    assert "has finished" in why(GPU | {"status": {"phase": phase}})


def test_a_pod_keeps_its_uid_and_others_are_made_of_their_identity():
    assert planned(GPU | {"metadata": {"name": "p", "uid": "u-1"}}).pod.uid == "u-1"
    assert planned(GPU).pod.uid == "Pod/default/p"
    assert planned(workload("Deployment", template=GPU, namespace="ns")).pod.uid == "Deployment/ns/web/0"


def test_every_replica_has_a_uid_of_its_own():
    found = read(workload("Deployment", {"replicas": 50}, template=GPU)).pods
    assert len({p.pod.uid for p in found}) == 50


def test_pods_know_their_object_and_namespace():
    found = planned(workload("Deployment", template=GPU, namespace="ns"))
    assert (found.source, found.object, found.pod.key) == ("f.yaml", "Deployment/ns/web", "ns/web-0")


# what a pod asks of its node beside devices


def test_a_pod_says_where_it_must_go():
    found = planned(pod(container(), nodeName="n1", nodeSelector={"b": "2", "a": "1"})).pod
    assert (found.node_name, found.node_selector) == ("n1", (("a", "1"), ("b", "2")))


def test_containers_keep_their_order_and_kind():
    init = [container("i"), container("s", restartPolicy="Always")]
    assert planned(pod(container("a"), init=init)).pod.containers == (
        Container("i", ContainerKind.INIT),
        Container("s", ContainerKind.SIDECAR),
        Container("a", ContainerKind.APP),
    )


def test_a_restart_policy_makes_no_sidecar_of_an_app_container():
    found = planned(pod(container("a", restartPolicy="Always"))).pod
    assert found.containers == (Container("a", ContainerKind.APP),)


def peak(*objects):
    found = planned(*objects).pod
    return found.cpu_milli, found.memory_mib


def test_requests_add_up_and_round_up():
    both = (container("a", requests={"cpu": "250m", "memory": "1G"}), container("b", requests={"cpu": 1.5}))
    assert peak(pod(*both)) == (1750, 954)


def test_a_missing_request_takes_the_limit():
    assert peak(pod(container(limits={"cpu": 2, "memory": "1Gi"}, requests={"cpu": 1}))) == (1000, 1024)


def test_an_init_container_counts_with_the_sidecars_before_it_only():
    def cpu(name, amount, **more):
        return container(name, requests={"cpu": amount}, **more)

    sidecar = cpu("s", 1, restartPolicy="Always")
    assert peak(pod(cpu("a", 2), init=[sidecar, cpu("i", 5)]))[0] == 6000
    assert peak(pod(cpu("a", 2), init=[cpu("i", 5), sidecar]))[0] == 5000
    assert peak(pod(cpu("a", 7), init=[cpu("i", 5), sidecar]))[0] == 8000


def test_overhead_comes_on_top():
    assert peak(pod(container(requests={"cpu": 1}), overhead={"cpu": "250m", "memory": "1Mi"})) == (1250, 1)


def test_what_the_pod_asks_as_a_whole_stands_for_its_containers():
    one = container(requests={"cpu": 1, "memory": "1Gi"})
    assert peak(pod(one, resources={"requests": {"cpu": 3}})) == (3000, 1024)
    assert peak(pod(container(), resources={"limits": {"cpu": 3}})) == (3000, 0)
    assert peak(pod(one, resources={"limits": {"cpu": 3}})) == (1000, 1024)


def test_a_wrong_amount_of_cpu_is_a_problem():
    assert "resources.requests[cpu]" in errors(pod(container(requests={"cpu": "one"})))[0]


def test_the_api_servers_form_asks_for_the_same():
    raw = pod(
        container(limits={"cpu": "1500m", "memory": "0.5Gi", "tessera.dev/gpu": 1}),
        init=[container("i", {"cpu": 2})],
    )
    assert planned(served(raw)).pod == planned(raw).pod


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (pod(), "has no container"),
        (pod(container("a"), container("a")), "the name of two containers"),
        (pod(container("a"), init=[container("a")]), "the name of two containers"),
        (pod({"image": "x"}), "is not a container's name"),
        (pod("x"), "must be a mapping"),
        (pod(container(), nodeName=7), "must be text"),
        (pod(container(), nodeSelector={"a": 1}), "must be text"),
        (pod(container(), nodeSelector=["a"]), "must be a mapping"),
        (pod(container() | {"resources": {"limits": [1]}}), "must be a mapping"),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": {}}},
            "must be a list",
        ),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}}, "give the object a name"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 5}, "spec": {}}, "must be text"),
        ({"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}, "apiVersion"),
    ],
)
def test_an_object_that_kubernetes_would_refuse_is_a_problem(raw, words):
    found = errors(raw)
    assert any(words in text for text in found), found


def test_affinity_is_warned_of():
    raw = pod(container(), affinity={"nodeAffinity": {"x": 1}})
    assert "not considered" in str(planned(raw).warnings[0])
