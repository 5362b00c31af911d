"""One port before several replicas, as a Service of a cluster is: a connection goes to the first that is ready.

Usage: ``service_proxy.py PORT REPLICA:HEALTH [REPLICA:HEALTH ...]``, all of them ports of this machine.
"""

import asyncio
import contextlib
import sys

LOOK_SECONDS = 0.2
"""How often the replicas' readiness is looked at; a cluster takes longer to notice."""


async def is_ready(port: int) -> bool:
    """Whether the replica says so now."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return b" 200 " in line
    return False


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on until the source ends, and let the sink end then."""
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


async def main(port: int, replicas: list[tuple[int, int]]) -> None:
    """Serve for ever."""
    ready: list[int] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for replica in tuple(ready):
            with contextlib.suppress(OSError):
                back, forth = await asyncio.open_connection("127.0.0.1", replica)
                await asyncio.gather(pump(reader, forth), pump(back, writer))
                return
        writer.close()

    async with await asyncio.start_server(pass_on, "127.0.0.1", port):
        while True:
            ready[:] = [replica for replica, health in replicas if await is_ready(health)]
            await asyncio.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), [tuple(map(int, pair.split(":"))) for pair in sys.argv[2:]]))
