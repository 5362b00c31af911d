"""Who we are to the API server, right now: tokens that are read again, exec plugins that are asked again.

A token file is read again when it changes (the kubelet replaces it about every hour). A plugin is asked again a
minute before what it gave expires, and once when the server no longer knows us.
"""

import asyncio
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tessera.core.errors import UnavailableError
from tessera.runtime.clock import SYSTEM
from tessera.runtime.kube.config import ClusterConfig, ExecPlugin

PLUGIN_SECONDS: Final = 30.0
"""How long an exec plugin may take."""

EARLY_SECONDS: Final = 60.0
"""How long before its end a credential is renewed."""


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct):
    status: _Status


@dataclass(frozen=True, slots=True)
class Identity:
    """A bearer token and a client certificate with its key (PEM), either of which may be missing."""

    token: str = ""
    certificate: bytes | None = None
    key: bytes | None = None


class Credentials:
    """The present :class:`Identity` of a configuration. ``wall`` is the time of day, for what expires."""

    def __init__(self, config: ClusterConfig, wall: Callable[[], float] = SYSTEM.wall) -> None:
        self._config = config
        self._wall = wall
        self._static = Identity(config.token, config.certificate, config.key)
        self._file_seen: tuple[int, int, int] | None = None
        self._plugin_ends: float | None = None
        self._plugin_asked = False
        self._asking = asyncio.Lock()
        self._now = self._static

    async def current(self) -> Identity:
        """Who we are. Raises :class:`UnavailableError` where a plugin or a token file gives nothing."""
        if self._config.token_file is not None:
            self._read_again(self._config.token_file)
        elif self._config.plugin is not None and self._is_due():
            async with self._asking:
                if self._is_due():
                    await self._ask(self._config.plugin)
        return self._now

    def forget(self) -> bool:
        """The server did not know us: read or ask again at the next call. Whether that can help."""
        self._file_seen, self._plugin_asked = None, False
        return self._config.token_file is not None or self._config.plugin is not None

    def _read_again(self, path: Path) -> None:
        try:
            stat = path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._file_seen:
                token = path.read_text(encoding="ascii").strip()
                self._now = Identity(token, self._static.certificate, self._static.key)
                self._file_seen = seen
        except (OSError, UnicodeDecodeError) as error:
            if not self._now.token:
                raise UnavailableError(
                    f"token file {path} cannot be read ({type(error).__name__})",
                    "mend the path or its permissions",
                ) from None
            # The last token may well be valid still; the server will say if not.

    def _is_due(self) -> bool:
        if not self._plugin_asked:
            return True
        ends = self._plugin_ends
        return ends is not None and ends - self._wall() < EARLY_SECONDS

    async def _ask(self, plugin: ExecPlugin) -> None:
        status = await run_plugin(plugin, self._config)
        self._now = Identity(
            status.token,
            status.client_certificate_data.encode() or self._static.certificate,
            status.client_key_data.encode() or self._static.key,
        )
        ends = status.expiration_timestamp
        self._plugin_ends = (
            None if ends is None else (ends if ends.tzinfo else ends.replace(tzinfo=UTC)).timestamp()
        )
        self._plugin_asked = True


async def run_plugin(plugin: ExecPlugin, config: ClusterConfig) -> _Status:
    """What the plugin printed. Raises :class:`UnavailableError` with the command, never with its output."""
    remedy = plugin.hint or f"run {plugin.command} by hand to see what it says"
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **plugin.environ, "KUBERNETES_EXEC_INFO": _exec_info(plugin, config)},
        )
    except OSError as error:
        raise UnavailableError(f"exec plugin {plugin.command}: {error.strerror}", remedy) from None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), PLUGIN_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise UnavailableError(f"exec plugin {plugin.command} took over {PLUGIN_SECONDS:.0f} s", remedy) from None
    if process.returncode != 0:
        raise UnavailableError(f"exec plugin {plugin.command} ended with code {process.returncode}", remedy)
    try:
        status = msgspec.json.decode(output, type=_ExecCredential).status
    except msgspec.MsgspecError:
        raise UnavailableError(f"exec plugin {plugin.command} printed no ExecCredential", remedy) from None
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise UnavailableError(f"exec plugin {plugin.command} gave neither a token nor a certificate", remedy)
    return status


def _exec_info(plugin: ExecPlugin, config: ClusterConfig) -> str:
    spec: dict[str, object] = {"interactive": False}
    if plugin.cluster_info:
        spec["cluster"] = {"server": config.server, "insecure-skip-tls-verify": not config.verify}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(info).decode()


def tls_context(config: ClusterConfig, identity: Identity) -> ssl.SSLContext | None:
    """The TLS side of a connection; ``None`` for plain http.

    Raises :class:`UnavailableError` where a certificate or key is not what it should be.
    """
    if config.server.startswith("http://"):
        return None
    try:
        context = ssl.create_default_context(cadata=config.ca.decode("ascii") if config.ca else None)
        if not config.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if identity.certificate and identity.key:
            _load_pair(context, identity.certificate, identity.key)
    except (ssl.SSLError, UnicodeDecodeError, ValueError):
        raise UnavailableError(
            f"{config.source}: a certificate or key is no PEM, or they do not belong together",
            "renew the kubeconfig",
        ) from None
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The ssl module reads pairs from files only: one of ours alone, for as long as the call takes."""
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name, password="")  # an encrypted key fails instead of asking
