"""What the commands for one machine say of shares."""

from tessera.core.placement import Grant
from tessera.core.units import render_mib, render_percent
from tessera.local.book import Run, grants_of


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
