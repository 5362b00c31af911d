"""Requests and shares in words, as ``tessera explain`` and ``tessera plan`` say them."""

from collections.abc import Callable, Iterator
from typing import Final

from tessera.core.placement import Charge, Grant
from tessera.core.request import Claim, Constraints, ModelRule, Request
from tessera.core.share import (
    ComputeAmount,
    ComputeMilli,
    ComputeTflops,
    MemoryAmount,
    MemoryMiB,
    Share,
    ShareSpec,
)
from tessera.core.units import WHOLE, render_mib, render_percent


def plural(count: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def request_lines(request: Request) -> Iterator[str]:
    """What is asked, a line a claim, and then where it may go."""
    for claim in request.claims:
        yield _claim_text(claim)
    rules = list(_rules(request.constraints))
    if rules:
        yield f"only on {'; '.join(rules)}"


def _claim_text(claim: Claim) -> str:
    jointly = " (jointly)" if len(claim.containers) > 1 else ""
    names = f"container{'s' * (len(claim.containers) > 1)} {', '.join(claim.containers)}{jointly}"
    vendor = f" of vendor {claim.vendor}" if claim.vendor else ""
    each = " each" if claim.count > 1 else ""
    share = claim.share
    if share.exclusive and share.compute_request == ComputeMilli(WHOLE):
        whole = "whole device" if claim.count == 1 else "whole devices"
        return f"{names}: {claim.count} {whole}{vendor}, nobody else on {'it' if claim.count == 1 else 'them'}"
    alone = ", nobody else on it" if share.exclusive else ""
    return f"{names}: {plural(claim.count, 'device')}{vendor} with {_spec_text(share)}{each}{alone}"


def _spec_text(share: ShareSpec) -> str:
    memory, compute = _memory(share.memory_request), _compute(share.compute_request)
    if share.memory_limit != share.memory_request:
        memory += f" (limit {_memory(share.memory_limit)})"
    if share.compute_limit != share.compute_request:
        compute += f" (limit {_compute(share.compute_limit)})"
    return f"{memory} and {compute}"


def _memory(amount: MemoryAmount) -> str:
    if isinstance(amount, MemoryMiB):
        return render_mib(amount.mib)
    return f"{render_percent(amount.milli)} of its memory"


def _compute(amount: ComputeAmount) -> str:
    match amount:
        case ComputeTflops(milli_tflops):
            return f"{milli_tflops / 1000:g} TFLOPS"
        case ComputeMilli(milli):
            return f"{render_percent(milli)} of its compute" if milli else "no reserved compute"


def _rules(constraints: Constraints) -> Iterator[str]:
    c = constraints
    if c.vendor:
        yield f"vendor {c.vendor}"
    if c.models_allowed:
        yield f"models {_models(c.models_allowed)}"
    if c.models_denied:
        yield f"no model {_models(c.models_denied)}"
    if c.uuids_allowed:
        yield f"device {' or '.join(sorted(c.uuids_allowed))}"
    if c.uuids_denied:
        yield f"no device {' or '.join(sorted(c.uuids_denied))}"
    if c.indices:
        yield f"device index {' or '.join(map(str, sorted(c.indices)))}"
    if c.modes:
        yield f"devices in mode {' or '.join(sorted(c.modes))}"
    yield from _together(c)


def _together(c: Constraints) -> Iterator[str]:
    if c.one_numa:
        yield "devices of one NUMA node"
    if c.idle_device:
        yield "idle devices"
    if c.distinct_devices:
        yield "another device for each container"
    for group in c.same_device:
        yield f"the same devices for containers {', '.join(group)}"


def _models(rules: tuple[ModelRule, ...]) -> str:
    return " or ".join(rule.pattern if rule.exact else f"*{rule.pattern}*" for rule in rules)


def share_text(share: Share) -> str:
    """A share on one device: ``8,192 MiB, 30% compute``."""
    if share.exclusive and share.compute_request == WHOLE:
        return "whole"
    alone = ", nobody else on it" if share.exclusive else ""
    return f"{_pair(share.memory_request, share.memory_limit, render_mib)}, {_compute_pair(share)} compute{alone}"


def _compute_pair(share: Share) -> str:
    if not share.compute_request:
        return f"no reserved (limit {render_percent(share.compute_limit)})"
    return _pair(share.compute_request, share.compute_limit, render_percent)


def _pair(request: int, limit: int, render: Callable[[int], str]) -> str:
    return render(request) if request == limit else f"{render(request)} (limit {render(limit)})"


def grant_text(grant: Grant) -> str:
    """A device given to a container: ``device 0 (A100): 8,192 MiB, 30% compute``."""
    return f"device {grant.index} ({grant.model}): {share_text(grant.share)}"


def charge_text(charge: Charge) -> str:
    """What a pod takes of a device: ``8,192 MiB, 30%``; ``whole``."""
    if charge.exclusive:
        return "whole"
    compute = render_percent(charge.compute_milli) if charge.compute_milli else "no reserved"
    return f"{render_mib(charge.memory_mib)}, {compute} compute"


def tier_text(tier: str) -> str:
    """What holds the memory of a node's shares, by the tier that its agent publishes."""
    return _TIERS.get(tier, f"{tier}: what that is, this version does not know")


_TIERS: Final = {
    "": "unknown: the node's agent does not say what holds memory",
    "driver": "driver: memory is held by the driver, whatever runs in the container, and by the limiter",
    "hook": "hook: memory is held by the limiter",
    "unverified": "unverified: memory is held by the limiter; no gate checks that containers have it",
    "report": "report: nothing holds memory",
}
