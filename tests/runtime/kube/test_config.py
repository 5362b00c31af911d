"""Where the configuration comes from, what it becomes, and what is said where it is wrong."""

import base64
from pathlib import Path

import pytest
import yaml

from tessera.core.errors import InputErrors
from tessera.runtime.kube.config import ClusterConfig, load_config, read_kubeconfig

HIDDEN = "s3cr3t-t0k3n"


def a_kubeconfig(folder: Path, user=None, cluster=None, name: str = "config", **more) -> Path:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://h:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": HIDDEN} if user is None else user}],
        **more,
    }
    path = folder / name
    path.write_text(yaml.safe_dump(document))
    return path


def the_problem(path: Path, **options):
    with pytest.raises(InputErrors) as wrong:
        read_kubeconfig([path], **options)
    [problem] = wrong.value.problems
    assert problem.remedy
    assert HIDDEN not in str(problem)
    return problem


def test_the_current_context_names_server_user_and_namespace(tmp_path):
    config = read_kubeconfig([a_kubeconfig(tmp_path)])
    assert (config.server, config.namespace, config.token) == ("https://h:6443", "team", HIDDEN)


def test_secrets_are_not_shown(tmp_path):
    user = {"token": HIDDEN, "client-key-data": _b64(b"KEY"), "client-certificate-data": _b64(b"CERT")}
    shown = repr(read_kubeconfig([a_kubeconfig(tmp_path, user)]))
    assert HIDDEN not in shown
    assert "KEY" not in shown


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_certificates_come_from_data_or_from_files_beside_the_kubeconfig(tmp_path):
    (tmp_path / "ca.pem").write_bytes(b"CA")
    user = {"client-certificate-data": _b64(b"CERT"), "client-key-data": _b64(b"KEY")}
    config = read_kubeconfig([a_kubeconfig(tmp_path, user, {"certificate-authority": "ca.pem"})])
    assert (config.ca, config.certificate, config.key) == (b"CA", b"CERT", b"KEY")


def test_a_token_file_wins_over_a_token(tmp_path):
    config = read_kubeconfig([a_kubeconfig(tmp_path, {"token": HIDDEN, "tokenFile": "t"})])
    assert (config.token, config.token_file) == ("", tmp_path / "t")


def test_of_several_files_the_first_that_has_an_entry_counts(tmp_path):
    first = tmp_path / "first"
    first.write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"token": "other"}}]}))
    config = read_kubeconfig([tmp_path / "absent", first, a_kubeconfig(tmp_path)])
    assert (config.token, config.server) == ("other", "https://h:6443")


def test_an_exec_plugin_is_read_with_its_path_beside_the_kubeconfig(tmp_path):
    spec = {"command": "./login", "args": ["-x"], "env": [{"name": "A", "value": "b"}], "apiVersion": "v"}
    plugin = read_kubeconfig([a_kubeconfig(tmp_path, {"exec": spec})]).plugin
    assert plugin is not None
    assert (plugin.command, plugin.args, dict(plugin.environ)) == (str(tmp_path / "login"), ("-x",), {"A": "b"})


@pytest.mark.parametrize(
    ("user", "cluster", "field"),
    [
        ({"client-certificate-data": "!"}, {}, "client-certificate"),
        ({"client-certificate-data": "!", "client-key-data": "!"}, {}, "client-certificate-data"),
        ({"client-certificate": "absent", "client-key": "absent"}, {}, "client-certificate"),
        ({"username": "me", "password": HIDDEN}, {}, "username"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
        ({"exec": {"command": ""}}, {}, "exec.command"),
        ({"exec": {"command": "x", "interactiveMode": "Always"}}, {}, "exec.interactiveMode"),
        (None, {"server": "h:6443"}, "server"),
        (None, {"proxy-url": "http://p"}, "proxy-url"),
        (None, {"certificate-authority": "absent"}, "certificate-authority"),
    ],
)
def test_what_is_wrong_is_named_with_its_field(tmp_path, user, cluster, field):
    assert the_problem(a_kubeconfig(tmp_path, user, cluster)).field == field


def test_an_unknown_context_names_those_that_there_are(tmp_path):
    problem = the_problem(a_kubeconfig(tmp_path), context="there")
    assert (problem.value, problem.remedy) == ("there", "there are: here")


@pytest.mark.parametrize("text", ["{", "[1]", "contexts: 7\ncurrent-context: x"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    assert str(path) in the_problem(path).source


def test_a_missing_file_is_refused(tmp_path):
    assert "no such file" in the_problem(tmp_path / "absent").message


def an_account(folder: Path) -> Path:
    (folder / "token").write_text("t1\n")
    (folder / "ca.crt").write_bytes(b"CA")
    (folder / "namespace").write_text("system")
    return folder


def test_a_pod_uses_its_account(tmp_path):
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = load_config(None, environ, account=an_account(tmp_path))
    assert config == ClusterConfig(
        source=str(tmp_path),
        server="https://[fd00::1]:443",
        ca=b"CA",
        namespace="system",
        token_file=tmp_path / "token",
    )


def test_a_path_wins_over_the_account_and_the_account_over_the_environment(tmp_path):
    (tmp_path / "account").mkdir()
    account = an_account(tmp_path / "account")
    path = a_kubeconfig(tmp_path)
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": str(path)}
    assert load_config(path, pod, account=account).server == "https://h:6443"
    assert load_config(None, pod, account=account).server == "https://10.0.0.1:443"
    assert load_config(None, {"KUBECONFIG": str(path)}, account=account).server == "https://h:6443"


def test_without_any_the_home_directory_is_looked_at_and_then_it_is_said(tmp_path):
    environ = {"HOME": str(tmp_path)}
    with pytest.raises(InputErrors, match="--kubeconfig"):
        load_config(None, environ, account=tmp_path)
    (tmp_path / ".kube").mkdir()
    a_kubeconfig(tmp_path / ".kube")
    assert load_config(None, environ, account=tmp_path).server == "https://h:6443"
