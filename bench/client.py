"""CPU of one binding through the client over TLS: ``bench/client.py [CALLS]``; a process of its own answers.

Figures are for the client's process alone, one call after another and 16 at a time, on asyncio's loop and uvloop.
"""

import asyncio
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tessera.runtime.kube.client import ApiClient
from tessera.runtime.kube.config import ClusterConfig
from tessera.runtime.tls import new_authority, new_leaf

PATH = "/api/v1/namespaces/team/pods/trainer-000001/binding"
BODY = (
    b'{"apiVersion":"v1","kind":"Binding","metadata":{"name":"trainer-000001","uid":"6f9619ff","annotations":'
    b'{"tessera.dev/allocation":"' + b"x" * 420 + b'"}},"target":{"kind":"Node","name":"node-00001"}}'
)
ANSWER = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 0\r\nContent-Type: application/json\r\nDate: today\r\n"
    b"Content-Length: 80\r\n\r\n"
    + b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201 }'
)


class Answering(asyncio.Protocol):
    """Answers every request whole, as soon as its body is there; costs next to nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.held = transport, b""

    def data_received(self, data: bytes) -> None:
        self.held += data
        while (at := self.held.find(b"\r\n\r\n")) >= 0 and len(self.held) >= at + 4 + len(BODY):
            self.held = self.held[at + 4 + len(BODY) :]
            self.transport.write(ANSWER)


def serve(folder: Path) -> None:
    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "leaf.crt", folder / "leaf.key")
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Answering, "127.0.0.1", 0, ssl=context)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()

    uvloop.run(main())


async def measure(config: ClusterConfig, calls: int, word: str) -> None:
    client = ApiClient(config)
    await client.post_raw(PATH, BODY)

    async def some(count: int) -> None:
        for _ in range(count):
            status, _ = await client.post_raw(PATH, BODY)
            assert status == 201

    for parallel in (1, 16):
        best, wall = float("inf"), 0.0
        for _ in range(5):
            began, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(some(calls // parallel) for _ in range(parallel)))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - began
            best = min(best, cpu / (calls // parallel * parallel))
        print(f"{word:8} {parallel:2} at a time: {best * 1e6:.0f} us of CPU a call, {calls / wall:.0f} calls/s")
    await client.close()


def main(calls: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, now = Path(name), time.time()
        authority = new_authority(86400, now)
        leaf = new_leaf(authority, ["127.0.0.1"], 86400, now)
        (folder / "leaf.crt").write_bytes(leaf.certificate)
        (folder / "leaf.key").write_bytes(leaf.key)
        with subprocess.Popen(
            [sys.executable, __file__, "serve", name], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            config = ClusterConfig(
                "bench", f"https://127.0.0.1:{int(server.stdout.readline())}", authority.certificate
            )
            try:
                asyncio.run(measure(config, calls, "asyncio"))
                uvloop.run(measure(config, calls, "uvloop"))
            finally:
                server.kill()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
