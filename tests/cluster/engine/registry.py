"""An image registry on loopback that answers every name with one image.

Other people's manifests name images of the internet. On the harness's node they all come from here, so that such a
manifest runs as it stands, whatever its pull policy.
"""

import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cluster.engine.ports import LOOPBACK

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """Serves the image of an archive (:func:`~cluster.engine.images.make_image`) under every name and tag."""

    def __init__(self, archive: Path) -> None:
        self.blobs, self.manifest = _read(archive)
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.answer(self, body=True)

            def do_HEAD(self) -> None:
                registry.answer(self, body=False)

            def log_message(self, *_: Any) -> None:
                """Nothing: pulls are in containerd's log."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        """One call of the distribution API: the base, a manifest by tag or digest, or a blob."""
        path = request.path.partition("?")[0]
        digest = path.rpartition("/")[2]
        if path == "/v2/":
            content, media = b"{}", "application/json"
        elif "/manifests/" in path and (not digest.startswith("sha256:") or digest == self.manifest):
            content, media, digest = self.blobs[self.manifest], _MANIFEST, self.manifest
        elif "/blobs/" in path and digest in self.blobs:
            content, media = self.blobs[digest], "application/octet-stream"
        else:
            request.send_error(404)
            return
        request.send_response(200)
        request.send_header("Content-Type", media)
        request.send_header("Content-Length", str(len(content)))
        request.send_header("Docker-Content-Digest", digest)
        request.end_headers()
        if body:
            request.wfile.write(content)


def _read(archive: Path) -> tuple[dict[str, bytes], str]:
    """Every blob of an image layout by digest, and the digest of its manifest."""
    blobs: dict[str, bytes] = {}
    with tarfile.open(archive) as layout:
        for entry in layout.getmembers():
            file = layout.extractfile(entry)
            if file is None:
                continue
            content = file.read()
            if entry.name.startswith("blobs/sha256/"):
                blobs["sha256:" + entry.name.rpartition("/")[2]] = content
            elif entry.name == "index.json":
                index = json.loads(content)
    return blobs, str(index["manifests"][0]["digest"])
