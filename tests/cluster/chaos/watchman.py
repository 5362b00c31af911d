"""What really runs on the real node, looked at from the host several times a second: every process in a container
that has a share must have passed the gate, under a region that allows what its pod was given.
"""

import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tessera.agent.store import read_region
from tessera.wire.shm import Region

LOOK_SECONDS: Final = 0.3
CGROUP: Final = re.compile(r"/pod([0-9a-f-]{36})/([0-9a-f]{64})")
STARTING: Final = ("runc", "exe", "pause")
"""Programs that are in a container's cgroup before, or beside, what the container runs."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A container of a pod that ran, and the MiB that its region allows of each device."""

    uid: str
    container: str
    limits: tuple[tuple[str, int], ...]


class Watchman:
    """Looks until :meth:`stop`. ``ungated``: processes that never passed the gate; ``seen``: what they may."""

    def __init__(self, containers: Path) -> None:
        self._containers = containers
        self.ungated: list[str] = []
        self.seen: set[Seen] = set()
        self.gated: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the looks."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for entry in os.scandir("/proc"):
                if entry.name.isdigit():
                    with suppress(OSError):
                        self._look(Path(entry.path))

    def _look(self, process: Path) -> None:
        found = CGROUP.search((process / "cgroup").read_text())
        name = (process / "comm").read_text().strip()
        if found is None or name.startswith(STARTING):
            return
        uid, container_id = found.groups()
        for folder in (self._containers / uid).glob("*"):
            with suppress(OSError):
                if (folder / "gated").read_text() == container_id:
                    self._passed(uid, folder, container_id)
                    return
        # It may have ended, and its successor passed, between the two looks: then this raises.
        if CGROUP.search((process / "cgroup").read_text()):
            self.ungated.append(f"{name} ({process.name}) of container {container_id} of pod {uid}")

    def _passed(self, uid: str, folder: Path, container_id: str) -> None:
        self.gated.add(container_id)
        region = read_region(folder / "region")
        limits = (
            tuple((d.uuid, (d.memory_limit or 0) >> 20) for d in region.devices)
            if isinstance(region, Region)
            else ()
        )
        self.seen.add(Seen(uid, folder.name, limits))


def contradictions(seen: set[Seen], allocations: dict[str, dict[str, Any]]) -> list[str]:
    """Regions that allow something else than their pod's allocation says."""
    found = []
    for one in sorted(seen, key=lambda s: (s.uid, s.container)):
        record = allocations.get(one.uid)
        grants = (record or {"containers": {}})["containers"].get(one.container, ())
        wanted = tuple((grant["uuid"], grant["memory"][1]) for grant in grants)
        if wanted != one.limits:
            found.append(f"pod {one.uid}, {one.container}: the region allows {one.limits}, the record {wanted}")
    return found
