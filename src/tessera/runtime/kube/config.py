"""Where the API server is and who we are to it: kubeconfig files and the account that a pod is given.

Secrets stand in fields that ``repr`` leaves out, and no message quotes one. What is not read: proxies, user names
with passwords and the auth providers that Kubernetes itself has removed; each is refused with a remedy.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tessera.core.errors import InputErrors, Problem

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its account. Source: Kubernetes, "Accessing the API from a Pod"."""


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A command that prints credentials (``ExecCredential`` of client.authentication.k8s.io)."""

    command: str
    args: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    api_version: str
    cluster_info: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """One cluster and one user. ``source`` names both for messages; certificates and keys are PEM."""

    source: str
    server: str
    ca: bytes | None = None
    verify: bool = True
    server_name: str = ""
    namespace: str = "default"
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    plugin: ExecPlugin | None = None


def load_config(
    path: Path | None, environ: Mapping[str, str], *, context: str = "", account: Path = ACCOUNT
) -> ClusterConfig:
    """The configuration to use: ``path``; else a pod's account; else ``$KUBECONFIG``; else ``~/.kube/config``.

    Raises :class:`InputErrors` naming file, object, field and remedy.
    """
    if path is not None:
        return read_kubeconfig([path], context=context)
    if environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").exists():
        return in_cluster(environ, account)
    if listed := environ.get("KUBECONFIG", ""):
        return read_kubeconfig([Path(part) for part in listed.split(":") if part], context=context)
    default = Path(environ.get("HOME", "/")) / ".kube/config"
    if default.exists():
        return read_kubeconfig([default], context=context)
    raise _wrong(
        str(default),
        "",
        "",
        "no cluster is configured: there is no such file, $KUBECONFIG is empty, and this is no pod",
        "name a kubeconfig with --kubeconfig or in $KUBECONFIG",
    )


def in_cluster(environ: Mapping[str, str], account: Path = ACCOUNT) -> ClusterConfig:
    """The account that Kubernetes mounts into every pod; its token is read again whenever the file changes."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    namespace = account / "namespace"
    return ClusterConfig(
        source=str(account),
        server=f"https://{host}:{port}",
        ca=_file(account / "ca.crt", "serviceaccount", "ca.crt"),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "default",
        token_file=account / "token",
    )


