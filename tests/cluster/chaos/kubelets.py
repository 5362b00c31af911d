"""Simulated kubelets that survive a killed API server: pods start, restart, end and leave as they are told to."""

import asyncio
import json
from typing import Any, Final

import aiohttp

from cluster.chaos.caller import LOST, Caller
from cluster.chaos.manifests import LIFE
from cluster.engine.hollow import _running

RETRY_SECONDS: Final = 0.3
SETTLED: Final = (200, 201, 404, 409)
ENDED_AS_WANTED: Final = "Chaos"
"""The reason of a pod that failed because its annotation says so."""


class Kubelets:
    """Plays kubelet for all nodes whose name starts with ``prefix``; run :meth:`play` as a task and cancel it."""

    def __init__(self, caller: Caller, prefix: str) -> None:
        self._caller, self._prefix = caller, prefix
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}

    async def play(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._follow()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            for task in (*self._lives.values(), *self._ends.values()):
                task.cancel()

    async def _follow(self) -> None:
        status, listed = await self._caller.call("GET", "/api/v1/pods")
        if status != 200:
            return
        present = {pod["metadata"]["uid"] for pod in listed["items"]}
        for uid in [uid for uid in self._lives if uid not in present]:
            self._forget(uid)
        for pod in listed["items"]:
            self._see(pod)
        version = listed["metadata"]["resourceVersion"]
        path = f"/api/v1/pods?watch=1&resourceVersion={version}&timeoutSeconds=60"
        try:
            timeout = aiohttp.ClientTimeout(total=70, sock_read=20)
            async with self._caller.http.get(self._caller.server + path, timeout=timeout) as answer:
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for event in (json.loads(line) for line in lines if line):
                        self._saw(event)
        except LOST:
            return

    def _saw(self, event: dict[str, Any]) -> None:
        if event["type"] == "DELETED":
            self._forget(event["object"]["metadata"]["uid"])
        elif event["type"] in ("ADDED", "MODIFIED"):
            self._see(event["object"])

    def _forget(self, uid: str) -> None:
        for tasks in (self._lives, self._ends):
            task = tasks.pop(uid, None)
            if task is not None:
                task.cancel()

    def _see(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if not pod["spec"].get("nodeName", "").startswith(self._prefix):
            return
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ends:
                self._ends[uid] = asyncio.create_task(self._end(pod))
        elif uid not in self._lives and pod.get("status", {}).get("phase") == "Pending":
            self._lives[uid] = asyncio.create_task(self._live(pod))

    async def _live(self, pod: dict[str, Any]) -> None:
        life = _life_of(pod)
        await asyncio.sleep(life["start"])
        status = _running(pod)
        await self._report(pod, status)
        for count in range(1, life["restarts"] + 1):
            await asyncio.sleep(0.7)
            for one in status["containerStatuses"]:
                one["restartCount"] = count
            await self._report(pod, status)
        if life["run"] is not None:
            await asyncio.sleep(life["run"])
            await self._report(pod, {"phase": life["end"], "reason": ENDED_AS_WANTED})

    async def _end(self, pod: dict[str, Any]) -> None:
        """As a kubelet does: containers end, the phase becomes final, then the object goes."""
        live = self._lives.get(pod["metadata"]["uid"])
        if live is not None:
            live.cancel()
        await asyncio.sleep(_life_of(pod)["linger"])
        if pod.get("status", {}).get("phase") == "Running":
            await self._report(pod, {"phase": "Succeeded", "reason": ENDED_AS_WANTED})
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._until_settled("DELETE", path_of(pod), body)

    async def _report(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._until_settled("PATCH", f"{path_of(pod)}/status", body)

    async def _until_settled(self, method: str, path: str, body: dict[str, Any]) -> None:
        while (await self._caller.call(method, path, body))[0] not in SETTLED:
            await asyncio.sleep(RETRY_SECONDS)


def _life_of(pod: dict[str, Any]) -> dict[str, Any]:
    rest = {"start": 0.2, "restarts": 0, "run": None, "end": "Succeeded", "linger": 0.0}
    told: dict[str, Any] = json.loads(pod["metadata"].get("annotations", {}).get(LIFE, "{}"))
    return rest | told


def path_of(pod: dict[str, Any]) -> str:
    """A pod's path."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
