"""The metrics of tiers and fences: which tier each container has, what its fence holds, what became of fences."""

from collections.abc import Callable
from typing import Final

from tessera.agent.fencing import FenceKeeper
from tessera.agent.figures import Readings, Rows
from tessera.agent.store import StoredShare
from tessera.runtime.metrics import Metrics, Unavailable

TIERS: Final = ("driver", "hook", "unverified", "report")


def tier_of(*, isolation: str, is_fenced: bool) -> str:
    """A container's tier, by what the patrol says of its limiter; empty before it starts.

    The driver's limit holds whatever is in the processes; without it and without a limiter nothing does.
    """
    if not isolation:
        return ""
    if is_fenced:
        return "driver"
    return {"enforced": "hook", "unverified": "unverified"}.get(isolation, "report")


def declare_fences(
    metrics: Metrics, readings: Readings, keeper: FenceKeeper, isolation: Callable[[StoredShare], str]
) -> None:
    """A row for each container and device, and the counts; ``isolation`` says how a container's limiter holds."""

    def tiers() -> Rows:
        for share, _ in readings.now():
            tier = tier_of(isolation=isolation(share), is_fenced=keeper.is_fenced(share))
            if tier:
                grant = share.grant
                yield (grant.namespace, grant.pod, grant.container, tier), 1.0

    def held() -> Rows:
        for share, _ in readings.now():
            grant, standing = share.grant, keeper.standing(share)
            for uuid in keeper.limited(share):
                labels = (grant.namespace, grant.pod, grant.container, uuid)
                yield labels, standing.get(uuid, Unavailable("not read back"))

    metrics.matrix(
        "container_tier",
        "1 for what holds a container's memory: driver (and limiter), hook (limiter), unverified (limiter, "
        "no gate), report (nothing).",
        ("namespace", "pod", "container", "tier"),
        tiers,
    )
    metrics.matrix(
        "container_driver_limit_bytes",
        "Memory of a device that the driver or the kernel limits a container to, as read back.",
        ("namespace", "pod", "container", "device"),
        held,
    )
    metrics.matrix(
        "driver_limits_total",
        "Driver limits by outcome: set, changed with the share, restored or lost after somebody changed them, "
        "refused (the container did not start), undone.",
        ("outcome",),
        lambda: [((outcome.value,), count) for outcome, count in keeper.counts.items()],
        counter=True,
    )
