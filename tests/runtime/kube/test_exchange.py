"""Connections are kept while they are good for another request, and never mixed up or leaked."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runtime.kube.scripted import Script, hangs, says, streams
from tessera.runtime.kube.exchange import ENOUGH, KEPT_SECONDS, Exchange, Limits
from tessera.runtime.kube.port import ConnectionLostError, UnreachableError
from tessera.runtime.serve import Answer, Bind, serve
from tessera.runtime.tls import ReloadingContext, new_authority, new_leaf

QUICK = Limits(total=5, connect=5, silence=0.2)
STRANGE = ssl.create_default_context(cadata=new_authority(900, time.time()).certificate.decode())


def talk(law: Callable[[Exchange], Awaitable[None]], *answers: Any, limits: Limits = QUICK) -> Script:
    async def body() -> Script:
        script = Script(*answers)
        async with asyncio.timeout(20), script.serve() as address:
            exchange = Exchange(f"{address}/prefix", None, "", limits)
            try:
                await law(exchange)
            finally:
                exchange.close()
        return script

    return asyncio.run(body())


def test_a_request_is_sent_as_it_was_given():
    async def law(exchange):
        reply = await exchange.call("PUT", "/a?b=c", {"X-Y": "z"}, b"body")
        assert (reply.status, reply.body) == (200, b"{}")

    [asked] = talk(law, says(200, b"{}")).asked
    assert (asked.method, asked.path, asked.query, asked.body) == ("PUT", "/prefix/a", {"b": "c"}, b"body")
    assert asked.headers["x-y"] == "z"


@pytest.mark.parametrize(("target", "headers"), [("/a b", {}), ("/a\r\nX: 1", {}), ("/a", {"X": "1\nY: 2"})])
def test_what_could_end_a_line_early_is_never_sent(target, headers):
    async def law(exchange):
        with pytest.raises(ValueError, match="line break or a blank"):
            await exchange.call("GET", target, headers, None)

    assert talk(law, says(200, {})).asked == []


def test_a_connection_is_used_again_after_a_whole_answer_and_only_then():
    async def whole(exchange):
        for _ in range(3):
            await exchange.call("GET", "/", {}, None)

    async def left(exchange):
        for _ in range(3):
            stream = await exchange.open("/", {}, 5)
            stream.close()

    assert talk(whole, streams(b"a")).connections == 1
    assert talk(left, streams(b"a", then="hang")).connections == 3


def test_a_connection_with_more_than_its_answer_on_it_is_cut():
    async def write(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb")
        await writer.drain()

    async def law(exchange):
        assert (await exchange.call("GET", "/", {}, None)).body == b"a"
        assert (await exchange.call("GET", "/", {}, None)).body == b"a"

    assert talk(law, write).connections == 2


def test_parallel_requests_do_not_mix_up_their_answers():
    async def say_back(writer):
        body = script.asked[-1].body  # of this request: nothing ran since it was read
        await asyncio.sleep(0)
        await says(200, body)(writer)

    async def law():
        async with asyncio.timeout(20), script.serve() as address:
            exchange = Exchange(address, None, "", QUICK)
            replies = await asyncio.gather(*(exchange.call("POST", "/", {}, b"%d" % n) for n in range(20)))
            assert [reply.body for reply in replies] == [b"%d" % n for n in range(20)]
            exchange.close()

    script = Script(say_back)
    asyncio.run(law())


def test_an_answer_that_stops_is_lost_after_a_silence_and_after_the_whole_time():
    async def silent(exchange):
        with pytest.raises(ConnectionLostError, match="in time"):
            await exchange.call("GET", "/", {}, None)

    async def never(exchange):
        with pytest.raises(ConnectionLostError, match=r"no answer in 0\.2 s"):
            await exchange.call("GET", "/", {}, None)

    talk(silent, streams(b"a", then="hang"))
    talk(never, hangs)
    talk(silent, streams(b"a", then="hang"), limits=Limits(total=0.2, connect=5, silence=5))


def test_a_stream_may_be_silent_until_its_own_end():
    async def law(exchange):
        stream = await exchange.open("/", {}, 0.5)
        assert await stream.readany() == b"a"
        with pytest.raises(TimeoutError):
            await stream.readany()
        stream.close()

    talk(law, streams(b"a", then="hang"))


def test_who_reads_slowly_makes_the_server_wait_and_misses_nothing():
    size = 40 * ENOUGH

    async def law(exchange):
        stream = await exchange.open("/", {}, 10)
        while not stream.paused:
            await asyncio.sleep(0.01)
        data = b""
        while part := await stream.readany():
            data += part
        assert len(data) == size
        stream.close()
        assert (await exchange.call("GET", "/", {}, None)).status == 200

    assert talk(law, streams(b"x" * size), says(200, {})).connections == 1


def test_a_retired_exchange_lets_what_runs_come_to_its_end():
    async def law(exchange):
        stream = await exchange.open("/", {}, 5)
        exchange.retire()
        assert await stream.readany() == b"a"
        exchange.close()
        with pytest.raises(ConnectionLostError):
            await stream.readany()

    talk(law, streams(b"a", then="hang"))


def test_connections_that_were_idle_for_long_are_not_used_again():
    async def law(exchange):
        await exchange.call("GET", "/", {}, None)
        exchange._idle[0].since -= KEPT_SECONDS
        await exchange.call("GET", "/", {}, None)

    assert talk(law, says(200, {})).connections == 2


def test_nobody_there_is_unreachable():
    async def law():
        exchange = Exchange("http://127.0.0.1:1", None, "", QUICK)
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
            await exchange.call("GET", "/", {}, None)

    asyncio.run(law())


def test_a_server_is_believed_by_its_authority_and_its_name_alone():
    async def law():
        authority = new_authority(900, time.time())
        context = ReloadingContext()
        context.load(new_leaf(authority, ("127.0.0.1", "other"), 300, time.time()))
        server = await serve(lambda *_: Answer(b"{}"), Bind("127.0.0.1", 0), name="t", tls=context.context)
        address = f"https://{server.bind}"
        trusting = ssl.create_default_context(cadata=authority.certificate.decode())
        for name in ("", "other"):
            exchange = Exchange(address, trusting, name, QUICK)
            assert (await exchange.call("GET", "/", {}, None)).status == 200
            exchange.close()
        for wrong in (Exchange(address, trusting, "third", QUICK), Exchange(address, STRANGE, "", QUICK)):
            with pytest.raises(UnreachableError):
                await wrong.call("GET", "/", {}, None)
        await server.close()

    asyncio.run(law())
