"""Changing the limits of a share under its processes, so that whoever is killed on the way leaves too little.

What shrinks is put in force first (:func:`tighten`), then the caller writes down what counts from now on, then
what grows is put in force (:func:`put`). A memory limit below what is in use would take nothing back and refuse
everything, so it is not put in force at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.runtime.native import DeviceLimits, LiveRegion


@dataclass(frozen=True, slots=True)
class Excess:
    """A device, by its place in the region, of which more is in use than its new limit would allow; bytes."""

    device: int
    used: int
    limit: int


def put(live: LiveRegion, limits: Sequence[DeviceLimits]) -> None:
    """Put these limits in force. Raises :class:`~tessera.runtime.native.RegionCallError`."""
    for device, limit in enumerate(limits):
        live.resize(device, limit)


def tighten(live: LiveRegion, before: Sequence[DeviceLimits], after: Sequence[DeviceLimits]) -> tuple[Excess, ...]:
    """Put in force what shrinks; where more is in use than that, everything is as before, and this is what.

    What a process allocates between the look and the limit is found by a second look. Raises as :func:`put`.
    """
    found = _excess(live, before, after)
    if not found:
        put(live, [_least(*pair) for pair in zip(before, after, strict=True)])
        found = _excess(live, before, after)
        if found:
            put(live, before)
    return found


def _excess(live: LiveRegion, before: Sequence[DeviceLimits], after: Sequence[DeviceLimits]) -> tuple[Excess, ...]:
    """Where less memory than before is less than what is in use, with what the host measured beyond the books."""
    used = [amount + live.unseen_bytes(device) for device, amount in enumerate(live.used_bytes())]
    rows = enumerate(zip(used, before, after, strict=True))
    return tuple(
        Excess(device, amount, new.memory_limit)
        for device, (amount, old, new) in rows
        if new.memory_limit < old.memory_limit and new.memory_limit < amount
    )


def _least(one: DeviceLimits, other: DeviceLimits) -> DeviceLimits:
    return DeviceLimits(
        uuid=one.uuid,
        memory_limit=min(one.memory_limit, other.memory_limit),
        memory_request=min(one.memory_request, other.memory_request),
        compute_limit_milli=min(one.compute_limit_milli, other.compute_limit_milli),
        compute_request_milli=min(one.compute_request_milli, other.compute_request_milli),
    )
