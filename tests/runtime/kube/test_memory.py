"""Faults of the API server in memory: what tests of other parts rely on."""

import asyncio

import pytest

from tessera.runtime.kube.memory import Call, Fault, MemoryCluster
from tessera.runtime.kube.port import PODS, SECRETS, TOKEN_REVIEWS, ApiError, ConnectionLostError

BROKEN = ApiError(500, "InternalError", "disk")


def a_secret(name: str):
    return {"metadata": {"name": name}}


async def make(cluster: MemoryCluster, name: str):
    return await cluster.create(SECRETS, a_secret(name), dict, namespace="n")


async def names(cluster: MemoryCluster) -> list[str]:
    return [item["metadata"]["name"] for item in (await cluster.list(SECRETS, dict)).items]


def test_the_chosen_calls_fail_and_no_others():
    async def law() -> None:
        cluster = MemoryCluster()
        cluster.fail(Fault("create", SECRETS, error=BROKEN, after=1, times=2))
        outcomes = []
        for name in "abcd":
            try:
                await make(cluster, name)
                outcomes.append(True)
            except ApiError as error:
                outcomes.append(error.code)
        assert outcomes == [True, 500, 500, True]
        assert await names(cluster) == ["a", "d"]

    asyncio.run(law())


def test_a_late_fault_loses_the_answer_and_not_the_write():
    async def law() -> None:
        cluster = MemoryCluster()
        cluster.fail(Fault("create", error=ConnectionLostError("reset"), late=True))
        with pytest.raises(ConnectionLostError):
            await make(cluster, "a")
        assert await names(cluster) == ["a"]

    asyncio.run(law())


def test_a_gate_holds_a_call():
    async def law() -> None:
        cluster, gate = MemoryCluster(), asyncio.Event()
        cluster.fail(Fault("create", gate=gate))
        task = asyncio.create_task(make(cluster, "a"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert await names(cluster) == []
        gate.set()
        await task
        assert await names(cluster) == ["a"]

    asyncio.run(law())


def test_a_server_that_is_away_answers_nothing_and_loses_its_watches():
    async def law() -> None:
        cluster = MemoryCluster()
        watch = cluster.watch(PODS, dict, resource_version="1")
        task = asyncio.ensure_future(anext(watch))
        for _ in range(10):
            await asyncio.sleep(0)
        cluster.away = True
        with pytest.raises(ConnectionLostError):
            await task
        with pytest.raises(ConnectionLostError):
            await make(cluster, "a")
        cluster.mend()
        await make(cluster, "a")

    asyncio.run(law())


def test_reviews_are_answered_and_not_kept_and_calls_are_counted():
    async def law() -> None:
        cluster = MemoryCluster(answers={TOKEN_REVIEWS: lambda obj: {**obj, "status": {"authenticated": True}}})
        review = await cluster.create(TOKEN_REVIEWS, {"spec": {"token": "t"}}, dict)
        assert review["status"] == {"authenticated": True}
        assert cluster.calls == [Call("create", TOKEN_REVIEWS)]
        assert (await cluster.list(TOKEN_REVIEWS, dict)).items == ()

    asyncio.run(law())


def test_what_was_given_out_does_not_change_afterwards():
    async def law() -> None:
        cluster = MemoryCluster()
        made = await make(cluster, "a")
        made["metadata"]["name"] = "z"
        await cluster.patch(SECRETS, "a", {"metadata": {"labels": {"x": "1"}}}, dict, namespace="n")
        assert await names(cluster) == ["a"]
        assert "labels" not in made["metadata"]

    asyncio.run(law())
