"""The least of a JSON client for a harness: one connection a thread, no types, no retries."""

import http.client
import json
import select
import ssl
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster.engine.certificates import KeyPair

MERGE = "application/merge-patch+json"


class ApiFailure(Exception):
    """The server refused; ``code`` is the HTTP status, ``body`` its answer."""

    def __init__(self, request: str, code: int, body: bytes) -> None:
        self.code = code
        self.body = body
        super().__init__(f"{request}: {code} {body.decode('utf-8', 'replace')[:600]}")


class Api:
    """An API server as one user sees it; ``user`` is a client certificate, a bearer token or nobody."""

    def __init__(self, server: str, authority: Path | None, user: KeyPair | str | None) -> None:
        self.server = server
        address = urlsplit(server)
        self._host, self._port = address.hostname or "", address.port or 0
        self._headers = {"Authorization": f"Bearer {user}"} if isinstance(user, str) else {}
        self._tls = tls_context(authority, user if isinstance(user, KeyPair) else None)
        self._plain = address.scheme == "http"
        self._local = threading.local()

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None and _was_ended(connection):
            self.close()
            connection = None
        if connection is None:
            connection = (
                http.client.HTTPConnection(self._host, self._port, timeout=30)
                if self._plain
                else http.client.HTTPSConnection(self._host, self._port, timeout=30, context=self._tls)
            )
            self._local.connection = connection
        return connection

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accepts: Collection[int] = (),
        media: str = "application/json",
    ) -> Any:
        """The answer, decoded. Raises :class:`ApiFailure` for a status that is neither 2xx nor accepted, and
        :class:`OSError` where the server is away.
        """
        text = None if body is None else json.dumps(body)
        headers = {**self._headers, "Content-Type": media, "Accept": "application/json"}
        try:
            connection = self._connection()
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            payload = answer.read()
        except (OSError, http.client.HTTPException) as lost:
            self.close()  # a connection that failed once is of no more use
            raise ConnectionError(f"{method} {self.server}{path}: {lost}") from lost
        if not (200 <= answer.status < 300 or answer.status in accepts):
            raise ApiFailure(f"{method} {path}", answer.status, payload)
        return json.loads(payload) if payload[:1] in (b"{", b"[") else payload.decode()

    def get(self, path: str) -> Any:
        """One object or a list."""
        return self.call("GET", path)

    def post(self, path: str, body: Any) -> Any:
        """A new object."""
        return self.call("POST", path, body)

    def merge(self, path: str, body: Any) -> Any:
        """An object after a merge patch."""
        return self.call("PATCH", path, body, media=MERGE)

    def delete(self, path: str) -> None:
        """Delete one object or all of a list; what is gone already is no failure."""
        self.call("DELETE", path, accepts=(404,))

    def answers(self, path: str) -> bool:
        """Whether the server answers this with a success now."""
        try:
            self.call("GET", path)
        except (OSError, ApiFailure):
            return False
        return True


def _was_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server ended an idle connection (it does after a while): there is something to read, its end."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])


def tls_context(authority: Path | None, user: KeyPair | None = None) -> ssl.SSLContext:
    """A client's context that trusts one authority; with none it trusts whoever answers (local health checks)."""
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if user is not None:
        context.load_cert_chain(user.certificate, user.key)
    return context
