"""What the commands for one machine say of shares."""

from typing import Final

from tessera.core.placement import Grant
from tessera.core.units import WHOLE, render_mib, render_percent
from tessera.local.book import Run, grants_of

COMPUTE_NOTE: Final = (
    "the compute limit is held by libtessera.so in every process of the run, for kernels and graphs, not for "
    "copies; on a real device it was never tried"
)


def has_compute_limit(run: Run) -> bool:
    """Whether the run may have less than all the time of one of its devices."""
    return any(grant.share.compute_limit < WHOLE for grant in grants_of(run))


def share_text(grant: Grant) -> str:
    """A share of one device in words: ``device 0 (NVIDIA A100): 8,192 MiB, 30% compute``."""
    share = grant.share
    device = f"device {grant.index} ({grant.model})"
    if share.exclusive:
        return f"{device}: whole"
    compute = render_percent(share.compute_request) if share.compute_request else "no reserved"
    return f"{device}: {render_mib(share.memory_limit)}, {compute} compute"


def run_text(run: Run) -> str:
    """What a run holds, on one line."""
    return "; ".join(share_text(grant) for grant in grants_of(run))
