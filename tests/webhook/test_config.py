"""What ``tessera webhook config`` prints, and the flags of the process."""

import pytest
import yaml
from click.testing import CliRunner

from tessera.cli.webhook import command
from tessera.wire.kube.webhooks import Target, webhook_objects


def printed(*flags):
    run = CliRunner().invoke(command, ["config", *flags], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return list(yaml.safe_load_all(run.output))


def test_what_is_printed_is_what_the_code_installs():
    assert printed() == list(webhook_objects(Target()))


def test_pods_of_ours_are_refused_while_nobody_answers_and_templates_are_not():
    mutating, validating, policy, binding = printed()
    (pods,) = mutating["webhooks"]
    assert (pods["failurePolicy"], pods["reinvocationPolicy"], pods["sideEffects"], pods["timeoutSeconds"]) == (
        "Fail", "IfNeeded", "None", 5,
    )  # fmt: skip
    assert pods["matchPolicy"] == "Equivalent"
    assert pods["rules"][0]["operations"] == ["CREATE"]
    assert pods["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "tessera-system"]}
    ]
    assert {w["name"]: w["failurePolicy"] for w in validating["webhooks"]} == {
        "guard.tessera.dev": "Fail",
        "templates.tessera.dev": "Ignore",
        "cronjobs.tessera.dev": "Ignore",
    }
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_every_webhook_is_asked_by_conditions_alone_and_no_certificate_is_printed():
    for obj in printed()[:2]:
        for one in obj["webhooks"]:
            assert one["matchConditions"]
            assert "caBundle" not in one["clientConfig"]


def test_a_service_or_an_address_is_called():
    by_service = printed("--namespace", "gpu", "--service", "hook")[0]["webhooks"][0]
    assert by_service["clientConfig"] == {
        "service": {"namespace": "gpu", "name": "hook", "path": "/v1/pods", "port": 443}
    }
    assert "gpu" in by_service["namespaceSelector"]["matchExpressions"][0]["values"]
    by_url = printed("--url", "https://10.0.0.7:9443/")[0]["webhooks"][0]
    assert by_url["clientConfig"] == {"url": "https://10.0.0.7:9443/v1/pods"}


def test_excluded_namespaces_are_left_alone():
    excluded = printed("--exclude-namespace", "a", "--exclude-namespace", "b")[0]["webhooks"][0]
    assert excluded["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "b", "tessera-system"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--certificate-lifetime", "10", "--authority-lifetime", "20"), "a leaf of 10.0 s needs an authority"),
        (("--privileged", "perhaps"), "'perhaps' is not one of 'refuse', 'warn'"),
        (("--bind", "nowhere"), "nowhere"),
    ],
)
def test_a_wrong_flag_is_told(flags, told):
    run = CliRunner().invoke(command, flags)
    assert run.exit_code != 0
    assert told in run.output + str(run.exception)
