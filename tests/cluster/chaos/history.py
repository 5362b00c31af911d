"""What happened, from etcd: every version of every object, in order, with nothing of ours in between.

The API server of a chaos run stores JSON and never compacts, so the whole history is there at the end, however
often the API server itself was killed.
"""

import base64
import http.client
import json
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from cluster.engine.ports import LOOPBACK

PODS: Final = "/registry/pods/"
GPU_NODES: Final = "/registry/tessera.dev/gpunodes/"
APISERVER_FLAGS: Final = ("--storage-media-type=application/json", "--etcd-compaction-interval=0")
SAMPLE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """An object was written (``value``), or deleted (``None``), as revision ``revision``."""

    revision: int
    kind: str
    name: str
    value: dict[str, Any] | None


class Etcd:
    """An etcd's JSON gateway."""

    def __init__(self, port: int) -> None:
        self.port = port

    def call(self, path: str, body: Any) -> Any:
        """One answer."""
        with closing(http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)) as connection:
            connection.request("POST", f"/v3/kv/{path}", json.dumps(body))
            answer = connection.getresponse()
            payload = answer.read()
            if answer.status != 200:
                raise ConnectionError(f"etcd {path}: {answer.status} {payload[:300]!r}")
            return json.loads(payload)

    def revision(self) -> int:
        """The last one."""
        return int(self.call("range", {"key": _key("/registry/nothing"), "keys_only": True})["header"]["revision"])

    def history(self, *prefixes: str) -> list[Change]:
        """Every change below these prefixes until now, in order."""
        found = [change for prefix in prefixes for change in self._below(prefix)]
        return sorted(found, key=lambda change: change.revision)

    def _below(self, prefix: str) -> Iterator[Change]:
        """A key beside the prefix, that no API server looks at, is written and marks the end."""
        mark = prefix[:-1] + "0chaos"
        self.call("put", {"key": _key(mark), "value": _key("x")})
        watch = {"key": _key(prefix), "range_end": _key(mark + "\0"), "start_revision": 1}
        with closing(http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)) as connection:
            connection.request("POST", "/v3/watch", json.dumps({"create_request": watch}))
            answer = connection.getresponse()
            while line := answer.readline():
                result = json.loads(line)["result"]
                if result.get("canceled"):
                    raise ConnectionError(f"etcd ended the watch of {prefix}: {result}")
                for event in result.get("events", ()):
                    key = base64.b64decode(event["kv"]["key"]).decode()
                    if key == mark:
                        return
                    yield _change(prefix, key, event)
        raise ConnectionError(f"etcd's history of {prefix} ends before it is complete")


def _key(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _change(prefix: str, key: str, event: dict[str, Any]) -> Change:
    deleted = event.get("type") == "DELETE"
    value = None if deleted else json.loads(base64.b64decode(event["kv"]["value"]))
    return Change(int(event["kv"]["mod_revision"]), prefix, key.removeprefix(prefix), value)


class Timeline:
    """Which revision it was when: etcd keeps no times. Samples until :meth:`stop`."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._samples: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self.begin = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def now(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begin

    def _run(self) -> None:
        while not self._ended.is_set():
            self._samples.append((self.now(), self._etcd.revision()))
            self._ended.wait(SAMPLE_SECONDS)

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        self._thread.join()

    def clock(self) -> "Clock":
        """What was sampled so far."""
        return Clock(tuple(self._samples))


@dataclass(frozen=True, slots=True)
class Clock:
    """Pairs of seconds and the last revision then, in order."""

    samples: tuple[tuple[float, int], ...]

    def at(self, revision: int) -> float:
        """When a revision was there at the latest; infinitely late where it came after the last sample."""
        place = bisect_left(self.samples, revision, key=lambda sample: sample[1])
        return self.samples[place][0] if place < len(self.samples) else float("inf")
