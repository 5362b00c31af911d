"""Which shares on disk are over: those of pods that are gone for good or finished, and that nobody runs in.

A share stays for as long as its pod may start a container again. What the API server does not list may be too new
for our list, so that a share of no pod stays for a while; a pod whose processes still run keeps its share whatever
the API server says.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tessera.wire.kube.objects import KubePod

YOUNG_SECONDS: Final = 60.0


def candidates(directories: Mapping[str, float], pods: Iterable[KubePod], now: float) -> tuple[str, ...]:
    """Uids whose shares may be over, by the API server's word; ``directories`` are uids with their last change."""
    lasting = {pod.metadata.uid for pod in pods if not pod.finished}
    return tuple(
        sorted(
            uid
            for uid, changed in directories.items()
            if uid not in lasting and not 0 <= now - changed < YOUNG_SECONDS
        )
    )


def over(uids: Iterable[str], running: Collection[str]) -> tuple[str, ...]:
    """Those of ``uids`` that have no process left."""
    return tuple(uid for uid in uids if uid not in running)
