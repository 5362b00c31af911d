"""Tokens that are read again, plugins that are asked again, and what is said where they give nothing."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from tessera.core.errors import UnavailableError
from tessera.runtime.clock import ManualClock
from tessera.runtime.kube.config import ClusterConfig, ExecPlugin
from tessera.runtime.kube.credentials import Credentials, Identity, tls_context
from tessera.runtime.tls import new_authority, new_leaf

HIDDEN = "s3cr3t-t0k3n"


def a_config(**fields) -> ClusterConfig:
    return ClusterConfig("test", "https://h", **fields)


def a_plugin(folder: Path, script: str, **fields) -> ExecPlugin:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return ExecPlugin(str(path), (), {}, "client.authentication.k8s.io/v1", **fields)


async def who(credentials: Credentials) -> str:
    return (await credentials.current()).token


def test_a_token_file_is_read_again_when_it_changes_and_kept_while_it_is_gone(tmp_path):
    path = tmp_path / "token"

    def replace(token: str) -> None:
        (tmp_path / "new").write_text(token)
        (tmp_path / "new").replace(path)

    async def law() -> None:
        replace("one\n")
        credentials = Credentials(a_config(token_file=path))
        assert await who(credentials) == "one"
        replace("two\n")
        assert await who(credentials) == "two"
        path.unlink()
        assert await who(credentials) == "two"

    asyncio.run(law())


def test_a_token_file_that_was_never_there_is_named(tmp_path):
    with pytest.raises(UnavailableError, match=str(tmp_path / "token")):
        asyncio.run(Credentials(a_config(token_file=tmp_path / "token")).current())


def test_a_plugin_is_asked_again_a_minute_before_its_credential_ends(tmp_path):
    counter = tmp_path / "counter"
    # 1,800,000,000 is 2027-01-15T08:00:00Z: the credential lives for ten minutes
    answer = '{"status":{"token":"t%s","expirationTimestamp":"2027-01-15T08:10:00Z"}}'
    script = f"echo x >> {counter}; n=$(wc -l < {counter}); printf '{answer}' \"$n\""
    clock = ManualClock(wall=1_800_000_000.0)

    async def law() -> None:
        credentials = Credentials(a_config(plugin=a_plugin(tmp_path, script)), clock.wall)
        assert await who(credentials) == "t1"
        clock.jump(539)
        assert await who(credentials) == "t1"
        clock.jump(2)
        assert await who(credentials) == "t2"

    asyncio.run(law())


def test_many_callers_ask_a_plugin_once_and_again_when_the_server_does_not_know_us(tmp_path):
    counter = tmp_path / "counter"
    script = f'echo x >> {counter}; printf \'{{"status":{{"token":"t"}}}}\''

    async def law() -> None:
        credentials = Credentials(a_config(plugin=a_plugin(tmp_path, script)))
        await asyncio.gather(*(credentials.current() for _ in range(5)))
        assert counter.read_text() == "x\n"
        assert credentials.forget()
        await credentials.current()
        assert counter.read_text() == "x\nx\n"

    asyncio.run(law())


def test_a_plugin_is_told_the_protocol_and_where_it_wants_the_cluster(tmp_path):
    script = f'printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; printf \'{{"status":{{"token":"t"}}}}\''
    plugin = a_plugin(tmp_path, script, cluster_info=True)
    asyncio.run(Credentials(a_config(plugin=plugin)).current())
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == "client.authentication.k8s.io/v1"
    assert info["spec"] == {
        "interactive": False,
        "cluster": {"server": "https://h", "insecure-skip-tls-verify": False},
    }


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"echo {HIDDEN}; exit 3", "ended with code 3"),
        (f"echo {HIDDEN}", "printed no ExecCredential"),
        ("printf '{\"status\":{}}'", "neither a token nor a certificate"),
    ],
)
def test_a_plugin_that_gives_nothing_is_named_without_its_output(tmp_path, script, words):
    with pytest.raises(UnavailableError, match=words) as wrong:
        asyncio.run(Credentials(a_config(plugin=a_plugin(tmp_path, script, hint="install it"))).current())
    assert HIDDEN not in str(wrong.value)
    assert wrong.value.remedy == "install it"


def test_a_plugin_that_is_not_there_is_named(tmp_path):
    plugin = ExecPlugin(str(tmp_path / "absent"), (), {}, "v1")
    with pytest.raises(UnavailableError, match="No such file"):
        asyncio.run(Credentials(a_config(plugin=plugin)).current())


def test_a_static_token_cannot_be_renewed():
    assert not Credentials(a_config(token=HIDDEN)).forget()


def test_a_pair_is_loaded_and_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    authority = new_authority(86_400, 1_800_000_000.0)
    leaf = new_leaf(authority, ["me"], 86_400, 1_800_000_000.0)
    context = tls_context(a_config(ca=authority.certificate), Identity("", leaf.certificate, leaf.key))
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert list(tmp_path.iterdir()) == []


def test_without_verification_nothing_is_checked_and_plain_http_has_no_context():
    context = tls_context(a_config(verify=False), Identity())
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert tls_context(ClusterConfig("test", "http://h"), Identity()) is None


@pytest.mark.parametrize("ca", [b"no PEM", b"\xff"])
def test_a_certificate_that_is_none_is_said(ca):
    with pytest.raises(UnavailableError, match="no PEM"):
        tls_context(a_config(ca=ca), Identity())
