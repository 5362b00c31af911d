"""Facts of the rendered chart: what must hold whatever its text."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tessera.agent.health import FaultClass, overridden
from tessera.policy.rank import POLICIES
from tessera.scheduler.stock import Settings, configuration
from tessera.vendors.nvidia_xid import UNKNOWN, XIDS
from tessera.wire.kube.webhooks import Target, webhook_objects

from .conftest import CHART, Helm, Object, Render, containers, matches, named, workloads

ROOT = CHART.parents[1]


def test_helm_finds_nothing_to_complain_of(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART), "--kube-version", "v1.37.2")
    assert done.returncode == 0, done.stdout


def test_generated_files_are_as_generated() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/chart.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


# What versions providers report. Row 124 of the users' pains: HAMi's chart refused them.
@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.30.0", "v1.30.0"),
        ("v1.31.4-eks-2d5f260", "v1.31.4"),
        ("v1.32.1-gke.1357001", "v1.32.1"),
        ("v1.33.2+k3s1", "v1.33.2"),
        ("v1.34.1+rke2r1", "v1.34.1"),
        ("v1.33.10-aliyun.1", "v1.33.10"),
        ("v1.35.0-rc.1", "v1.35.0"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version(render: Render, version: str, tag: str) -> None:
    scheduler = named(render(version=version), "Deployment", "tessera-scheduler")
    images = [one["image"] for one in containers(scheduler) if one["name"] == "kube-scheduler"]
    assert images == [f"registry.k8s.io/kube-scheduler:{tag}"]


@pytest.mark.parametrize("version", ["v1.29.9", "v1.29.3-eks-adc7111", "v1.18.0"])
def test_a_cluster_that_is_too_old_is_refused(helm: Helm, version: str) -> None:
    done = helm("template", "tessera", str(CHART), "--kube-version", version)
    assert done.returncode != 0
    assert "1.30" in done.stderr


def test_images_come_from_two_values(render: Render) -> None:
    digest = "sha256:" + "a" * 64
    ours = {"repository": "registry.example:5000/tools/tessera", "digest": digest}
    theirs = {"repository": "registry.example:5000/kube-scheduler", "tag": "v1.36.9"}
    objects = render({"image": ours, "scheduler": {"kubeScheduler": {"image": theirs}}})
    found = {one["image"] for workload in workloads(objects) for one in containers(workload)}
    assert found == {
        f"registry.example:5000/tools/tessera@{digest}",
        "registry.example:5000/kube-scheduler:v1.36.9",
    }


def test_images_are_fixed_and_may_lie_on_the_node(chart: list[Object]) -> None:
    found = [one for workload in workloads(chart) for one in containers(workload)]
    assert {one["imagePullPolicy"] for one in found} == {"IfNotPresent"}
    assert not [one["image"] for one in found if one["image"].endswith(":latest") or ":" not in one["image"]]


def test_every_container_is_confined(chart: list[Object]) -> None:
    for workload in workloads(chart):
        for one in containers(workload):
            security = one["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert one["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in one["resources"]["limits"]
            assert "livenessProbe" in one


def test_every_pod_but_the_agents_is_nobody(chart: list[Object]) -> None:
    for workload in workloads(chart):
        spec = workload["spec"]["template"]["spec"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["priorityClassName"].startswith("system-")
        if workload["kind"] == "DaemonSet":
            continue
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert not [one for one in spec.get("volumes", ()) if "hostPath" in one]
        assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()


def test_the_agent_has_what_it_needs_and_no_more(chart: list[Object]) -> None:
    spec = named(chart, "DaemonSet", "tessera-agent")["spec"]["template"]["spec"]
    (agent,) = containers(named(chart, "DaemonSet", "tessera-agent"))
    assert spec["hostPID"] is True
    assert "hostNetwork" not in spec
    assert "privileged" not in agent["securityContext"]
    paths = {one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    assert paths == {
        "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/var/run/cdi", "/run/tessera",
        "/var/lib/tessera",
    }  # fmt: skip
    # The runtime and the kubelet read these paths on the node: they are the same inside.
    mounts = {one["name"]: one["mountPath"] for one in agent["volumeMounts"]}
    assert all(mounts[one["name"]] == one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one)


def test_privileged_is_a_choice(render: Render) -> None:
    objects = render({"agent": {"privileged": True, "driverRoot": "/usr/lib/x86_64-linux-gnu"}})
    (agent,) = containers(named(objects, "DaemonSet", "tessera-agent"))
    assert agent["securityContext"]["privileged"] is True
    assert {"name": "LD_LIBRARY_PATH", "value": "/run/driver"} in agent["env"]
    assert {"name": "driver", "mountPath": "/run/driver", "readOnly": True} in agent["volumeMounts"]


def test_a_table_of_fault_codes_reaches_the_agents_and_restarts_them(render: Render, chart: list[Object]) -> None:
    def agent_of(remedy: str) -> tuple[Object, Object]:
        table = {"94": {"class": "fatal", "remedy": remedy}}
        objects = render({"agent": {"xidPolicy": table}})
        return named(objects, "ConfigMap", "tessera-agent"), named(objects, "DaemonSet", "tessera-agent")

    config, agent = agent_of("drain it")
    (row,) = [r for r in overridden(XIDS, UNKNOWN, config["data"]["xids.json"].encode(), "test") if r.code == 94]
    assert (row.kind, row.remedy) == (FaultClass.FATAL, "drain it")
    (container,) = containers(agent)
    (path,) = [word.partition("=")[2] for word in container["args"] if word.startswith("--xid-policy=")]
    assert {"name": "config", "mountPath": path.rpartition("/")[0], "readOnly": True} in container["volumeMounts"]
    assert path.rpartition("/")[2] in config["data"]
    _, other = agent_of("leave it")
    assert agent["spec"]["template"]["metadata"] != other["spec"]["template"]["metadata"]
    assert not [o for o in chart if (o["kind"], o["metadata"]["name"]) == ("ConfigMap", "tessera-agent")]


def test_the_policies_of_placement_are_those_of_the_scheduler(render: Render) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = schema["properties"]["scheduler"]["properties"]["policy"]["enum"]
    assert sorted(known) == sorted(POLICIES)
    objects = render({"scheduler": {"policy": "spread"}})
    (ours,) = [
        c for c in containers(named(objects, "Deployment", "tessera-scheduler")) if c["name"] == "scheduler"
    ]
    assert "--policy=spread" in ours["args"]


@pytest.mark.parametrize(
    ("kind", "verb"), [("Deployment", "webhook"), ("Deployment", "scheduler"), ("DaemonSet", "agent")]
)
def test_arguments_are_options_of_the_verb(chart: list[Object], kind: str, verb: str) -> None:
    if not (ROOT / f"src/tessera/cli/{verb}.py").exists():
        pytest.skip(f"tessera {verb} is not there yet")
    command = importlib.import_module(f"tessera.cli.{verb}").command
    (container,) = [one for one in containers(named(chart, kind, f"tessera-{verb}")) if one["name"] == verb]
    first, *given = container["args"]
    assert first == verb
    # With its own settings: click remembers a command's help option by the first context that it saw.
    context = click.Context(command, **command.context_settings)
    words = [word.replace("$(NODE_NAME)", "node-1").replace("$(POD_NAME)", "pod-1") for word in given]
    command.make_parser(context).parse_args(list(words))  # raises for what the verb does not know
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words} <= known


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "NetworkPolicy"])
def test_selectors_find_pods_of_one_workload(chart: list[Object], kind: str) -> None:
    objects = [one for one in chart if one["kind"] == kind]
    assert objects
    for one in objects:
        spec = one["spec"]
        selector = (
            spec["selector"] if kind == "Service" else spec.get("selector", spec.get("podSelector"))["matchLabels"]
        )
        found = [w for w in workloads(chart) if matches(selector, w["spec"]["template"]["metadata"]["labels"])]
        assert [w["metadata"]["name"] for w in found] == [one["metadata"]["name"]]


def test_service_ports_are_ports_of_the_pods(chart: list[Object]) -> None:
    for service in (one for one in chart if one["kind"] == "Service"):
        (workload,) = [w for w in workloads(chart) if w["metadata"]["name"] == service["metadata"]["name"]]
        ports = {port["name"] for one in containers(workload) for port in one.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_replicas_stand_apart_and_leave_one_by_one(chart: list[Object]) -> None:
    for name in ("tessera-webhook", "tessera-scheduler"):
        deployment = named(chart, "Deployment", name)
        assert deployment["spec"]["replicas"] == 2
        assert "podAntiAffinity" in deployment["spec"]["template"]["spec"]["affinity"]
        assert named(chart, "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1


def scheduler_config(objects: list[Object]) -> Any:
    return yaml.safe_load(named(objects, "ConfigMap", "tessera-scheduler")["data"]["config.yaml"])


def test_both_schedulers_speak_of_the_same_lease(render: Render) -> None:
    objects = render(namespace="elsewhere")
    election = scheduler_config(objects)["leaderElection"]
    (extender,) = [
        c for c in containers(named(objects, "Deployment", "tessera-scheduler")) if c["name"] == "scheduler"
    ]
    assert election["leaderElect"] is True
    assert f"--lease={election['resourceNamespace']}/{election['resourceName']}" in extender["args"]
    assert "--lease=elsewhere/tessera-scheduler" in extender["args"]
    rules = named(objects, "Role", "tessera-scheduler")["rules"]
    assert {tuple(rule.get("resourceNames", ())): set(rule["verbs"]) for rule in rules} == {
        (): {"create"},
        ("tessera-scheduler",): {"get", "list", "watch", "update"},
        ("tessera-wake",): {"patch"},
    }


def test_kube_schedulers_configuration_is_that_of_the_scheduler_command(render: Render) -> None:
    values = {"scheduler": {"name": "shares", "kubeScheduler": {"qps": 77}}}
    wanted = configuration(Settings(("shares",), lease="elsewhere/tessera-scheduler", qps=77))
    assert scheduler_config(render(values, namespace="elsewhere")) == wanted


def test_kube_scheduler_asks_the_container_beside_it(chart: list[Object]) -> None:
    (extender,) = scheduler_config(chart)["extenders"]
    (ours,) = [c for c in containers(named(chart, "Deployment", "tessera-scheduler")) if c["name"] == "scheduler"]
    (bind,) = [word.partition("=")[2] for word in ours["args"] if word.startswith("--bind=")]
    assert bind.startswith("127.0.0.1:")
    assert extender["urlPrefix"] == f"http://{bind}"


def test_the_schedulers_name_is_one_value(render: Render) -> None:
    objects = render({"scheduler": {"name": "default-scheduler"}})
    assert [p["schedulerName"] for p in scheduler_config(objects)["profiles"]] == ["default-scheduler"]
    assert (
        "--scheduler-name=default-scheduler"
        in containers(named(objects, "Deployment", "tessera-webhook"))[0]["args"]
    )


def test_a_changed_configuration_restarts_the_scheduler(render: Render) -> None:
    def mark(objects: list[Object]) -> str:
        template = named(objects, "Deployment", "tessera-scheduler")["spec"]["template"]
        return str(template["metadata"]["annotations"]["tessera.dev/config"])

    assert mark(render()) != mark(render({"scheduler": {"kubeScheduler": {"qps": 7}}}))


def test_admission_objects_are_those_of_the_webhook_command(render: Render) -> None:
    excluded = ("kube-system", "monitoring")
    objects = render({"webhook": {"excludedNamespaces": list(excluded)}}, namespace="gpu-sharing")
    for wanted in webhook_objects(Target("gpu-sharing", excluded=excluded)):
        found = named(objects, wanted["kind"], wanted["metadata"]["name"])
        del found["metadata"]["labels"]
        assert found == wanted


def test_our_own_namespace_never_waits_for_the_webhook(render: Render) -> None:
    objects = render(namespace="gpu-sharing")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in named(objects, kind, "tessera-webhook")["webhooks"]:
            (expression,) = webhook["namespaceSelector"]["matchExpressions"]
            assert expression == {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": ["gpu-sharing", "kube-system"],
            }


def test_shares_are_never_admitted_without_the_webhook(chart: list[Object]) -> None:
    (webhook,) = named(chart, "MutatingWebhookConfiguration", "tessera-webhook")["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["matchConditions"]
    assert named(chart, "ValidatingAdmissionPolicy", "tessera-pod-records")["spec"]["failurePolicy"] == "Fail"
    assert named(chart, "ValidatingAdmissionPolicy", "tessera-agent-own-node")["spec"]["failurePolicy"] == "Fail"


def test_roles_name_no_wildcard(chart: list[Object]) -> None:
    roles = [one for one in chart if one["kind"] in ("Role", "ClusterRole")]
    words = [
        word
        for role in roles
        for rule in role["rules"]
        for key in ("apiGroups", "resources", "verbs")
        for word in rule.get(key, ())
    ]
    assert roles
    assert "*" not in words


def test_every_account_is_bound_and_every_pod_has_one(chart: list[Object]) -> None:
    accounts = {one["metadata"]["name"] for one in chart if one["kind"] == "ServiceAccount"}
    used = {one["spec"]["template"]["spec"]["serviceAccountName"] for one in workloads(chart)}
    bindings = [one for one in chart if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert accounts == used == {subject["name"] for one in bindings for subject in one["subjects"]}


def test_a_monitor_only_where_it_is_wanted(render: Render, chart: list[Object]) -> None:
    assert not [one for one in chart if one["kind"] == "ServiceMonitor"]
    wanted = {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}}
    monitor = named(render(wanted), "ServiceMonitor", "tessera")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    services = [one for one in chart if one["kind"] == "Service"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert len(services) == 3
    assert all(matches(selector, one["metadata"]["labels"]) for one in services)
    assert all("metrics" in {port["name"] for port in one["spec"]["ports"]} for one in services)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"imagee": {}}, "imagee"),
    ({"webhook": {"replica": 3}}, "replica"),
    ({"webhook": {"replicas": 0}}, "replicas"),
    ({"webhook": {"privileged": "allow"}}, "privileged"),
    ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ({"image": {"digest": "sha256:short"}}, "digest"),
    ({"agent": {"resources": {"limits": {"memory": "lots"}}}}, "memory"),
    ({"agent": {"extraArgs": ["simulate"]}}, "extraArgs"),
    ({"agent": {"escapes": "ignore"}}, "escapes"),
    ({"agent": {"tier": "strongest"}}, "tier"),
    ({"agent": {"xidPolicy": {"94": {"class": "deadly"}}}}, "class"),
    ({"agent": {"xidPolicy": {"XID 94": {"class": "fatal"}}}}, "XID 94"),
    ({"scheduler": {"policy": "best"}}, "policy"),
    ({"agent": {"driverRoot": "usr/lib"}}, "driverRoot"),
    ({"networkPolicy": {"apiServerPorts": []}}, "apiServerPorts"),
    ({"scheduler": {"name": "Tessera"}}, "name"),
    ({"logLevel": "verbose"}, "logLevel"),
]


@pytest.mark.parametrize(("values", "told"), WRONG, ids=[told for _, told in WRONG])
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: dict[str, Any], told: str) -> None:
    done = helm(
        "template",
        "tessera",
        str(CHART),
        "--kube-version",
        "v1.37.2",
        "--values",
        "-",
        stdin=yaml.safe_dump(values),
    )
    assert done.returncode != 0
    assert told in done.stderr


def test_every_value_has_a_schema() -> None:
    def unknown(values: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
        known = schema.get("properties", {})
        lost = [f"{path}{key}" for key in values if key not in known]
        closed = [] if schema.get("additionalProperties") is False or not known else [f"{path} takes anything"]
        inner = [
            name
            for key, value in values.items()
            if isinstance(value, dict) and "properties" in known.get(key, {})
            for name in unknown(value, known[key], f"{path}{key}.")
        ]
        return lost + closed + inner

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert unknown(values, json.loads((CHART / "values.schema.json").read_text()), "") == []


def test_the_notes_tell_what_to_do_next(helm: Helm) -> None:
    done = helm("install", "tessera", str(CHART), "--dry-run=client", "--namespace", "gpu-sharing")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "kubectl -n gpu-sharing rollout status deployment/tessera-webhook" in notes
    assert "kubectl get gpunodes" in notes
    assert "agent.runtimeClassName" in notes


def test_the_chart_and_the_package_are_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
    assert Path(CHART / "crds/gpunodes.yaml").exists()