def read_kubeconfig(paths: list[Path], *, context: str = "") -> ClusterConfig:
    """The named (or current) context of these files together; of entries with one name the first counts."""
    merged = _Merged.of(paths)
    name = context or merged.current
    if not name:
        raise _wrong(merged.source, "", "current-context", "is not set", "name a context, or set current-context")
    chosen = merged.entry("contexts", "context", name, f"context/{name}")
    cluster_name, user_name = str(chosen.body.get("cluster", "")), str(chosen.body.get("user", ""))
    cluster = merged.entry("clusters", "cluster", cluster_name, f"context/{name}")
    user = (
        merged.entry("users", "user", user_name, f"context/{name}") if user_name else _Entry(cluster.file, "", {})
    )
    _refuse_unread(cluster, user)
    server = str(cluster.body.get("server", ""))
    if not server.startswith(("https://", "http://")):
        raise cluster.wrong("server", "is not an http(s) address", "write https://HOST:PORT", server)
    return ClusterConfig(
        source=f"{merged.source} (context {name})",
        server=server.rstrip("/"),
        ca=cluster.pem("certificate-authority"),
        verify=not cluster.body.get("insecure-skip-tls-verify", False),
        server_name=str(cluster.body.get("tls-server-name", "")),
        namespace=str(chosen.body.get("namespace") or "default"),
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        token="" if user.body.get("tokenFile") else str(user.body.get("token", "")),
        token_file=user.file.parent / str(user.body["tokenFile"]) if user.body.get("tokenFile") else None,
        plugin=_plugin(user),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cluster, user or context with the file that it stands in."""

    file: Path
    label: str
    body: Mapping[str, Any]

    def pem(self, name: str) -> bytes | None:
        """The bytes of ``NAME-data`` (base64), else of the file that ``NAME`` names beside the kubeconfig."""
        data = self.body.get(f"{name}-data")
        if data:
            try:
                return base64.b64decode(str(data), validate=True)
            except binascii.Error:
                raise self.wrong(f"{name}-data", "is not base64", "encode the PEM text again") from None
        path = self.body.get(name)
        return _file(self.file.parent / str(path), f"{self.file}: {self.label}", name) if path else None

    def wrong(self, name: str, message: str, remedy: str, value: str = "") -> InputErrors:
        """What is wrong with a field of this entry."""
        return _wrong(str(self.file), self.label, name, message, remedy, value)


@dataclass(frozen=True, slots=True)
class _Merged:
    """Several kubeconfig files read as one."""

    source: str
    files: tuple[tuple[Path, Mapping[str, Any]], ...]

    @classmethod
    def of(cls, paths: list[Path]) -> "_Merged":
        """The files that exist; none of several may exist, but one that is named alone must."""
        present = [path for path in paths if path.exists()]
        source = ":".join(map(str, paths))
        if not present:
            raise _wrong(source, "", "", "there is no such file", "name a kubeconfig that exists")
        return cls(source, tuple((path, _document(path)) for path in present))

    @property
    def current(self) -> str:
        """The first current-context that is set."""
        return next((str(doc["current-context"]) for _, doc in self.files if doc.get("current-context")), "")

    def entry(self, section: str, key: str, name: str, asked_by: str) -> _Entry:
        """The entry of a section with this name."""
        for file, document in self.files:
            for item in _items(file, document, section):
                if item.get("name") == name and isinstance(item.get(key), Mapping):
                    return _Entry(file, f"{key}/{name}", item[key])
        known = sorted(str(i.get("name")) for f, d in self.files for i in _items(f, d, section))
        raise _wrong(
            self.source, asked_by, section, f"has no {key} of this name", f"there are: {', '.join(known)}", name
        )


def _document(path: Path) -> Mapping[str, Any]:
    text = _file(path, str(path), "")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = _yaml(path, text)
    if not isinstance(document, Mapping):
        raise _wrong(str(path), "", "", "is not a kubeconfig", "write it again with kubectl config")
    return document


def _yaml(path: Path, text: bytes) -> Any:
    """A document that is not JSON. A process with a pod's account, or with JSON, never loads the reader: 1 MB."""
    import yaml  # noqa: PLC0415 - see above

    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else ""
        raise _wrong(str(path), "", where, "is not YAML", "write it again with kubectl config") from None


def _items(file: Path, document: Mapping[str, Any], section: str) -> Iterator[Mapping[str, Any]]:
    listed = document.get(section) or []
    if not isinstance(listed, list):
        raise _wrong(str(file), "", section, "is not a list", "write it again with kubectl config")
    return (item for item in listed if isinstance(item, Mapping))


def _refuse_unread(cluster: _Entry, user: _Entry) -> None:
    """What we would have to ignore is refused: a connection that ignores it would be another one."""
    if cluster.body.get("proxy-url"):
        raise cluster.wrong("proxy-url", "proxies are not supported", "name an address that is reached directly")
    for name in ("username", "auth-provider"):
        if user.body.get(name):
            raise user.wrong(name, "is not supported", "use a token, a client certificate or an exec plugin")
    if bool(user.body.get("client-certificate-data") or user.body.get("client-certificate")) != bool(
        user.body.get("client-key-data") or user.body.get("client-key")
    ):
        raise user.wrong("client-certificate", "a certificate and its key go together", "name both or none")


def _plugin(user: _Entry) -> ExecPlugin | None:
    spec = user.body.get("exec")
    if spec is None:
        return None
    if not isinstance(spec, Mapping) or not spec.get("command"):
        raise user.wrong("exec.command", "is not set", "name the command that prints the credentials")
    if spec.get("interactiveMode") == "Always":
        raise user.wrong("exec.interactiveMode", "nobody can be asked", "use a plugin that needs nobody", "Always")
    command = str(spec["command"])
    if "/" in command and not command.startswith("/"):
        command = str(user.file.parent / command)  # relative to the kubeconfig, as kubectl has it
    return ExecPlugin(
        command=command,
        args=tuple(map(str, spec.get("args") or ())),
        environ={str(e["name"]): str(e["value"]) for e in spec.get("env") or () if "name" in e and "value" in e},
        api_version=str(spec.get("apiVersion", "client.authentication.k8s.io/v1")),
        cluster_info=bool(spec.get("provideClusterInfo", False)),
        hint=str(spec.get("installHint") or ""),
    )


def _file(path: Path, label: str, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise _wrong(
            label, "", name, f"cannot be read: {reason}", "mend the path or its permissions", str(path)
        ) from None


def _wrong(source: str, entry: str, name: str, message: str, remedy: str, value: str = "") -> InputErrors:
    return InputErrors([Problem(source, entry, name, value, message, remedy)])
