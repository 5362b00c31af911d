"""Who may read debug endpoints: the API server's answers become 200, 401, 403 or 503."""

import asyncio
from typing import Any

import aiohttp
from aiohttp import web

from tessera.runtime.clock import SYSTEM, ManualClock
from tessera.runtime.kube.access import Access, Denied, Granted, guarded
from tessera.runtime.kube.memory import Fault, MemoryCluster
from tessera.runtime.kube.port import ACCESS_REVIEWS, TOKEN_REVIEWS, ApiError
from tessera.runtime.serve import Bind, serve

PATH = "/debug/ledger"


def token_review(review: dict[str, Any]) -> dict[str, Any]:
    """Tokens ``of-NAME`` are good."""
    token = review["spec"]["token"]
    user = {"username": token.removeprefix("of-"), "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}
    good = {"authenticated": True, "user": user} if token.startswith("of-") else {"error": "expired"}
    return {**review, "status": good}


def access_review(review: dict[str, Any]) -> dict[str, Any]:
    """``eve`` may nothing, the others may read under /debug."""
    spec = review["spec"]
    assert (spec["uid"], spec["groups"], spec["extra"]) == ("u", ["g"], {"k": ["v"]})
    asked = spec["nonResourceAttributes"]
    allowed = spec["user"] != "eve" and asked["verb"] == "get" and asked["path"].startswith("/debug/")
    return {**review, "status": {"allowed": allowed}}


def a_server() -> MemoryCluster:
    return MemoryCluster(answers={TOKEN_REVIEWS: token_review, ACCESS_REVIEWS: access_review})


def judged(authorization: str, verb: str = "get", server: MemoryCluster | None = None) -> Granted | Denied:
    return asyncio.run(Access(server or a_server(), clock=SYSTEM).judge(authorization, verb, PATH))


def test_a_user_who_may_is_let_through() -> None:
    assert judged("Bearer of-ada") == Granted("ada")
    assert judged("bearer  of-ada") == Granted("ada")


def test_without_a_token_or_with_one_that_nobody_knows_it_is_401() -> None:
    for header in ("", "Bearer", "Bearer ", "Basic of-ada", "of-ada"):
        verdict = judged(header)
        assert isinstance(verdict, Denied)
        assert (verdict.status, "kubectl create token" in verdict.message) == (401, True)
    unknown = judged("Bearer stolen")
    assert isinstance(unknown, Denied)
    assert (unknown.status, "stolen" in unknown.message) == (401, False)


def test_a_user_who_may_not_is_told_what_would_help() -> None:
    message = (
        f"eve may not get {PATH}; bind a ClusterRole with nonResourceURLs [{PATH}] and verbs [get] to that user"
    )
    assert judged("Bearer of-eve") == Denied(403, message)
    verdict = judged("Bearer of-ada", "post")
    assert isinstance(verdict, Denied)
    assert verdict.status == 403


def test_answers_are_remembered_briefly_and_failures_are_not() -> None:
    async def scene() -> None:
        server, clock = a_server(), ManualClock()
        access = Access(server, clock=clock)
        server.fail(Fault("create", TOKEN_REVIEWS, error=ApiError(500, "InternalError", "disk")))
        verdict = await access.judge("Bearer of-ada", "get", PATH)
        assert isinstance(verdict, Denied)
        assert verdict.status == 503
        server.calls.clear()
        for _ in range(5):
            assert await access.judge("Bearer of-ada", "get", PATH) == Granted("ada")
        assert len(server.calls) == 2
        await access.judge("Bearer of-ada", "get", "/debug/other")
        assert len(server.calls) == 4
        await clock.advance(10)
        await access.judge("Bearer of-ada", "get", PATH)
        assert len(server.calls) == 6

    asyncio.run(scene())


def test_a_guarded_handler_is_reached_by_those_who_may() -> None:
    async def scene() -> list[tuple[int, str, bool]]:
        async def ledger(_: web.Request) -> web.Response:
            return web.Response(text="the ledger")

        app = web.Application()
        app.add_routes([web.get(PATH, guarded(Access(a_server()), ledger))])
        server = await serve(app, Bind("127.0.0.1", 0), name="t")
        found = []
        async with aiohttp.ClientSession() as session:
            for header in ({"Authorization": "Bearer of-ada"}, {"Authorization": "Bearer of-eve"}, {}):
                async with session.get(f"http://{server.bind}{PATH}", headers=header) as answer:
                    found.append((answer.status, await answer.text(), "WWW-Authenticate" in answer.headers))
        await server.close()
        return found

    ada, eve, nobody = asyncio.run(scene())
    assert ada == (200, "the ledger", False)
    assert (eve[0], eve[2], nobody[0], nobody[2]) == (403, False, 401, True)
