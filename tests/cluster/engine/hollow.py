"""Hollow kubelets: pods that are bound to simulated nodes become Running, and are gone once they are deleted.

Nothing runs. What an API server, a controller or a scheduler sees of a pod's life is there, at the rate of a loop.
"""

import asyncio
import json
from collections.abc import Collection
from typing import Any

from cluster.engine.api import MERGE
from cluster.engine.nodes import Session, open_session
from cluster.engine.plane import ControlPlane


class HollowKubelets:
    """Plays kubelet for these nodes; run :meth:`play` as a task and cancel it."""

    def __init__(self, plane: ControlPlane, nodes: Collection[str]) -> None:
        self.plane = plane
        self.nodes = frozenset(nodes)

    async def play(self) -> None:
        """Watch pods and act for the nodes, again from the start whenever the server ends the watch."""
        async with open_session(self.plane) as session:
            while True:
                await self._watch(session)

    async def _watch(self, session: Session) -> None:
        listed = json.loads(await session.call("GET", "/api/v1/pods"))
        for pod in listed["items"]:
            await self._act(session, pod)
        path = f"/api/v1/pods?watch=1&resourceVersion={listed['metadata']['resourceVersion']}&timeoutSeconds=60"
        async with session.http.get(session.server + path) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                events = [json.loads(line) for line in lines if line]
                pods = [event["object"] for event in events if event["type"] in ("ADDED", "MODIFIED")]
                await asyncio.gather(*(self._act(session, pod) for pod in pods))

    async def _act(self, session: Session, pod: dict[str, Any]) -> None:
        """One step of a pod's life, as its kubelet would report it."""
        meta, phase = pod["metadata"], pod.get("status", {}).get("phase")
        if pod["spec"].get("nodeName") not in self.nodes:
            return
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            await session.call("DELETE", path, gone, accepts=(404, 409))
        elif phase == "Pending":
            running = {"metadata": {"uid": meta["uid"]}, "status": _running(pod)}
            await session.call("PATCH", f"{path}/status", running, MERGE, accepts=(404, 409))


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    since = pod["metadata"]["creationTimestamp"]
    statuses = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": since}},
        }
        for container in pod["spec"]["containers"]
    ]
    ready = [{"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "Ready")]
    kept = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
    return {"phase": "Running", "startTime": since, "conditions": [*kept, *ready], "containerStatuses": statuses}
